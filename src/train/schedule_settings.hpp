#pragma once
// Learning rate and weight decay over the run as text by key: what a checkpoint remembers of them.
#include <map>
#include <string>

#include "train/learning_rate.hpp"

namespace primus::train {

/// All that StepRates are made of.
struct Schedules {
  LearningRateSchedule learning_rate;
  std::optional<LearningRateSchedule> end_learning_rate;  // of embedding and output layer, if another
  WeightDecaySchedule weight_decay;
};

using ScheduleSettings = std::map<std::string, std::string>;

/// Numbers are written so that they read back to the same bits.
ScheduleSettings to_settings(const Schedules& schedules);

/// Throws UserError for a setting that is missing or cannot be read.
Schedules schedules_from(const ScheduleSettings& settings);

}  // namespace primus::train
