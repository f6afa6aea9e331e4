#include "launch/run_folder.hpp"

#include <string>

#include "base/files.hpp"
#include "config/resolve.hpp"

namespace primus::launch {

RunFolder run_folder_of(const config::Experiment& experiment) {
  return {experiment.run_folder()};
}

RunFolder make_run_folder(const config::Experiment& experiment) {
  RunFolder folder = run_folder_of(experiment);
  make_folder(folder.path);
  write_file(folder.experiment_json(), experiment.to_json());
  write_file(folder.experiment_yaml(), config::to_yaml(experiment));
  return folder;
}

std::vector<WorkerCommand> worker_commands(const config::Experiment& experiment, const std::filesystem::path& worker,
                                           const RunFolder& folder, int num_processes) {
  std::vector<WorkerCommand> commands;
  for (int rank = 0; rank < num_processes; ++rank) {
    WorkerCommand command{worker.string(), {"--experiment", folder.experiment_json().string()}, experiment.env};
    if (num_processes > 1) {
      command.environment["RANK"] = std::to_string(rank);
      command.environment["LOCAL_RANK"] = std::to_string(rank);
      command.environment["WORLD_SIZE"] = std::to_string(num_processes);
    }
    commands.push_back(std::move(command));
  }
  return commands;
}

}  // namespace primus::launch
