#pragma once
// The run's figures for TensorBoard, under Megatron's and Primus's names.
#include <memory>

#include "config/experiment.hpp"
#include "train/event_file.hpp"
#include "train/metrics.hpp"

namespace primus::train {

struct TensorBoardOptions {
  std::string folder;  // empty: no TensorBoard
  enum class Owner { kRun, kOthers } owner = Owner::kRun;
  std::int64_t interval = 1;
  std::int64_t queue_size = 1000;
  enum class Series { kNo, kYes };
  Series iteration_time = Series::kNo;  // log_timers_to_tensorboard
  Series batch_size = Series::kNo;
  Series learning_rate = Series::kYes;
  Series perplexity = Series::kNo;
  Series memory = Series::kNo;
  Series world_size = Series::kNo;
  Series loss_scale = Series::kYes;
  Series per_layer = Series::kNo;  // moe_per_layer_logging
};

/// The part of a run that is done.
struct RunPosition {
  std::int64_t iteration = 0;
  std::int64_t consumed_samples = 0;
};

/// tensorboard_dir; the run folder's `tensorboard` where none is named.
std::string tensorboard_folder(const config::Experiment& experiment);

/// The keys beside it.
TensorBoardOptions tensorboard_options(const config::Experiment& experiment);

class TensorBoard {
 public:
  /// Goes on after `position`, and begins with the experiment as text. Throws UserError.
  TensorBoard(const TensorBoardOptions& options, const std::string& experiment_text, const RunPosition& position);

  bool is_due(std::int64_t iteration) const { return iteration % options_.interval == 0; }
  /// A record of one step.
  void step(const IterationRecord& record);
  void evaluation(const EvaluationRecord& record);
  /// What is held back goes to the file. False if the system refuses it.
  bool flush() { return file_.flush(); }

 private:
  TensorBoardOptions options_;
  EventFile file_;
};

}  // namespace primus::train
