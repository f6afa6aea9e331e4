#pragma once
// When and where a run saves, and what.
#include <optional>
#include <string>

#include "checkpoint/checkpoint_root.hpp"
#include "config/experiment.hpp"
#include "train/state_tensors.hpp"

namespace primus::train {

enum class Generators { kLeftOut, kIncluded };

/// Checkpoints of which only the newest stays, beside the others (non_persistent_save_interval).
struct ShortLivedOptions {
  std::string folder;
  std::int64_t interval = 0;
};

struct SaveOptions {
  std::optional<std::string> folder;  // absent: nothing is saved
  std::int64_t interval = 0;
  checkpoint::Retention retention;
  enum class Writing { kInStep, kBesideTraining } writing = Writing::kInStep;
  enum class AfterLastStep { kSave, kDoNot } after_last_step = AfterLastStep::kSave;
  OptimizerState optimizer = OptimizerState::kIncluded;
  Generators generators = Generators::kIncluded;
  std::string tokenizer;  // files that go along; empty: none
  std::optional<ShortLivedOptions> short_lived;
};

/// The options of the saver of short-lived checkpoints; it saves nothing where there are none.
SaveOptions short_lived_only(const SaveOptions& options);

SaveOptions save_options(const config::Experiment& experiment);

}  // namespace primus::train
