#pragma once
// Where a run's records go: console lines, a progress bar on a terminal, metrics.jsonl and log.txt in the run's folder.
#include <cstdio>
#include <fstream>
#include <string>

#include "base/folder_lock.hpp"
#include "data/ngram.hpp"
#include "train/metrics.hpp"
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
  void evaluation(const EvaluationRecord& record);
  /// What counting models reach on the held-out text: levels of the loss curve.
  void baseline(const data::NgramBaseline& baseline);
  /// Redraw the bar; without a terminal this does nothing.
  void progress(std::int64_t done, std::int64_t total, double loss, double seconds_left);

 private:
  void write_json(const std::string& line);
  void clear_bar();

  FolderLock lock_;
  std::ofstream metrics_;
  std::ofstream log_;
  RunOptions::PerLayerLog per_layer_;
  bool has_terminal_;
  bool bar_is_drawn_ = false;
};

}  // namespace primus::train
