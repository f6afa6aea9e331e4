#pragma once
// From the words before a command to what they mean: the launcher file's defaults, and the commands that slurm and
// container would start.
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "cli/commands.hpp"
#include "cli/run_files.hpp"
#include "launch/launcher_file.hpp"

namespace primus::cli {

/// A mode that starts this program again elsewhere, with its words up to `--`.
struct OuterMode {
  std::string mode;
  std::vector<std::string> words;
  std::size_t inner = 0;  // where what it starts begins in the command line
};

/// The whole command line, as far as it has been read.
struct FrontWords {
  std::span<const std::string> words;
  std::string launcher_file;  // of --config; "": none
  std::vector<OuterMode> outers;
};

/// debug and dry_run of the file, which hold for every command.
void apply_switches(const launch::LauncherFile& file, const FrontWords& front, LaunchOptions& launch);

/// The file's `direct` section, under what the command line says; then exports what the rest of the program and every
/// script read from the environment.
void apply_direct_defaults(const launch::LauncherFile& file, LaunchOptions& launch);

/// The words of slurm and container go to launch.outer, the size of slurm's world to launch.world. Throws ConfigError
/// with every fault.
void read_outer_modes(const launch::LauncherFile& file, const FrontWords& front, LaunchOptions& launch);

/// A command that slurm or container would start, for people.
struct OuterText {
  std::string mode;
  std::string command;
  std::vector<std::string> remarks;
};

/// The commands; a container sees `files` and what this program needs of its own.
std::vector<OuterText> outer_texts(std::span<const OuterPlan> plans, std::span<const RunFile> files);

}  // namespace primus::cli
