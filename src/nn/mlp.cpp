#include "nn/mlp.hpp"

#include "nn/weight_gradients.hpp"
#include "ops/bias/bias.hpp"
#include "ops/gemm/gemm.hpp"

// Legend: T tokens, H hidden, F ffn width; the pre-activation ("pre") is 2F wide in a gated unit, F in a plain one.
namespace primus::nn {
namespace {

ops::ActivationFunction function_of(model::ActivationSpec::Function function) {
  using enum model::ActivationSpec::Function;
  switch (function) {
    case kSilu:
      return ops::ActivationFunction::kSilu;
    case kQuickGelu:
      return ops::ActivationFunction::kQuickGelu;
    case kGelu:
      return ops::ActivationFunction::kGelu;
    case kTanhGelu:
      return ops::ActivationFunction::kTanhGelu;
    case kSquaredRelu:
      return ops::ActivationFunction::kSquaredRelu;
    case kSitu:
      return ops::ActivationFunction::kSitu;
  }
  PRIMUS_CHECK(false, "an activation that the op does not know");
}

}  // namespace

ops::ActivationOptions activation_options(const model::ModelSpec& spec) {
  const bool is_gated = spec.mlp_gate == model::Part::kPresent;
  return {.function = function_of(spec.activation.function),
          .unit = is_gated ? ops::ActivationUnit::kGated : ops::ActivationUnit::kPlain,
          .clamp = spec.activation.clamp,
          .linear_offset = spec.activation.linear_offset,
          .situ_beta = spec.activation.situ_beta,
          .situ_linear_beta = spec.activation.situ_linear_beta};
}

Tensor gate_before_up(const Tensor& x, std::int64_t block) {
  if (block == 0) return x;
  return x.view({x.size(0), x.size(1) / (2 * block), 2, block}).transpose(1, 2).reshape(x.sizes());
}

Tensor gate_beside_up(const Tensor& x, std::int64_t block) {
  if (block == 0) return x;
  return x.view({x.size(0), 2, x.size(1) / (2 * block), block}).transpose(1, 2).reshape(x.sizes());
}

Mlp::Mlp(const model::ModelSpec& spec, const std::string& prefix, int slot, ParameterStore& parameters,
         std::int64_t glu_interleave)
    : activation_(activation_options(spec)),
      slot_(slot),
      glu_interleave_(glu_interleave),
      fc1_(parameters.get(prefix + ".linear_fc1.weight")),
      fc2_(parameters.get(prefix + ".linear_fc2.weight")) {
  if (spec.linear_bias == model::Part::kPresent) {
    fc1_bias_ = &parameters.get(prefix + ".linear_fc1.bias");
    fc2_bias_ = &parameters.get(prefix + ".linear_fc2.bias");
  }
}

Tensor& Mlp::pre_activation(const Tensor& x_TH, Saved& saved) {
  Tensor& pre = saved.allocate(slot_);
  ops::linear_forward(x_TH, fc1_.weight, pre);
  if (fc1_bias_ != nullptr) ops::bias_add(fc1_bias_->weight, {}, {}, pre);
  return pre;
}

void Mlp::restore(const Tensor& x_TH, Saved& saved, const StepContext&) {
  if (saved.is_missing(slot_)) pre_activation(x_TH, saved);
}

void Mlp::forward(const Tensor& x_TH, Saved& saved, const StepContext&, Tensor& residual_TH) {
  scaled_forward(x_TH, {}, saved, residual_TH);
}

void Mlp::scaled_forward(const Tensor& x_TH, const Tensor& scale_T, Saved& saved, Tensor& residual_TH) {
  const Tensor& pre = pre_activation(x_TH, saved);
  Tensor activation_TF = workspace({pre.size(0), fc2_.weight.size(1)}, pre);
  ops::activation_forward(gate_before_up(pre, glu_interleave_), activation_, scale_T, {}, activation_TF);
  ops::linear_forward(activation_TF, fc2_.weight, residual_TH, ops::Write::kAccumulate);
  if (fc2_bias_ != nullptr) ops::bias_add(fc2_bias_->weight, {}, scale_T, residual_TH);
}

std::vector<Tensor> Mlp::input_gradient(const Tensor& dy_TH, const Tensor& x_TH, const Tensor& scale_T, Saved& saved,
                                        Tensor& dx_TH, ops::Write write, Tensor& dscale_T) {
  Tensor pre = gate_before_up(saved.at(slot_), glu_interleave_);
  saved.release(slot_);
  const std::int64_t tokens = pre.size(0);
  const std::int64_t ffn = fc2_.weight.size(1);
  Tensor dactivation_TF = workspace({tokens, ffn}, pre);
  ops::linear_dgrad(dy_TH, fc2_.weight, dactivation_TF);
  Tensor activation_TF = workspace({tokens, ffn}, pre);
  // The gradient takes the pre-activation's storage: nothing reads that again.
  ops::activation_backward(dactivation_TF, pre, activation_, scale_T, {}, pre, dscale_T, activation_TF);
  pre = gate_beside_up(pre, glu_interleave_);
  if (scale_T.defined() && fc2_bias_ != nullptr) ops::bias_scale_gradient(dy_TH, fc2_bias_->weight, {}, dscale_T);
  ops::linear_dgrad(pre, fc1_.weight, dx_TH, write);
  return {dy_TH, activation_TF, pre, x_TH, scale_T};
}

void Mlp::backward(const Tensor& dy_TH, const Tensor& x_TH, Saved& saved, const StepContext& step, Tensor& dx_TH) {
  Tensor no_scale;
  std::vector<Tensor> deferred = input_gradient(dy_TH, x_TH, {}, saved, dx_TH, ops::Write::kOverwrite, no_scale);
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
  const Tensor& dy_TH = deferred[0];
  const Tensor& dpre = deferred[2];
  add_linear_gradient(dy_TH, deferred[1], fc2_);
  add_linear_gradient(dpre, deferred[3], fc1_);
  if (fc1_bias_ == nullptr) return;
  ops::bias_gradient(dy_TH, {}, deferred[4], fc2_bias_->sum_target());
  ops::bias_gradient(dpre, {}, {}, fc1_bias_->sum_target());
}

}  // namespace primus::nn
