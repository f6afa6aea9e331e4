#pragma once
// AdamW over a parameter store: fp32 master weights and moments, Megatron's decay rule from the descriptors.
#include "nn/parameter.hpp"

namespace primus::engine {

struct AdamWSettings {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
};

/// What changes from step to step.
struct StepRates {
  double learning_rate = 0.0;
  double weight_decay = 0.0;
  double grad_scale = 1.0;  // clipping
};

class AdamWOptimizer {
 public:
  /// Allocates master copies (where the weights' type is narrower) and moments for every trained parameter.
  AdamWOptimizer(nn::ParameterStore& parameters, const model::NumericPolicy& policy, const AdamWSettings& settings);

  /// One update of every trained parameter from its main gradient.
  void step(const StepRates& rates);

  /// Updates done so far; the moments' bias correction depends on it.
  std::int64_t num_steps() const { return num_steps_; }

 private:
  struct State {
    nn::Parameter* parameter;
    at::Tensor master;  // the weight itself where no narrower copy exists
    at::Tensor exp_avg;
    at::Tensor exp_avg_sq;
  };

  AdamWSettings settings_;
  std::vector<State> states_;
  std::int64_t num_steps_ = 0;
};

}  // namespace primus::engine
