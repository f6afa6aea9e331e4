#pragma once
// What the loop needs of an experiment, as plain values.
#include <optional>
#include <string>

#include "data/data_source.hpp"
#include "engine/step_runner.hpp"
#include "ops/device.hpp"
#include "ops/kernel_families.hpp"
#include "ops/zone.hpp"
#include "train/batch_sizes.hpp"
#include "train/learning_rate.hpp"
#include "train/save_options.hpp"
#include "train/tensorboard.hpp"

namespace primus::train {

/// Stop the run, or leave the step out, when loss or gradient are not finite (check_for_nan_in_loss_and_grad).
enum class OnNonFinite { kStop, kSkip };

/// Train, or evaluate the weights as they are and end.
enum class RunKind { kTraining, kEvaluation };

/// Are values that jump told?
enum class Watch { kOff, kOn };

/// How much held-out data an evaluation takes, and from when on there is one.
struct EvaluationOptions {
  std::int64_t global_batch_size = 0;
  std::int64_t micro_batch_size = 0;
  std::int64_t first_iteration = 0;
  enum class Extent { kBatches, kWholeSplit } extent = Extent::kBatches;
};

/// A held-out data set that is evaluated by itself (multiple_validation_sets).
struct ValidationSet {
  std::string name;
  std::string prefix;
};

struct RunOptions {
  std::string run_folder;
  std::uint64_t seed = 1234;
  std::int64_t train_iters = 0;
  std::int64_t global_batch_size = 0;
  std::int64_t micro_batch_size = 0;
  std::int64_t seq_length = 0;
  BatchSizes batch_sizes;                       // of the steps; global_batch_size is the last
  std::vector<std::int64_t> passed_over;        // steps, counted from 0, whose data is left out
  std::optional<std::string> rejected_results;  // file that lists rejected results; it adds to passed_over
  std::vector<std::int64_t> phases;             // last steps of phases, each with data of its own, ascending
  RunKind kind = RunKind::kTraining;
  EvaluationOptions evaluation;
  std::vector<ValidationSet> validation_sets;  // empty: all held-out data as one
  Watch loss_watch = Watch::kOff;
  Watch gradient_watch = Watch::kOff;
  std::optional<std::int64_t> eval_interval;  // absent: no evaluation
  std::int64_t eval_iters = 0;
  std::optional<std::int64_t> exit_interval;
  std::optional<double> exit_after_s;  // exit_duration_in_mins
  std::int64_t log_interval = 1;
  std::int64_t log_avg_skip_iterations = 0;  // left out of averages: the first steps warm caches up
  OnNonFinite on_nonfinite = OnNonFinite::kStop;
  WeightDecaySchedule weight_decay;
  /// On a GPU: is a step's result read before the next step is begun, or after?
  enum class ReadBack { kAtOnce, kOneStepLater } read_back = ReadBack::kAtOnce;
  enum class LogNorm { kNo, kYes } params_norm = LogNorm::kNo;
  enum class LogZeros { kNo, kYes } gradient_zeros = LogZeros::kNo;
  enum class LogEnergy { kNo, kYes } energy = LogEnergy::kNo;
  enum class LogLogits { kNo, kYes } largest_logit = LogLogits::kNo;
  enum class LogProgress { kNo, kYes } progress_file = LogProgress::kNo;
  std::optional<std::int64_t> memory_interval;  // of lines about memory
  enum class PerLayerLog { kNo, kYes } per_layer_log = PerLayerLog::kNo;
  ops::Determinism determinism = ops::Determinism::kAnyOrder;
  ops::KernelFamilies kernels;
  ops::ZoneTimers zone_timers = ops::ZoneTimers::kOff;  // timing_log_level > 0: a table by op at the end
  model::OptimizerSpec optimizer;
  engine::StepSettings step;
  LearningRateSchedule learning_rate;
  std::optional<LearningRateSchedule> end_learning_rate;  // of embedding and output layer, if another
  enum class Documents { kNotMarked, kByEod } documents = Documents::kNotMarked;  // what prediction depths may cross
  data::DataOptions data;
  SaveOptions save;
  TensorBoardOptions tensorboard;

  /// What schedules count: a batch that is rounded down moves them slower (Megatron does it so).
  std::int64_t train_samples() const {
    return batch_sizes.is_constant() ? train_iters * global_batch_size : batch_sizes.samples_of(train_iters);
  }
};

RunOptions run_options(const config::Experiment& experiment);

}  // namespace primus::train
