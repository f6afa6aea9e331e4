#pragma once
// The launcher file, .primus.yaml: defaults of the launch modes. Not an experiment.
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace primus::launch {

/// An option for srun or docker, as the file or the command line gives it: no value (a bare flag), one or several.
struct Flag {
  std::string name;  // without dashes
  std::vector<std::string> values;
  int line = 0;  // of the launcher file; 0: the command line
};

/// What the `direct` section says; a text is empty where it says nothing.
struct DirectDefaults {
  std::string script;
  std::string numa;  // auto, true, false
  std::string log_file;
  std::vector<std::string> patches;
  std::vector<std::string> environment;
  std::string gpus_per_node;
  std::string nnodes;
  std::string master_addr;
  std::string master_port;
  std::map<std::string, int> lines;  // of the keys above, by name
};

enum class Switch { kUnset, kOff, kOn };

struct LauncherFile {
  std::string path;                                          // "": there is no file
  enum class State { kRead, kFaulty } state = State::kRead;  // faulty: what it should have said is unknown, and told
  Switch debug = Switch::kUnset;
  Switch dry_run = Switch::kUnset;
  DirectDefaults direct;
  std::string slurm_gpus_per_node;
  Switch slurm_debug = Switch::kUnset;
  Switch slurm_dry_run = Switch::kUnset;
  std::vector<Flag> slurm;
  std::vector<Flag> container;
  std::vector<std::string> container_environment;
};

/// Folder of launcher file and hooks: PRIMUS_RUNNER_DIR, else `runner` beside or above the running program; empty if
/// there is none. Throws ConfigError if PRIMUS_RUNNER_DIR names no folder.
std::filesystem::path runner_folder();

/// The one file that is used: `named` (an option), else ~/.primus.yaml, else .primus.yaml in the runner folder; files
/// are never merged. A file of nothing if there is none. Throws ConfigError with every fault.
LauncherFile load_launcher_file(std::string_view named);

}  // namespace primus::launch
