#include "engine/adamw_optimizer.hpp"

#include "ops/allocator.hpp"

namespace primus::engine {
AdamWOptimizer::AdamWOptimizer(nn::ParameterStore& parameters, const model::NumericPolicy& policy,
                               const AdamWSettings& settings)
    : settings_(settings), gate_(ops::make_update_gate(parameters.device())) {
  const ops::MemoryScope scope(ops::MemoryTag::kOptimizer);
  for (const auto& parameter : parameters.all()) {
    if (!parameter->main_grad.defined()) continue;
    State state{parameter.get(), parameter->weight, {}, {}};
    if (policy.has_master_copy()) state.master = parameter->weight.to(ops::to_aten(policy.master));
    state.exp_avg =
        at::zeros(parameter->weight.sizes(), parameter->weight.options().dtype(ops::to_aten(policy.moments)));
    state.exp_avg_sq = at::zeros_like(state.exp_avg);
    states_.push_back(std::move(state));
  }
}

void AdamWOptimizer::set_rates(const StepRates& rates) {
  std::array<double, 2> values = {rates.learning_rate, rates.weight_decay};
  gate_.rates_2.copy_(at::from_blob(values.data(), {2}, at::kDouble));
}

void AdamWOptimizer::step(const at::Tensor& loss_sum_1, const at::Tensor& square_sum_1, double clip_grad) {
  ops::close_gate(loss_sum_1, square_sum_1, clip_grad, gate_);
  for (State& state : states_) {
    const bool decays = state.parameter->descriptor.decay == model::Decay::kYes;
    ops::adamw_step(settings_, gate_, decays ? ops::Decays::kYes : ops::Decays::kNo, state.parameter->main_grad,
                    state.master, state.exp_avg, state.exp_avg_sq, state.parameter->weight);
  }
}

}  // namespace primus::engine
