#pragma once
// The run's folder: where the resolved experiment is left for the worker and for people.
#include <filesystem>
#include <vector>

#include "config/experiment.hpp"
#include "launch/worker_process.hpp"

namespace primus::launch {

/// Paths within workspace/work_group/user_name/exp_name.
struct RunFolder {
  std::filesystem::path path;

  std::filesystem::path experiment_json() const { return path / "experiment.json"; }
  std::filesystem::path experiment_yaml() const { return path / "experiment.yaml"; }
  std::filesystem::path log() const { return path / "log.txt"; }
  std::filesystem::path metrics() const { return path / "metrics.jsonl"; }
  std::filesystem::path loss_curve() const { return path / "loss.svg"; }
};

/// Create the folder and write the experiment, for the worker (JSON) and for people (YAML with origins). Throws
/// UserError if it cannot be written, or another run writes there now.
RunFolder make_run_folder(const config::Experiment& experiment);

/// Folder of an experiment, whether or not it exists.
RunFolder run_folder_of(const config::Experiment& experiment);

/// How workers start on this machine.
struct WorkerStart {
  std::filesystem::path program;
  std::string device;  // cpu or cuda; "": the worker chooses
  int num_processes = 1;
};

/// One command a process. A single process gets no rank in its environment: it joins nothing.
std::vector<WorkerCommand> worker_commands(const config::Experiment& experiment, const WorkerStart& start,
                                           const RunFolder& folder);

}  // namespace primus::launch
