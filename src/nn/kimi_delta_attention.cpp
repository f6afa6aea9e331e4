#include "nn/kimi_delta_attention.hpp"

#include "nn/weight_gradients.hpp"
#include "ops/gemm/gemm.hpp"

// Legend: T tokens, H hidden, A value heads of size V, R rank, C and K as in nn/delta_core.hpp.
namespace primus::nn {

using Slot = model::KimiDeltaSlot;

KimiDeltaAttention::KimiDeltaAttention(const model::ModelSpec& spec, int layer, ParameterStore& parameters)
    : delta_(spec.kimi_delta),
      in_(mixer_parameter(parameters, layer, "in_proj.weight")),
      low_rank_(mixer_parameter(parameters, layer, "low_rank_proj.weight")),
      decay_(mixer_parameter(parameters, layer, "decay_proj.weight")),
      core_(delta_.heads, spec.norm_epsilon,
            {.gate = ops::NormGate::kSigmoid,
             .decays = DeltaVariant::Decays::kOneARow,
             .lowest_decay = delta_.lowest_decay,
             .chunk_size = delta_.chunk_size},
            layer, parameters) {
  if (delta_.has_low_rank_gate()) gate_ = &mixer_parameter(parameters, layer, "gate_proj.weight");
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

void KimiDeltaAttention::project(const Tensor& x_TH, Saved& saved) const {
  ops::linear_forward(x_TH, in_.weight, saved.allocate(Slot::kProjected));
  ops::linear_forward(x_TH, low_rank_.weight, saved.allocate(Slot::kLowRank));
}

DeltaCore::Input KimiDeltaAttention::rule_input(const Parts& in) const {
  Tensor decay = workspace({in.low_decay_TR.size(0), delta_.decay_width()}, in.low_decay_TR);
  ops::linear_forward(in.low_decay_TR, decay_.weight, decay);
  return {.mixed_TC = in.mixed_TC,
          .decay_TAK = decay.unflatten(1, {delta_.heads.num_value_heads, delta_.heads.key_head_dim}),
          .write_TA = in.write_TA};
}

Tensor KimiDeltaAttention::output_gate(const Parts& in) const {
  if (gate_ == nullptr) return in.gate_TAV;
  Tensor gate = workspace({in.low_gate_TR.size(0), delta_.heads.value_width()}, in.low_gate_TR);
  ops::linear_forward(in.low_gate_TR, gate_->weight, gate);
  return gate.unflatten(1, {delta_.heads.num_value_heads, delta_.heads.value_head_dim});
}

void KimiDeltaAttention::attend(Saved& saved, const StepContext& step) const {
  const ops::DeltaRule rule = core_.rule(rule_input(parts(saved.at(Slot::kProjected), saved.at(Slot::kLowRank))), step);
  ops::delta_rule_forward(rule, saved.allocate(Slot::kContext));
}

void KimiDeltaAttention::forward(const Tensor& x_TH, Saved& saved, const StepContext& step, Tensor& residual_TH) {
  project(x_TH, saved);
  attend(saved, step);
  const Tensor gate_TAV = output_gate(parts(saved.at(Slot::kProjected), saved.at(Slot::kLowRank)));
  core_.project(core_.gated(saved.at(Slot::kContext), gate_TAV), residual_TH);
}

void KimiDeltaAttention::restore(const Tensor& x_TH, Saved& saved, const StepContext& step) {
  if (saved.is_missing(Slot::kProjected)) project(x_TH, saved);
  if (saved.is_missing(Slot::kContext)) attend(saved, step);
}

Tensor KimiDeltaAttention::rule_backward(const Tensor& dcontext_TAV, const Parts& in, const StepContext& step,
                                         Parts& gradient) {
  const DeltaCore::Input input = rule_input(in);
  const ops::DeltaRule rule = core_.rule(input, step);
  const DeltaCore::Gradient of_rule = core_.rule_backward(dcontext_TAV, rule, gradient.write_TA);
  Tensor ddecay_TAK = at::empty_like(input.decay_TAK);
  core_.input_backward(of_rule, input, step, ddecay_TAK, gradient.mixed_TC);
  return flat(ddecay_TAK);
}

void KimiDeltaAttention::backward(const Tensor& dy_TH, const Tensor& x_TH, Saved& saved, const StepContext& step,
                                  Tensor& dx_TH) {
  const Tensor context = saved.at(Slot::kContext);
  const Parts in = parts(saved.at(Slot::kProjected), saved.at(Slot::kLowRank));
  Tensor gate_TAV = output_gate(in);
  const Tensor gated = core_.gated(context, gate_TAV);
  Tensor dcontext = at::empty_like(context);
  Tensor dcontext_flat = flat(dcontext);
  ops::linear_dgrad(dy_TH, core_.projection().weight, dcontext_flat);
  Tensor dprojected = at::empty_like(saved.at(Slot::kProjected));
  Tensor dlow_rank = at::empty_like(saved.at(Slot::kLowRank));
  Parts gradient = parts(dprojected, dlow_rank);
  if (gate_ != nullptr) gradient.gate_TAV = at::empty_like(context);
  core_.gated_backward(dcontext, context, gate_TAV, gradient.gate_TAV);
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
  std::vector<Parameter*> parameters = {&core_.projection(), &in_, &low_rank_, &decay_};
  if (gate_ != nullptr) parameters.push_back(gate_);
  PRIMUS_CHECK(deferred.size() == 2 * parameters.size(), "{} tensors were left for delta attention's weight gradients",
               deferred.size());
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    add_linear_gradient(deferred[2 * i], deferred[2 * i + 1], *parameters[i]);
  }
}

}  // namespace primus::nn
