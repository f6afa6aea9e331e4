#include "nn/mlp.hpp"

#include "ops/gemm/gemm.hpp"
#include "ops/swiglu/swiglu.hpp"

// Legend: T tokens, H hidden, F ffn width; the pre-activation holds gate and up, 2F.
namespace primus::nn {

Mlp::Mlp(const std::string& prefix, int slot, ParameterStore& parameters)
    : slot_(slot),
      fc1_(parameters.get(prefix + ".linear_fc1.weight")),
      fc2_(parameters.get(prefix + ".linear_fc2.weight")) {}

Tensor& Mlp::pre_activation(const Tensor& x_TH, Saved& saved) {
  Tensor& pre_T2F = saved.allocate(slot_);
  ops::linear_forward(x_TH, fc1_.weight, pre_T2F);
  return pre_T2F;
}

void Mlp::restore(const Tensor& x_TH, Saved& saved, const StepContext&) {
  if (saved.is_missing(slot_)) pre_activation(x_TH, saved);
}

void Mlp::forward(const Tensor& x_TH, Saved& saved, const StepContext&, Tensor& residual_TH) {
  const Tensor& pre_T2F = pre_activation(x_TH, saved);
  Tensor activation_TF = workspace({pre_T2F.size(0), pre_T2F.size(1) / 2}, pre_T2F);
  ops::swiglu_forward(pre_T2F, {}, {}, activation_TF);
  ops::linear_forward(activation_TF, fc2_.weight, residual_TH, ops::Write::kAccumulate);
}

std::vector<Tensor> Mlp::input_gradient(const Tensor& dy_TH, const Tensor& x_TH, Saved& saved, Tensor& dx_TH,
                                        ops::Write write) {
  Tensor pre_T2F = saved.at(slot_);
  saved.release(slot_);
  const std::int64_t tokens = pre_T2F.size(0);
  const std::int64_t ffn = pre_T2F.size(1) / 2;
  Tensor dactivation_TF = workspace({tokens, ffn}, pre_T2F);
  ops::linear_dgrad(dy_TH, fc2_.weight, dactivation_TF);
  Tensor activation_TF = workspace({tokens, ffn}, pre_T2F);
  Tensor no_dprob;
  // The gradient takes the pre-activation's storage: nothing reads that again.
  ops::swiglu_backward(dactivation_TF, pre_T2F, {}, {}, pre_T2F, no_dprob, activation_TF);
  ops::linear_dgrad(pre_T2F, fc1_.weight, dx_TH, write);
  return {dy_TH, activation_TF, pre_T2F, x_TH};
}

void Mlp::backward(const Tensor& dy_TH, const Tensor& x_TH, Saved& saved, const StepContext& step, Tensor& dx_TH) {
  std::vector<Tensor> deferred = input_gradient(dy_TH, x_TH, saved, dx_TH, ops::Write::kOverwrite);
  if (step.weight_grad == WeightGradTiming::kDeferred) {
    saved.deferred() = std::move(deferred);
  } else {
    add_weight_gradients(deferred);
  }
}

void Mlp::weight_grad(Saved& saved) {
  add_weight_gradients(saved.deferred());
  saved.deferred().clear();
}

void Mlp::add_weight_gradients(std::span<const Tensor> deferred) {
  PRIMUS_CHECK(deferred.size() == kNumDeferred, "{} tensors were left for an MLP's weight gradients", deferred.size());
  ops::linear_wgrad(deferred[0], deferred[1], fc2_.main_grad);
  ops::linear_wgrad(deferred[2], deferred[3], fc1_.main_grad);
}

}  // namespace primus::nn
