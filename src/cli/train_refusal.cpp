#include "cli/train_refusal.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "model/architecture.hpp"

namespace primus::cli {
namespace {

using config::ResolveRequest;
using model::ArchitecturePart;

/// Problems name keys by their place: `--swiglu`, `modules.pre_trainer.overrides.swiglu`.
bool is_about(const Problem& problem, const std::string& key) {
  return problem.key == key || problem.key.ends_with("." + key) || problem.key == "--" + key;
}

std::vector<Problem> with_parts(std::vector<Problem> problems, const config::Experiment& experiment,
                                const std::string& file) {
  for (const ArchitecturePart& part : model::unsupported_parts(experiment)) {
    const auto known = std::find_if(problems.begin(), problems.end(),
                                    [&](const Problem& problem) { return is_about(problem, part.key); });
    if (known != problems.end()) {
      known->message = fmt::format("this model has {}: {}", part.name, known->message);
      continue;
    }
    Problem problem = config::problem_at(experiment, part.key, file);
    problem.message = fmt::format("this model has {}: planned, not built yet", part.name);
    problem.found = config::to_text(experiment.setting(part.key).value);
    problems.push_back(std::move(problem));
  }
  return problems;
}

/// The same experiment as a plan, which may hold what a train may not and needs no processes; none if it has other
/// faults.
std::optional<config::Resolution> as_plan(ResolveRequest request) {
  request.purpose = config::Purpose::kPlan;
  request.world.reset();
  try {
    return config::resolve(request);
  } catch (const ConfigError&) {
    return std::nullopt;
  }
}

}  // namespace

config::Resolution resolve_naming_parts(const ResolveRequest& request) {
  if (request.purpose == config::Purpose::kPlan) return config::resolve(request);
  const std::string file = request.file.lexically_normal().string();
  std::optional<config::Resolution> resolution;
  std::vector<Problem> problems;
  try {
    resolution = config::resolve(request);
    problems = with_parts({}, resolution->experiment, file);
  } catch (const ConfigError& error) {
    const std::optional<config::Resolution> plan = as_plan(request);
    problems = plan ? with_parts(error.problems(), plan->experiment, file) : error.problems();
  }
  if (!problems.empty()) throw ConfigError(std::move(problems));
  return *std::move(resolution);
}

}  // namespace primus::cli
