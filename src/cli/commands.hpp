#pragma once
// The commands behind the front, in one table: dispatch, help and completion read it.
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.hpp"
#include "cli/arguments.hpp"
#include "cli/messages.hpp"
#include "config/rules.hpp"
#include "launch/outer_command.hpp"
#include "launch/output_copy.hpp"

namespace primus::cli {

enum class Action { kStart, kDryRun };

/// How much is told: --debug adds the worker's command here and, there, what it was started with.
enum class Detail { kUsual, kDebug };

/// A mode that starts this program elsewhere, with its options read and checked.
struct OuterPlan {
  std::string mode;  // slurm, container
  launch::SlurmRequest slurm;
  launch::ContainerRequest container;
  std::vector<std::string> inner;  // what it starts: this program and its words
};

/// What global options, launcher file and launch mode say about a run.
struct LaunchOptions {
  Action action = Action::kStart;
  Detail detail = Detail::kUsual;
  Format format = Format::kText;
  std::optional<int> num_processes;
  std::string device;                              // "": the command may say it
  std::map<std::string, std::string> environment;  // of --env
  std::vector<std::string> patches;
  std::map<std::string, Problem> places;  // of variables and patches by name: file, line and key, where known
  std::string log_file;
  launch::Show show = launch::Show::kAll;
  std::string launcher_file;                // "": none
  std::vector<config::Note> no_effect;      // options that do nothing here, and why
  std::vector<OuterPlan> outer;             // outermost first; empty: the command runs here
  std::optional<config::WorldSize> world;   // slurm's nodes times their devices
  std::vector<std::string> words;           // the command with its name, for hooks
  std::vector<std::string> variable_files;  // of --env
  std::vector<Problem> problems;            // of the words before the command, told with the command's own
  launch::OutputCopy* output = nullptr;
};

enum class Starts { kNothing, kWorkers };

/// One command: `group name`, or `group` alone.
struct Command {
  std::string_view group;
  std::string_view name;
  std::string_view synopsis;
  std::string_view meaning;
  Starts starts = Starts::kNothing;
  Rest rest = Rest::kRefuse;           // kReturn: overrides
  std::string_view positionals;        // what words without dashes are: "", "experiment", "key", "shell"
  void (*add_options)(CLI::App& app);  // for completion
  int (*run)(std::span<const std::string> words, const LaunchOptions& launch);
};

std::span<const Command> commands();

/// The command of that name; nullptr if there is none.
const Command* find_command(std::string_view group, std::string_view name);

extern const Command kTrainPretrain;
extern const Command kDataPrepare;
extern const Command kDataTrainTokenizer;
extern const Command kDataEncode;
extern const Command kDataDecode;
extern const Command kDataInfo;
extern const Command kDataVerify;
extern const Command kDataMerge;
extern const Command kDataShuffle;
extern const Command kCheckpointImport;
extern const Command kCheckpointExport;
extern const Command kCheckpointUpcycle;
extern const Command kCheckpointInfo;
extern const Command kCheckpointVerify;
extern const Command kCheckpointDiff;
extern const Command kCheckpointAverage;
extern const Command kCheckpointPrune;
extern const Command kCheckpointLogits;
extern const Command kProjectionMemory;
extern const Command kProjectionCompare;
extern const Command kViewLoss;
extern const Command kViewPipeline;
extern const Command kViewLayout;
extern const Command kViewMemory;
extern const Command kConfigShow;
extern const Command kConfigDiff;
extern const Command kConfigParams;
extern const Command kConfigKeys;
extern const Command kConfigCheck;
extern const Command kConfigExplain;
extern const Command kBenchmarkOps;
extern const Command kBenchmarkStep;
extern const Command kCompletion;

}  // namespace primus::cli
