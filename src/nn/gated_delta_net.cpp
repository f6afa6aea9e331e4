#include "nn/gated_delta_net.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/sigmoid_backward.h>

#include "nn/weight_gradients.hpp"
#include "ops/gemm/gemm.hpp"

// Legend: T tokens, H hidden, G key heads of size K, A value heads of size V, C = 2·G·K + A·V.
namespace primus::nn {

using Slot = model::GatedDeltaSlot;

namespace {

Parameter& parameter(ParameterStore& parameters, int layer, const char* part) {
  return parameters.get(fmt::format("decoder.layers.{}.self_attention.{}", layer, part));
}

}  // namespace

GatedDeltaNet::GatedDeltaNet(const model::ModelSpec& spec, int layer, ParameterStore& parameters)
    : delta_(spec.gated_delta),
      epsilon_(spec.norm_epsilon),
      in_(parameter(parameters, layer, "in_proj.weight")),
      conv_(parameter(parameters, layer, "conv1d.weight")),
      dt_bias_(parameter(parameters, layer, "dt_bias")),
      a_log_(parameter(parameters, layer, "A_log")),
      norm_(parameter(parameters, layer, "out_norm.weight")),
      out_(parameter(parameters, layer, "out_proj.weight")) {}

GatedDeltaNet::Parts GatedDeltaNet::parts(const Tensor& projected) const {
  const std::int64_t mixed = 2 * delta_.key_width() + delta_.value_width();
  const std::int64_t heads = delta_.num_value_heads;
  const std::int64_t gate_end = mixed + delta_.value_width();
  return {.mixed_TC = projected.narrow(1, 0, mixed),
          .gate_TAV = projected.narrow(1, mixed, delta_.value_width()).unflatten(1, {heads, delta_.value_head_dim}),
          .write_TA = projected.narrow(1, gate_end, heads),
          .decay_TA1 = projected.narrow(1, gate_end + heads, heads).unsqueeze(2)};
}

GatedDeltaNet::Heads GatedDeltaNet::heads(const Tensor& mixed_TC) const {
  const std::int64_t key = delta_.key_width();
  const auto part = [&](std::int64_t first, std::int64_t num_heads, std::int64_t size) {
    return mixed_TC.narrow(1, first, num_heads * size).unflatten(1, {num_heads, size});
  };
  return {part(0, delta_.num_key_heads, delta_.key_head_dim), part(key, delta_.num_key_heads, delta_.key_head_dim),
          part(2 * key, delta_.num_value_heads, delta_.value_head_dim)};
}

ops::ShortConv GatedDeltaNet::convolution(const StepContext& step) const {
  return {
      .weight_C1K = conv_.weight, .bias_C = {}, .seq_length = step.batch.seq_length, .first_key_BS = step.first_key_BS};
}

void GatedDeltaNet::project(const Tensor& x_TH, Saved& saved) const {
  ops::linear_forward(x_TH, in_.weight, saved.allocate(Slot::kProjected));
}

ops::DeltaRule GatedDeltaNet::rule(const Parts& in, const StepContext& step) const {
  const at::ScalarType wide = ops::accumulator_type(in.mixed_TC.scalar_type());
  Tensor mixed_TC = at::empty(in.mixed_TC.sizes(), in.mixed_TC.options());
  ops::silu_conv_forward(in.mixed_TC, convolution(step), mixed_TC);
  Tensor log_decay = at::empty(in.decay_TA1.sizes(), in.decay_TA1.options().dtype(wide));
  ops::decay_gate_forward(in.decay_TA1, decay_gate(), log_decay);
  const Heads mixed = heads(mixed_TC);
  return {.q_TGK = mixed.q_TGK,
          .k_TGK = mixed.k_TGK,
          .v_TAV = mixed.v_TAV,
          .log_decay = log_decay.squeeze(2),
          .beta_TA = in.write_TA.to(wide).sigmoid().contiguous(),
          .seq_length = step.batch.seq_length,
          .first_key_BS = step.first_key_BS};
}

void GatedDeltaNet::attend(Saved& saved, const StepContext& step) const {
  const Parts in = parts(saved.at(Slot::kProjected));
  const ops::DeltaRule rule_in = rule(in, step);
  ops::delta_rule_forward(rule_in, saved.allocate(Slot::kContext));
}

void GatedDeltaNet::forward(const Tensor& x_TH, Saved& saved, const StepContext& step, Tensor& residual_TH) {
  project(x_TH, saved);
  attend(saved, step);
  const Tensor& context = saved.at(Slot::kContext);
  Tensor gated = at::empty_like(context);
  ops::gated_norm_forward(context, parts(saved.at(Slot::kProjected)).gate_TAV, output_norm(), gated);
  ops::linear_forward(flat(gated), out_.weight, residual_TH, ops::Write::kAccumulate);
}

void GatedDeltaNet::restore(const Tensor& x_TH, Saved& saved, const StepContext& step) {
  if (saved.is_missing(Slot::kProjected)) project(x_TH, saved);
  if (saved.is_missing(Slot::kContext)) attend(saved, step);
}

void GatedDeltaNet::rule_backward(const Tensor& dcontext_TAV, const Parts& in, const StepContext& step,
                                  Parts& gradient) {
  const ops::DeltaRule rule_in = rule(in, step);
  Tensor dmixed_TC = at::empty(in.mixed_TC.sizes(), in.mixed_TC.options());
  const Heads dmixed = heads(dmixed_TC);
  ops::DeltaRuleGradient dinput{dmixed.q_TGK, dmixed.k_TGK, dmixed.v_TAV, at::empty_like(rule_in.log_decay),
                                at::empty_like(rule_in.beta_TA)};
  ops::delta_rule_backward(dcontext_TAV, rule_in, dinput);
  at::sigmoid_backward_out(dinput.beta_TA, dinput.beta_TA, rule_in.beta_TA);
  gradient.write_TA.copy_(dinput.beta_TA);
  ops::DecayGateGradient decay_gradient{a_log_.sum_target(), dt_bias_.sum_target()};
  ops::decay_gate_backward(dinput.log_decay.unsqueeze(2), in.decay_TA1, decay_gate(), gradient.decay_TA1,
                           decay_gradient);
  ops::ShortConvGradient conv_gradient{conv_.sum_target(), {}};
  ops::silu_conv_backward(dmixed_TC, in.mixed_TC, convolution(step), gradient.mixed_TC, conv_gradient);
}

void GatedDeltaNet::backward(const Tensor& dy_TH, const Tensor& x_TH, Saved& saved, const StepContext& step,
                             Tensor& dx_TH) {
  const Tensor context = saved.at(Slot::kContext);
  const Parts in = parts(saved.at(Slot::kProjected));
  Tensor gated = at::empty_like(context);
  ops::gated_norm_forward(context, in.gate_TAV, output_norm(), gated);
  Tensor dcontext = at::empty_like(context);
  Tensor dcontext_flat = flat(dcontext);
  ops::linear_dgrad(dy_TH, out_.weight, dcontext_flat);
  Tensor dprojected = at::empty_like(saved.at(Slot::kProjected));
  Parts gradient = parts(dprojected);
  ops::gated_norm_backward(dcontext, context, in.gate_TAV, output_norm(), dcontext, gradient.gate_TAV,
                           norm_.sum_target());
  rule_backward(dcontext, in, step, gradient);
  saved.release_all();
  dcontext_flat.reset();
  dcontext.reset();
  ops::linear_dgrad(dprojected, in_.weight, dx_TH);
  std::vector<Tensor> deferred = {dy_TH, flat(gated), dprojected, x_TH};
  if (step.weight_grad == WeightGradTiming::kDeferred) {
    saved.deferred() = std::move(deferred);
  } else {
    add_weight_gradients(deferred);
  }
}

void GatedDeltaNet::weight_grad(Saved& saved) {
  add_weight_gradients(saved.deferred());
  saved.deferred().clear();
}

void GatedDeltaNet::add_weight_gradients(const std::vector<Tensor>& deferred) const {
  PRIMUS_CHECK(deferred.size() == 4, "{} tensors were left for a delta net's weight gradients", deferred.size());
  add_linear_gradient(deferred[0], deferred[1], out_);
  add_linear_gradient(deferred[2], deferred[3], in_);
}

}  // namespace primus::nn
