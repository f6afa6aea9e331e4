#include "nn/delta_core.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/sigmoid_backward.h>

#include "ops/gemm/gemm.hpp"

namespace primus::nn {

Parameter& mixer_parameter(ParameterStore& parameters, int layer, const char* part) {
  return parameters.get(fmt::format("decoder.layers.{}.self_attention.{}", layer, part));
}

DeltaCore::DeltaCore(const model::GatedDeltaSpec& sizes, double epsilon, const DeltaVariant& variant, int layer,
                     ParameterStore& parameters)
    : sizes_(sizes),
      epsilon_(epsilon),
      variant_(variant),
      conv_(mixer_parameter(parameters, layer, "conv1d.weight")),
      dt_bias_(mixer_parameter(parameters, layer, "dt_bias")),
      a_log_(mixer_parameter(parameters, layer, "A_log")),
      norm_(mixer_parameter(parameters, layer, "out_norm.weight")),
      out_(mixer_parameter(parameters, layer, "out_proj.weight")) {}

DeltaCore::Heads DeltaCore::heads(const Tensor& mixed_TC) const {
  const std::int64_t key = sizes_.key_width();
  const auto part = [&](std::int64_t first, std::int64_t num_heads, std::int64_t size) {
    return mixed_TC.narrow(1, first, num_heads * size).unflatten(1, {num_heads, size});
  };
  return {part(0, sizes_.num_key_heads, sizes_.key_head_dim), part(key, sizes_.num_key_heads, sizes_.key_head_dim),
          part(2 * key, sizes_.num_value_heads, sizes_.value_head_dim)};
}

ops::ShortConv DeltaCore::convolution(const StepContext& step) const {
  return {
      .weight_C1K = conv_.weight, .bias_C = {}, .seq_length = step.batch.seq_length, .first_key_BS = step.first_key_BS};
}

ops::DeltaRule DeltaCore::rule(const Input& in, const StepContext& step) const {
  const at::ScalarType wide = ops::accumulator_type(in.mixed_TC.scalar_type());
  Tensor mixed_TC = at::empty(in.mixed_TC.sizes(), in.mixed_TC.options());
  ops::silu_conv_forward(in.mixed_TC, convolution(step), mixed_TC);
  Tensor log_decay = at::empty(in.decay_TAK.sizes(), in.decay_TAK.options().dtype(wide));
  ops::decay_gate_forward(in.decay_TAK, decay_gate(), log_decay);
  const Heads mixed = heads(mixed_TC);
  return {.q_TGK = mixed.q_TGK,
          .k_TGK = mixed.k_TGK,
          .v_TAV = mixed.v_TAV,
          .log_decay = variant_.decays == DeltaVariant::Decays::kOneAHead ? log_decay.squeeze(2) : log_decay,
          .beta_TA = in.write_TA.to(wide).sigmoid().contiguous(),
          .seq_length = step.batch.seq_length,
          .first_key_BS = step.first_key_BS,
          .chunk_size = variant_.chunk_size};
}

DeltaCore::Gradient DeltaCore::rule_backward(const Tensor& dcontext_TAV, const ops::DeltaRule& rule,
                                             const Tensor& dwrite_TA) const {
  const std::int64_t width = 2 * sizes_.key_width() + sizes_.value_width();
  const Tensor dmixed_TC = at::empty({dcontext_TAV.size(0), width}, rule.q_TGK.options());
  const Heads dmixed = heads(dmixed_TC);
  Gradient gradient{
      dmixed_TC,
      {dmixed.q_TGK, dmixed.k_TGK, dmixed.v_TAV, at::empty_like(rule.log_decay), at::empty_like(rule.beta_TA)}};
  Tensor& dbeta_TA = gradient.of_rule.beta_TA;
  ops::delta_rule_backward(dcontext_TAV, rule, gradient.of_rule);
  at::sigmoid_backward_out(dbeta_TA, dbeta_TA, rule.beta_TA);
  dwrite_TA.copy_(dbeta_TA);
  return gradient;
}

void DeltaCore::input_backward(const Gradient& gradient, const Input& in, const StepContext& step, Tensor& ddecay_TAK,
                               Tensor& dmixed_TC) {
  const Tensor& dlog_decay = gradient.of_rule.log_decay;
  ops::DecayGateGradient decay_gradient{a_log_.sum_target(), dt_bias_.sum_target()};
  ops::decay_gate_backward(dlog_decay.view(in.decay_TAK.sizes()), in.decay_TAK, decay_gate(), ddecay_TAK,
                           decay_gradient);
  ops::ShortConvGradient conv_gradient{conv_.sum_target(), {}};
  ops::silu_conv_backward(gradient.mixed_TC, in.mixed_TC, convolution(step), dmixed_TC, conv_gradient);
}

Tensor DeltaCore::gated(const Tensor& context_TAV, const Tensor& gate_TAV) const {
  Tensor gated = at::empty_like(context_TAV);
  ops::gated_norm_forward(context_TAV, gate_TAV, output_norm(), gated);
  return gated;
}

void DeltaCore::gated_backward(Tensor& dcontext_TAV, const Tensor& context_TAV, const Tensor& gate_TAV,
                               Tensor& dgate_TAV) {
  ops::gated_norm_backward(dcontext_TAV, context_TAV, gate_TAV, output_norm(), dcontext_TAV, dgate_TAV,
                           norm_.sum_target());
}

void DeltaCore::project(const Tensor& gated_TAV, Tensor& residual_TH) const {
  ops::linear_forward(flat(gated_TAV), out_.weight, residual_TH, ops::Write::kAccumulate);
}

}  // namespace primus::nn
