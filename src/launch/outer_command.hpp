#pragma once
// The commands that slurm and container would start: built and checked, not yet run.
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.hpp"
#include "launch/environment.hpp"
#include "launch/launcher_file.hpp"

namespace primus::launch {

/// A command line for people and, later, to run.
struct OuterCommand {
  std::vector<std::string> words;
  std::vector<std::string> remarks;  // what is true of it beside its words
};

/// What stands between `slurm` and its `--`.
struct SlurmRequest {
  std::string starter = "srun";  // or sbatch
  std::vector<Flag> flags;       // as written, without what the launcher file adds
  int num_nodes = 1;
  int devices_per_node = 8;
};

/// Read the words behind `slurm`; flags of the file stand where the words do not say them. Throws ConfigError with
/// every fault.
SlurmRequest read_slurm(std::span<const std::string> words, const LauncherFile& file, const Variables& environment);

/// The srun or sbatch command that starts `inner` on every node.
OuterCommand slurm_command(const SlurmRequest& request, const std::vector<std::string>& inner);

/// "NNODES=4" and its kin, as every node has them; what only the node knows stands as a name.
std::vector<std::string> node_variables(const SlurmRequest& request);

/// What stands between `container` and its `--`.
struct ContainerRequest {
  std::string image;
  std::vector<Flag> options;
  std::vector<std::string> environment;  // NAME=value, for `direct --env` inside
  std::vector<std::string> no_effect;    // options that do nothing here, with the reason
};

/// Read the words behind `container`, laid over the file's options. Throws ConfigError with every fault.
ContainerRequest read_container(std::span<const std::string> words, const LauncherFile& file,
                                const Variables& environment);

/// The docker or podman command that runs `inner` in the image, in the same working folder. What the run needs of this
/// machine is mounted in the same places.
OuterCommand container_command(const ContainerRequest& request, const std::vector<std::string>& inner,
                               std::span<const std::filesystem::path> needed);

/// Words of a command line as flags: `--a=b`, `--a b`, `-a b`, `-ab` for one letter; a word that is no flag and follows
/// none is a fault, added to `problems`.
std::vector<Flag> read_flags(std::span<const std::string> words, std::string_view mode, std::vector<Problem>& problems);

}  // namespace primus::launch
