#include "nn/short_convolution.hpp"

#include "nn/weight_gradients.hpp"
#include "ops/bias/bias.hpp"
#include "ops/gemm/gemm.hpp"

// Legend: T tokens, H hidden.
namespace primus::nn {

using Slot = model::ShortConvolutionSlot;

ShortConvolution::ShortConvolution(const model::ModelSpec& spec, int layer, ParameterStore& parameters) {
  const auto weights = [&](const char* part) {
    const std::string name = fmt::format("decoder.layers.{}.self_attention.{}", layer, part);
    Weights found{&parameters.get(name + ".weight")};
    if (spec.short_convolution.bias == model::Part::kPresent) found.bias = &parameters.get(name + ".bias");
    return found;
  };
  in_ = weights("in_proj");
  conv_ = weights("conv");
  out_ = weights("out_proj");
}

ops::ShortConv ShortConvolution::convolution(const StepContext& step) const {
  return {.weight_C1K = conv_.weight->weight,
          .bias_C = conv_.bias != nullptr ? conv_.bias->weight : Tensor(),
          .seq_length = step.batch.seq_length,
          .first_key_BS = step.first_key_BS};
}

void ShortConvolution::project(const Tensor& x_TH, Saved& saved) const {
  Tensor& projected_T3H = saved.allocate(Slot::kProjected);
  ops::linear_forward(x_TH, in_.weight->weight, projected_T3H);
  if (in_.bias != nullptr) ops::bias_add(in_.bias->weight, {}, {}, projected_T3H);
}

void ShortConvolution::forward(const Tensor& x_TH, Saved& saved, const StepContext& step, Tensor& residual_TH) {
  project(x_TH, saved);
  Tensor mixed_TH = at::empty_like(x_TH);
  ops::gated_conv_forward(saved.at(Slot::kProjected), convolution(step), mixed_TH);
  ops::linear_forward(mixed_TH, out_.weight->weight, residual_TH, ops::Write::kAccumulate);
  if (out_.bias != nullptr) ops::bias_add(out_.bias->weight, {}, {}, residual_TH);
}

void ShortConvolution::restore(const Tensor& x_TH, Saved& saved, const StepContext&) {
  if (saved.is_missing(Slot::kProjected)) project(x_TH, saved);
}

void ShortConvolution::backward(const Tensor& dy_TH, const Tensor& x_TH, Saved& saved, const StepContext& step,
                                Tensor& dx_TH) {
  if (out_.bias != nullptr) ops::bias_gradient(dy_TH, {}, {}, out_.bias->sum_target());
  const ops::ShortConv conv = convolution(step);
  Tensor mixed_TH = at::empty_like(x_TH);
  ops::gated_conv_forward(saved.at(Slot::kProjected), conv, mixed_TH);
  Tensor dmixed_TH = at::empty_like(x_TH);
  ops::linear_dgrad(dy_TH, out_.weight->weight, dmixed_TH);
  Tensor dprojected_T3H = at::empty_like(saved.at(Slot::kProjected));
  ops::ShortConvGradient gradient{conv_.weight->sum_target(),
                                  conv_.bias != nullptr ? conv_.bias->sum_target() : Tensor()};
  ops::gated_conv_backward(dmixed_TH, saved.at(Slot::kProjected), conv, dprojected_T3H, gradient);
  saved.release_all();
  dmixed_TH.reset();
  if (in_.bias != nullptr) ops::bias_gradient(dprojected_T3H, {}, {}, in_.bias->sum_target());
  ops::linear_dgrad(dprojected_T3H, in_.weight->weight, dx_TH);
  std::vector<Tensor> deferred = {dy_TH, mixed_TH, dprojected_T3H, x_TH};
  if (step.weight_grad == WeightGradTiming::kDeferred) {
    saved.deferred() = std::move(deferred);
  } else {
    add_weight_gradients(deferred);
  }
}

void ShortConvolution::weight_grad(Saved& saved) {
  add_weight_gradients(saved.deferred());
  saved.deferred().clear();
}

void ShortConvolution::add_weight_gradients(const std::vector<Tensor>& deferred) const {
  PRIMUS_CHECK(deferred.size() == 4, "{} tensors were left for a convolution's weight gradients", deferred.size());
  add_linear_gradient(deferred[0], deferred[1], *out_.weight);
  add_linear_gradient(deferred[2], deferred[3], *in_.weight);
}

}  // namespace primus::nn
