#pragma once
// From an experiment file and overrides to a resolved, typed and checked Experiment.
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/experiment.hpp"
#include "config/rules.hpp"

namespace primus::config {

struct ResolveRequest {
  std::filesystem::path file;
  std::vector<std::string> overrides;  // the words behind the command
  Purpose purpose = Purpose::kPlan;
  std::optional<WorldSize> world;  // none: the smallest that is legal
  // What is wrong with the variables of the experiment's env, each problem with a variable's name as its key; null:
  // nothing is checked.
  std::vector<Problem> (*check_variables)(const std::map<std::string, std::string>& variables) = nullptr;
};

/// A resolved experiment with what the user should be told about it.
struct Resolution {
  Experiment experiment;
  WorldSize world;
  std::vector<Note> notes;
  std::vector<PlannedUse> planned;   // what stops a real train
  std::vector<PlannedUse> yielding;  // inherited ways of computing that are not built: a train goes on without them
  std::vector<Note> no_effect;       // keys that the user wrote and that mean nothing here
  // What names and makes up the run beside its settings, as written: exp_name, config, model, env.NAME and the like.
  std::map<std::string, Setting, std::less<>> names;
  std::vector<std::string> files;  // every file that was read: the experiment, what it extends, the presets
};

/// Merge (module preset < model preset < experiment < command line), type, check and apply the rules.
/// Throws ConfigError with every problem found; for a train also when a planned key is in use.
Resolution resolve(const ResolveRequest& request);

/// How the text of to_yaml() begins.
inline constexpr std::string_view kResolvedHeading = "# Resolved experiment: ";

/// The experiment as YAML that resolves to the same, each setting with its origin in a comment.
std::string to_yaml(const Experiment& experiment);

}  // namespace primus::config
