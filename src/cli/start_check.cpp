#include "cli/start_check.hpp"

#include <utility>
#include <vector>

#include "base/error.hpp"
#include "checkpoint/start_folder.hpp"
#include "config/rules.hpp"

namespace primus::cli {

void check_start(const config::Experiment& experiment, const std::string& experiment_file) {
  try {
    checkpoint::find_start_folder(experiment);
  } catch (const ConfigError& error) {
    std::vector<Problem> problems = error.problems();
    for (Problem& problem : problems) {
      const Problem place = config::problem_at(experiment, problem.key, experiment_file);
      problem.file = place.file;
      problem.line = place.line;
      problem.key = place.key;
    }
    throw ConfigError(std::move(problems));
  }
}

StartUse look_at_start(const config::Experiment& experiment) {
  try {
    const auto start = checkpoint::find_start_folder(experiment);
    if (!start) return {};
    return {start->key, start->candidates.empty() ? start->folder : start->candidates.front().string(), ""};
  } catch (const ConfigError& error) {
    return {error.problems().front().key, "", to_text(error.problems().front())};
  }
}

}  // namespace primus::cli
