#include "nn/kimi_delta_attention.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/sigmoid_backward.h>

#include "nn/weight_gradients.hpp"
#include "ops/gemm/gemm.hpp"

// Legend: T tokens, H hidden, G key heads of size K, A value heads of size V, C = 2·G·K + A·V, R rank.
namespace primus::nn {

using Slot = model::KimiDeltaSlot;

namespace {

Parameter& parameter(ParameterStore& parameters, int layer, const char* part) {
  return parameters.get(fmt::format("decoder.layers.{}.self_attention.{}", layer, part));
}

}  // namespace

KimiDeltaAttention::KimiDeltaAttention(const model::ModelSpec& spec, int layer, ParameterStore& parameters)
    : delta_(spec.kimi_delta),
      epsilon_(spec.norm_epsilon),
      in_(parameter(parameters, layer, "in_proj.weight")),
      low_rank_(parameter(parameters, layer, "low_rank_proj.weight")),
      decay_(parameter(parameters, layer, "decay_proj.weight")),
      conv_(parameter(parameters, layer, "conv1d.weight")),
      dt_bias_(parameter(parameters, layer, "dt_bias")),
      a_log_(parameter(parameters, layer, "A_log")),
      norm_(parameter(parameters, layer, "out_norm.weight")),
      out_(parameter(parameters, layer, "out_proj.weight")) {
  if (delta_.has_low_rank_gate()) gate_ = &parameter(parameters, layer, "gate_proj.weight");
}

KimiDeltaAttention::Parts KimiDeltaAttention::parts(const Tensor& projected, const Tensor& low_rank) const {
  const model::GatedDeltaSpec& sizes = delta_.heads;
  const std::int64_t mixed = 2 * sizes.key_width() + sizes.value_width();
  const std::int64_t heads = sizes.num_value_heads;
  Parts result{.mixed_TC = projected.narrow(1, 0, mixed),
               .write_TA = projected.narrow(1, mixed, heads),
               .gate_TAV = {},
               .low_decay_TR = low_rank.narrow(1, 0, delta_.rank()),
               .low_gate_TR = {}};
  if (delta_.has_low_rank_gate()) {
    result.low_gate_TR = low_rank.narrow(1, delta_.rank(), delta_.rank());
  } else {
    result.gate_TAV =
        projected.narrow(1, mixed + heads, sizes.value_width()).unflatten(1, {heads, sizes.value_head_dim});
  }
  return result;
}

KimiDeltaAttention::Heads KimiDeltaAttention::heads(const Tensor& mixed_TC) const {
  const model::GatedDeltaSpec& sizes = delta_.heads;
  const auto part = [&](std::int64_t first, std::int64_t num_heads, std::int64_t size) {
    return mixed_TC.narrow(1, first, num_heads * size).unflatten(1, {num_heads, size});
  };
  return {part(0, sizes.num_key_heads, sizes.key_head_dim),
          part(sizes.key_width(), sizes.num_key_heads, sizes.key_head_dim),
          part(2 * sizes.key_width(), sizes.num_value_heads, sizes.value_head_dim)};
}

ops::ShortConv KimiDeltaAttention::convolution(const StepContext& step) const {
  return {
      .weight_C1K = conv_.weight, .bias_C = {}, .seq_length = step.batch.seq_length, .first_key_BS = step.first_key_BS};
}

void KimiDeltaAttention::project(const Tensor& x_TH, Saved& saved) const {
  ops::linear_forward(x_TH, in_.weight, saved.allocate(Slot::kProjected));
  ops::linear_forward(x_TH, low_rank_.weight, saved.allocate(Slot::kLowRank));
}

Tensor KimiDeltaAttention::decays(const Parts& in) const {
  Tensor decay = workspace({in.low_decay_TR.size(0), delta_.decay_width()}, in.low_decay_TR);
  ops::linear_forward(in.low_decay_TR, decay_.weight, decay);
  return decay.unflatten(1, {delta_.heads.num_value_heads, delta_.heads.key_head_dim});
}

Tensor KimiDeltaAttention::output_gate(const Parts& in) const {
  if (gate_ == nullptr) return in.gate_TAV;
  Tensor gate = workspace({in.low_gate_TR.size(0), delta_.heads.value_width()}, in.low_gate_TR);
  ops::linear_forward(in.low_gate_TR, gate_->weight, gate);
  return gate.unflatten(1, {delta_.heads.num_value_heads, delta_.heads.value_head_dim});
}

ops::DeltaRule KimiDeltaAttention::rule(const Parts& in, const Tensor& decay_TAK, const StepContext& step) const {
  const at::ScalarType wide = ops::accumulator_type(in.mixed_TC.scalar_type());
  Tensor mixed_TC = at::empty(in.mixed_TC.sizes(), in.mixed_TC.options());
  ops::silu_conv_forward(in.mixed_TC, convolution(step), mixed_TC);
  Tensor log_decay = at::empty(decay_TAK.sizes(), decay_TAK.options().dtype(wide));
  ops::decay_gate_forward(decay_TAK, decay_gate(), log_decay);
  const Heads mixed = heads(mixed_TC);
  return {.q_TGK = mixed.q_TGK,
          .k_TGK = mixed.k_TGK,
          .v_TAV = mixed.v_TAV,
          .log_decay = log_decay,
          .beta_TA = in.write_TA.to(wide).sigmoid().contiguous(),
          .seq_length = step.batch.seq_length,
          .first_key_BS = step.first_key_BS,
          .chunk_size = delta_.chunk_size};
}

void KimiDeltaAttention::attend(Saved& saved, const StepContext& step) const {
  const Parts in = parts(saved.at(Slot::kProjected), saved.at(Slot::kLowRank));
  const ops::DeltaRule rule_in = rule(in, decays(in), step);
  ops::delta_rule_forward(rule_in, saved.allocate(Slot::kContext));
}

void KimiDeltaAttention::forward(const Tensor& x_TH, Saved& saved, const StepContext& step, Tensor& residual_TH) {
  project(x_TH, saved);
  attend(saved, step);
  const Tensor& context = saved.at(Slot::kContext);
  const Tensor gate = output_gate(parts(saved.at(Slot::kProjected), saved.at(Slot::kLowRank)));
  Tensor gated = at::empty_like(context);
  ops::gated_norm_forward(context, gate, output_norm(), gated);
  ops::linear_forward(flat(gated), out_.weight, residual_TH, ops::Write::kAccumulate);
}

void KimiDeltaAttention::restore(const Tensor& x_TH, Saved& saved, const StepContext& step) {
  if (saved.is_missing(Slot::kProjected)) project(x_TH, saved);
  if (saved.is_missing(Slot::kContext)) attend(saved, step);
}

Tensor KimiDeltaAttention::rule_backward(const Tensor& dcontext_TAV, const Parts& in, const StepContext& step,
                                         Parts& gradient) {
  const Tensor decay_TAK = decays(in);
  const ops::DeltaRule rule_in = rule(in, decay_TAK, step);
  Tensor dmixed_TC = at::empty(in.mixed_TC.sizes(), in.mixed_TC.options());
  const Heads dmixed = heads(dmixed_TC);
  ops::DeltaRuleGradient dinput{dmixed.q_TGK, dmixed.k_TGK, dmixed.v_TAV, at::empty_like(rule_in.log_decay),
                                at::empty_like(rule_in.beta_TA)};
  ops::delta_rule_backward(dcontext_TAV, rule_in, dinput);
  at::sigmoid_backward_out(dinput.beta_TA, dinput.beta_TA, rule_in.beta_TA);
  gradient.write_TA.copy_(dinput.beta_TA);
  Tensor ddecay_TAK = at::empty_like(decay_TAK);
  ops::DecayGateGradient decay_gradient{a_log_.sum_target(), dt_bias_.sum_target()};
  ops::decay_gate_backward(dinput.log_decay, decay_TAK, decay_gate(), ddecay_TAK, decay_gradient);
  ops::ShortConvGradient conv_gradient{conv_.sum_target(), {}};
  ops::silu_conv_backward(dmixed_TC, in.mixed_TC, convolution(step), gradient.mixed_TC, conv_gradient);
  return flat(ddecay_TAK);
}

void KimiDeltaAttention::backward(const Tensor& dy_TH, const Tensor& x_TH, Saved& saved, const StepContext& step,
                                  Tensor& dx_TH) {
  const Tensor context = saved.at(Slot::kContext);
  const Parts in = parts(saved.at(Slot::kProjected), saved.at(Slot::kLowRank));
  Tensor gate_TAV = output_gate(in);
  Tensor gated = at::empty_like(context);
  ops::gated_norm_forward(context, gate_TAV, output_norm(), gated);
  Tensor dcontext = at::empty_like(context);
  Tensor dcontext_flat = flat(dcontext);
  ops::linear_dgrad(dy_TH, out_.weight, dcontext_flat);
  Tensor dprojected = at::empty_like(saved.at(Slot::kProjected));
  Tensor dlow_rank = at::empty_like(saved.at(Slot::kLowRank));
  Parts gradient = parts(dprojected, dlow_rank);
  if (gate_ != nullptr) gradient.gate_TAV = at::empty_like(context);
  ops::gated_norm_backward(dcontext, context, gate_TAV, output_norm(), dcontext, gradient.gate_TAV, norm_.sum_target());
  gate_TAV.reset();
  const Tensor ddecay = rule_backward(dcontext, in, step, gradient);
  saved.release_all();
  dcontext_flat.reset();
  dcontext.reset();
  ops::linear_dgrad(ddecay, decay_.weight, gradient.low_decay_TR);
  std::vector<Tensor> deferred = {dy_TH, flat(gated), dprojected, x_TH, dlow_rank, x_TH, ddecay, in.low_decay_TR};
  if (gate_ != nullptr) {
    const Tensor dgate = flat(gradient.gate_TAV);
    ops::linear_dgrad(dgate, gate_->weight, gradient.low_gate_TR);
    deferred.insert(deferred.end(), {dgate, in.low_gate_TR});
  }
  ops::linear_dgrad(dprojected, in_.weight, dx_TH);
  ops::linear_dgrad(dlow_rank, low_rank_.weight, dx_TH, ops::Write::kAccumulate);
  if (step.weight_grad == WeightGradTiming::kDeferred) {
    saved.deferred() = std::move(deferred);
  } else {
    add_weight_gradients(deferred);
  }
}

void KimiDeltaAttention::weight_grad(Saved& saved) {
  add_weight_gradients(saved.deferred());
  saved.deferred().clear();
}

void KimiDeltaAttention::add_weight_gradients(const std::vector<Tensor>& deferred) const {
  // Pairs (output gradient, input) in the order in which backward pushed them.
  std::vector<Parameter*> parameters = {&out_, &in_, &low_rank_, &decay_};
  if (gate_ != nullptr) parameters.push_back(gate_);
  PRIMUS_CHECK(deferred.size() == 2 * parameters.size(), "{} tensors were left for delta attention's weight gradients",
               deferred.size());
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    add_linear_gradient(deferred[2 * i], deferred[2 * i + 1], *parameters[i]);
  }
}

}  // namespace primus::nn
