#include "nn/gated_delta_net.hpp"

#include "nn/weight_gradients.hpp"
#include "ops/gemm/gemm.hpp"

// Legend: T tokens, H hidden, A value heads of size V, C as in nn/delta_core.hpp.
namespace primus::nn {

using Slot = model::GatedDeltaSlot;

GatedDeltaNet::GatedDeltaNet(const model::ModelSpec& spec, int layer, ParameterStore& parameters)
    : delta_(spec.gated_delta),
      in_(mixer_parameter(parameters, layer, "in_proj.weight")),
      core_(delta_, spec.norm_epsilon,
            {.gate = ops::NormGate::kSilu, .decays = DeltaVariant::Decays::kOneAHead, .lowest_decay = {}}, layer,
            parameters) {}

GatedDeltaNet::Parts GatedDeltaNet::parts(const Tensor& projected) const {
  const std::int64_t mixed = 2 * delta_.key_width() + delta_.value_width();
  const std::int64_t heads = delta_.num_value_heads;
  const std::int64_t gate_end = mixed + delta_.value_width();
  return {.input = {.mixed_TC = projected.narrow(1, 0, mixed),
                    .decay_TAK = projected.narrow(1, gate_end + heads, heads).unsqueeze(2),
                    .write_TA = projected.narrow(1, gate_end, heads)},
          .gate_TAV = projected.narrow(1, mixed, delta_.value_width()).unflatten(1, {heads, delta_.value_head_dim})};
}

void GatedDeltaNet::project(const Tensor& x_TH, Saved& saved) const {
  ops::linear_forward(x_TH, in_.weight, saved.allocate(Slot::kProjected));
}

void GatedDeltaNet::attend(Saved& saved, const StepContext& step) const {
  const ops::DeltaRule rule = core_.rule(parts(saved.at(Slot::kProjected)).input, step);
  ops::delta_rule_forward(rule, saved.allocate(Slot::kContext));
}

void GatedDeltaNet::forward(const Tensor& x_TH, Saved& saved, const StepContext& step, Tensor& residual_TH) {
  project(x_TH, saved);
  attend(saved, step);
  core_.project(core_.gated(saved.at(Slot::kContext), parts(saved.at(Slot::kProjected)).gate_TAV), residual_TH);
}

void GatedDeltaNet::restore(const Tensor& x_TH, Saved& saved, const StepContext& step) {
  if (saved.is_missing(Slot::kProjected)) project(x_TH, saved);
  if (saved.is_missing(Slot::kContext)) attend(saved, step);
}

void GatedDeltaNet::backward(const Tensor& dy_TH, const Tensor& x_TH, Saved& saved, const StepContext& step,
                             Tensor& dx_TH) {
  const Tensor context = saved.at(Slot::kContext);
  const Parts in = parts(saved.at(Slot::kProjected));
  const Tensor gated = core_.gated(context, in.gate_TAV);
  Tensor dcontext = at::empty_like(context);
  Tensor dcontext_flat = flat(dcontext);
  ops::linear_dgrad(dy_TH, core_.projection().weight, dcontext_flat);
  Tensor dprojected = at::empty_like(saved.at(Slot::kProjected));
  Parts gradient = parts(dprojected);
  core_.gated_backward(dcontext, context, in.gate_TAV, gradient.gate_TAV);
  {
    const ops::DeltaRule rule = core_.rule(in.input, step);
    const DeltaCore::Gradient of_rule = core_.rule_backward(dcontext, rule, gradient.input.write_TA);
    core_.input_backward(of_rule, in.input, step, gradient.input.decay_TAK, gradient.input.mixed_TC);
  }
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
  add_linear_gradient(deferred[0], deferred[1], core_.projection());
  add_linear_gradient(deferred[2], deferred[3], in_);
}

}  // namespace primus::nn
