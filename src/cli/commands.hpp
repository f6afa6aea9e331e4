#pragma once
// The commands behind the front: each takes the words after its name and returns the exit code.
#include <map>
#include <optional>
#include <span>
#include <string>

namespace primus::cli {

enum class Action { kStart, kDryRun };

/// How much is told: --debug adds the worker's command here and, there, what it was started with.
enum class Detail { kUsual, kDebug };

/// What global options and launch mode say about a run.
struct LaunchOptions {
  Action action = Action::kStart;
  Detail detail = Detail::kUsual;
  std::optional<int> num_processes;
  std::string device;  // "": the command may say it
  std::map<std::string, std::string> environment;
};

/// train pretrain: resolve, then print the plan or start the worker.
int train_command(std::span<const std::string> words, const LaunchOptions& launch);

/// data prepare: text files to .bin and .idx.
int data_command(std::span<const std::string> words, Action action);

/// view loss: the loss curve of a run.
int view_command(std::span<const std::string> words, Action action);

}  // namespace primus::cli
