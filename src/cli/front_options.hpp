#pragma once
// The options before a command: global ones and those of `direct`. Parser, help and completion read these tables.
#include <span>
#include <string>
#include <string_view>

namespace primus::cli {

enum class FrontId {
  kConfig,
  kDebug,
  kDryRun,
  kFormat,
  kVersion,
  kHelp,
  kNproc,
  kDevice,
  kEnv,
  kPatch,
  kLogFile,
  kSilent,
  kSingle,
  kNuma,
  kNoNuma,
  kScript,
};

struct FrontOption {
  FrontId id;
  std::string_view name;
  std::string_view value;  // what stands behind it; "" for a flag
  std::string_view meaning;
};

std::span<const FrontOption> global_options();
std::span<const FrontOption> direct_options();
/// Those of slurm and container that are ours; the rest is srun's and docker's.
std::span<const FrontOption> outer_options();

/// The option that the word is (or begins, for `--name=value`); nullptr if none.
const FrontOption* find_option(std::span<const FrontOption> options, std::string_view word);

std::string main_help();
std::string direct_help();
std::string slurm_help();
std::string container_help();
/// Help of a group with several commands, such as `config`.
std::string group_help(std::string_view group);

}  // namespace primus::cli
