#pragma once
// Where a run's records go: console lines, a progress bar on a terminal, metrics.jsonl and log.txt in the run's folder.
#include <cstdio>
#include <fstream>
#include <functional>
#include <memory>
#include <string>

#include "base/folder_lock.hpp"
#include "data/ngram.hpp"
#include "train/metrics.hpp"
#include "train/mlflow_options.hpp"
#include "train/options.hpp"

namespace primus::train {

class Reporter {
 public:
  /// Starts the run's files anew, metrics.jsonl and log.txt, or goes on after `last_iteration`: later records of an
  /// ended process are dropped. Throws UserError if they cannot be written, or if another run writes there now.
  Reporter(const std::string& run_folder, RunOptions::PerLayerLog per_layer, std::int64_t last_iteration = 0);
  ~Reporter();

  void message(const std::string& text);
  /// The same on standard error: what nobody should overlook.
  void alarm(const std::string& text);
  /// For the log file alone: what the console is told in another way.
  void log(const std::string& text);
  void iteration(const IterationRecord& record);
  /// From now on to TensorBoard, too. `experiment`: its text. Throws UserError.
  void open_tensorboard(const TensorBoardOptions& options, const std::string& experiment, const RunPosition& position);
  /// And to MLflow's files, unless disable_mlflow says no; goes on after `last_iteration`. Throws UserError.
  void open_mlflow(const config::Experiment& experiment, std::int64_t last_iteration);
  /// Copies what mlflow_upload_logs and mlflow_upload_traces ask for, and ends the run there.
  void close_mlflow(MlflowRun::Status status);
  /// Is a record of this step alone wanted?
  bool wants_step(std::int64_t iteration) const { return tensorboard_ && tensorboard_->is_due(iteration); }
  void step(const IterationRecord& record);
  void evaluation(const EvaluationRecord& record);
  /// What counting models reach on the held-out text: levels of the loss curve.
  void baseline(const data::NgramBaseline& baseline);
  /// Redraw the bar; without a terminal this does nothing.
  void progress(std::int64_t done, std::int64_t total, double loss, double seconds_left);

 private:
  void write_json(const std::string& line);
  /// A disk that refuses is told of and is no reason to end.
  void to_mlflow(const std::function<void(MlflowRun&)>& write);
  /// Records that the system refuses are told of once, and again when it had taken some in between: no reason to end.
  void tell_lost(const std::string& what);
  void clear_bar();

  std::string run_folder_;
  FolderLock lock_;
  std::ofstream metrics_;
  std::ofstream log_;
  std::unique_ptr<TensorBoard> tensorboard_;
  std::unique_ptr<MlflowRun> mlflow_;
  std::optional<MlflowOptions> mlflow_options_;
  bool has_lost_records_ = false;
  RunOptions::PerLayerLog per_layer_;
  bool has_terminal_;
  bool bar_is_drawn_ = false;
};

}  // namespace primus::train
