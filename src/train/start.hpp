#pragma once
// Where a run starts: random weights, somebody's weights, or a checkpoint that it goes on from.
#include <string>

#include "engine/step_runner.hpp"
#include "train/initial_weights.hpp"
#include "train/options.hpp"

namespace primus::train {

/// Everything of a run that a checkpoint changes.
struct RunState {
  nn::ParameterStore& parameters;
  engine::Optimizer& optimizer;
  engine::StepRunner& runner;
  RunOptions& options;  // its schedules, with use_checkpoint_opt_param_scheduler
};

/// The numbers that a run goes on from.
struct Position {
  std::int64_t iteration = 0;
  std::int64_t consumed_samples = 0;
  std::int64_t schedule_samples = 0;
  checkpoint::TrainingState::LogInterval log_interval;
};

struct Start {
  std::string message;  // what was done, for the log; empty: random weights, as nothing else was asked for
  Position position;
  enum class OwnRun { kNo, kContinued } own_run = OwnRun::kNo;  // are its records in the run's folder ours?
};

/// auto_continue_train, load, pretrained_checkpoint, finetune and the keys beside them as Megatron means them; the
/// run's own checkpoints come first (decision 20). A damaged checkpoint is named and the one before it taken, unless
/// on_damaged_checkpoint says stop. Throws ConfigError for one that does not fit the run, UserError for damage.
Start load_start(const config::Experiment& experiment, const model::ModelSpec& spec, RunState run);

}  // namespace primus::train
