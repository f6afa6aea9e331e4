#pragma once
// When and where a run saves, and what.
#include <optional>
#include <string>

#include "checkpoint/checkpoint_root.hpp"
#include "config/experiment.hpp"
#include "train/state_tensors.hpp"

namespace primus::train {

enum class Generators { kLeftOut, kIncluded };

struct SaveOptions {
  std::optional<std::string> folder;  // absent: nothing is saved
  std::int64_t interval = 0;
  checkpoint::Retention retention;
  enum class Writing { kInStep, kBesideTraining } writing = Writing::kInStep;
  enum class AfterLastStep { kSave, kDoNot } after_last_step = AfterLastStep::kSave;
  OptimizerState optimizer = OptimizerState::kIncluded;
  Generators generators = Generators::kIncluded;
  std::string tokenizer;  // files that go along; empty: none
};

SaveOptions save_options(const config::Experiment& experiment);

}  // namespace primus::train
