#pragma once
// Learning rate as a function of consumed samples (semantics.md 2.5).
#include <cstdint>
#include <optional>

#include "config/experiment.hpp"

namespace primus::train {

enum class DecayStyle { kConstant, kLinear, kCosine, kInverseSquareRoot, kWsd };
enum class WsdStyle { kLinear, kCosine, kExponential, kMinusSqrt };

struct LearningRateSchedule {
  double max_rate = 0.0;
  double min_rate = 0.0;
  double warmup_init = 0.0;
  DecayStyle style = DecayStyle::kLinear;
  WsdStyle wsd_style = WsdStyle::kExponential;
  std::int64_t warmup_samples = 0;
  std::int64_t decay_samples = 0;      // where the decay ends, warm-up included
  std::int64_t wsd_decay_samples = 0;  // length of the final decay

  /// Rate of the step that begins after `num_samples`.
  double at(std::int64_t num_samples) const;
};

/// From lr, min_lr, lr_decay_*, lr_warmup_*, lr_wsd_*; iterations count as global batches, and the decay ends with the
/// run where nothing else is said.
LearningRateSchedule learning_rate_schedule(const config::Experiment& experiment, std::int64_t train_samples);

/// The same between decoupled_lr and decoupled_min_lr, for embedding and output layer; nothing without decoupled_lr.
std::optional<LearningRateSchedule> end_learning_rate_schedule(const config::Experiment& experiment,
                                                               std::int64_t train_samples);

/// Weight decay as a function of consumed samples: from `start` at the run's beginning to `end` at its end.
struct WeightDecaySchedule {
  enum class Style { kConstant, kLinear, kCosine } style = Style::kConstant;
  double start = 0.0;
  double end = 0.0;
  std::int64_t num_samples = 0;

  double at(std::int64_t samples) const;
};
WeightDecaySchedule weight_decay_schedule(const config::Experiment& experiment, std::int64_t train_samples);

}  // namespace primus::train
