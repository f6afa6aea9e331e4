#include "engine/adamw_optimizer.hpp"

#include "ops/adamw/adamw.hpp"
#include "ops/allocator.hpp"

namespace primus::engine {

AdamWOptimizer::AdamWOptimizer(nn::ParameterStore& parameters, const model::NumericPolicy& policy,
                               const AdamWSettings& settings)
    : settings_(settings) {
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

void AdamWOptimizer::step(const StepRates& rates) {
  ++num_steps_;
  ops::AdamWOptions options{.learning_rate = rates.learning_rate,
                            .beta1 = settings_.beta1,
                            .beta2 = settings_.beta2,
                            .epsilon = settings_.epsilon,
                            .step = num_steps_,
                            .grad_scale = rates.grad_scale};
  for (State& state : states_) {
    options.weight_decay = state.parameter->descriptor.decay == model::Decay::kYes ? rates.weight_decay : 0.0;
    ops::adamw_step(options, state.parameter->main_grad, state.master, state.exp_avg, state.exp_avg_sq,
                    state.parameter->weight);
  }
}

}  // namespace primus::engine
