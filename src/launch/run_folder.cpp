#include "launch/run_folder.hpp"

#include <cstdlib>
#include <string>

#include "base/files.hpp"
#include "base/folder_lock.hpp"
#include "config/resolve.hpp"

namespace primus::launch {

RunFolder run_folder_of(const config::Experiment& experiment) {
  return {experiment.run_folder()};
}

RunFolder make_run_folder(const config::Experiment& experiment) {
  RunFolder folder = run_folder_of(experiment);
  make_folder(folder.path);
  // A run that writes here now keeps its experiment. Released at once: the worker takes the lock for the whole run.
  const FolderLock lock(folder.path);
  write_file(folder.experiment_json(), experiment.to_json());
  write_file(folder.experiment_yaml(), config::to_yaml(experiment));
  return folder;
}

namespace {

/// OpenMP's threads wait by spinning; for its default time that makes a step several times slower wherever another
/// program wants the same cores, and gains nothing measurable where none does. What the user says about it stands.
void add_openmp_patience(std::map<std::string, std::string>& environment) {
  for (const char* name : {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"}) {
    if (std::getenv(name) != nullptr || environment.contains(name)) return;
  }
  environment["GOMP_SPINCOUNT"] = "2000";
}

}  // namespace

std::vector<WorkerCommand> worker_commands(const config::Experiment& experiment, const WorkerStart& start,
                                           const RunFolder& folder) {
  std::vector<WorkerCommand> commands;
  for (int rank = 0; rank < start.num_processes; ++rank) {
    WorkerCommand command{start.program.string(), {"--experiment", folder.experiment_json().string()}, experiment.env};
    if (!start.device.empty()) command.arguments.insert(command.arguments.end(), {"--device", start.device});
    add_openmp_patience(command.environment);
    if (start.num_processes > 1) {
      command.environment["RANK"] = std::to_string(rank);
      command.environment["LOCAL_RANK"] = std::to_string(rank);
      command.environment["WORLD_SIZE"] = std::to_string(start.num_processes);
    }
    commands.push_back(std::move(command));
  }
  return commands;
}

}  // namespace primus::launch
