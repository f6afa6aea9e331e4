#pragma once
// AdamW over a parameter store: fp32 master weights and moments, Megatron's decay rule from the descriptors.
#include "nn/parameter.hpp"
#include "ops/adamw/adamw.hpp"

namespace primus::engine {

using AdamWSettings = ops::AdamWOptions;

/// What changes from step to step.
struct StepRates {
  double learning_rate = 0.0;
  double weight_decay = 0.0;
};

class AdamWOptimizer {
 public:
  /// Allocates master copies (where the weights' type is narrower) and moments for every trained parameter.
  AdamWOptimizer(nn::ParameterStore& parameters, const model::NumericPolicy& policy, const AdamWSettings& settings);

  /// For the steps to come. Waits for the device, so call it before a step's work is begun.
  void set_rates(const StepRates& rates);

  /// One update of every trained parameter from its main gradient, unless the loss or the gradients' norm is not
  /// finite: that, and clipping to the norm `clip_grad` (0: none), is decided on the parameters' device (decision 16).
  /// Both sums: fp64, there.
  void step(const at::Tensor& loss_sum_1, const at::Tensor& square_sum_1, double clip_grad);

  /// What the last step decided.
  const ops::UpdateGate& gate() const { return gate_; }

  /// Updates done so far; the moments' bias correction depends on it. Waits for the device.
  std::int64_t num_steps() const { return gate_.num_steps_1.item<std::int64_t>(); }

 private:
  struct State {
    nn::Parameter* parameter;
    at::Tensor master;  // the weight itself where no narrower copy exists
    at::Tensor exp_avg;
    at::Tensor exp_avg_sq;
  };

  AdamWSettings settings_;
  ops::UpdateGate gate_;
  std::vector<State> states_;
};

}  // namespace primus::engine
