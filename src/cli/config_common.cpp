#include "cli/config_common.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/error.hpp"
#include "base/text.hpp"
#include "cli/app.hpp"
#include "cli/gathered.hpp"
#include "cli/train_refusal.hpp"
#include "config/loader.hpp"
#include "config/merge.hpp"
#include "config/overrides.hpp"
#include "config/parse.hpp"
#include "launch/environment.hpp"
#include "launch/world.hpp"

namespace primus::cli {
namespace {

/// Read here, and not by the option itself, so that a wrong one does not hide what is wrong with the experiment.
std::optional<std::int64_t> world_of_option(const std::string& text) {
  if (text.empty()) return std::nullopt;
  const auto count = config::parse_int(text);
  if (count && *count >= 1) return *count;
  throw ConfigError({{.file = "command line",
                      .key = "--world-size",
                      .message = "not a number of processes",
                      .expected = "integer >= 1",
                      .found = fmt::format("'{}'", text)}});
}

}  // namespace

void add_config_option(CLI::App& app, ReadOptions& options) {
  app.add_option("--config,--exp", options.config, "Experiment file")->required()->type_name("FILE.yaml");
}

void add_world_option(CLI::App& app, std::string& world_size) {
  app.add_option("--world-size,--world_size", world_size, "Processes (default: the environment's, or the fewest)")
      ->type_name("N");
}

void add_format_option(CLI::App& app, std::string& format, const std::vector<std::string>& names) {
  format = names.front();
  add_choice(app, "--format", format, "How to answer", names);
}

std::optional<config::WorldSize> wanted_world(const std::string& world_size, config::Purpose purpose,
                                              const LaunchOptions& launch) {
  const std::optional<std::int64_t> wanted = world_of_option(world_size);
  const bool contradicts = wanted && launch.num_processes && *launch.num_processes != *wanted;
  if (contradicts) {
    throw ConfigError({{.file = "command line",
                        .key = "--world-size",
                        .message = fmt::format("contradicts --nproc {}", *launch.num_processes),
                        .expected = "one number of processes",
                        .found = world_size}});
  }
  if (wanted) return config::WorldSize{*wanted, "--world-size"};
  if (launch.num_processes) return config::WorldSize{*launch.num_processes, "--nproc"};
  if (launch.world) return launch.world;
  try {
    return launch::world_of_environment(purpose);
  } catch (const ConfigError& error) {
    std::vector<Problem> problems = error.problems();
    for (Problem& problem : problems) {
      // What stood in for a variable is named instead of it.
      const auto place = launch.places.find(problem.key);
      if (place != launch.places.end() && place->second.file == "environment") problem.key = place->second.key;
    }
    throw ConfigError(std::move(problems));
  }
}

void check_environment(const LaunchOptions& launch) {
  launch::Variables environment = launch::current_environment();
  const launch::Variables of_slurm = launch::slurm_variables(environment);
  for (const auto& [name, value] : of_slurm) environment[name] = value;
  std::vector<Problem> problems = launch::problems_of_variables(environment);
  for (Problem& problem : problems) {
    problem.file = "environment";
    if (of_slurm.contains(problem.key)) problem.key = launch::slurm_name(problem.key);
    const auto place = launch.places.find(problem.key);
    if (place == launch.places.end()) continue;
    problem.file = place->second.file;
    problem.line = place->second.line;
    problem.key = place->second.key;
  }
  if (!problems.empty()) throw ConfigError(std::move(problems));
}

config::Resolution resolve_here(config::ResolveRequest request, const std::string& world_size,
                                const LaunchOptions& launch) {
  Gathered gathered;
  gathered.step([&] { check_environment(launch); });
  gathered.step([&] { request.world = wanted_world(world_size, config::Purpose::kPlan, launch); });
  std::optional<config::Resolution> resolution;
  gathered.step([&] {
    request.check_variables = &launch::problems_of_variables;
    resolution = resolve_naming_parts(request);
  });
  gathered.raise();
  return *std::move(resolution);
}

config::Resolution read_experiment(const std::string& file, const ReadOptions& options, const LaunchOptions& launch) {
  return resolve_here({file, options.overrides, config::Purpose::kPlan, {}}, options.world_size, launch);
}

config::Experiment read_preset(const std::string& name, std::span<const std::string> overrides) {
  constexpr std::string_view kModule = "pre_trainer.yaml";
  std::vector<Problem> problems;
  config::SettingMerger merger(problems);
  const Problem place{.file = "command line", .key = "--preset"};
  const config::Node module = config::load_preset({"modules", "megatron", std::string(kModule), place}, problems);
  merger.add_layer(module, config::Layer::kModulePreset, "");
  const config::Node model = config::load_preset({"models", "megatron", name, place}, problems);
  merger.add_layer(model, config::Layer::kModelPreset, "");
  for (const config::Override& item : config::parse_overrides(overrides, problems))
    merger.add(item.key, item.value, config::Layer::kCommandLine, item.written);
  if (!problems.empty()) throw ConfigError(std::move(problems));
  config::Experiment experiment;
  experiment.framework = "megatron";
  experiment.module_preset = kModule;
  experiment.model_preset = name;
  merger.apply_to(experiment);
  // A preset knows no data, no batch and no devices: of the rules only those that fill in what the model leaves open.
  const bool is_plausible = config::has_plausible_sizes(experiment);
  const config::WorldSize world{is_plausible ? config::smallest_world(experiment) : 1, "the smallest that is legal"};
  config::RuleContext context(experiment, config::Purpose::kPlan, world, name);
  const auto apply = [&](std::span<const config::Rule> rules) {
    for (const config::Rule& rule : rules) {
      context.enter(rule.name);
      rule.apply(context);
    }
  };
  apply(config::size_rules());
  if (!context.problems().empty()) throw ConfigError(context.problems());
  apply(config::data_rules());
  if (experiment.is_null("vocab_size")) throw ConfigError(context.problems());
  const std::size_t num_ignored = context.problems().size();
  apply(config::kind_rules());
  apply(config::model_rules());
  apply(config::moe_rules());
  if (context.problems().size() > num_ignored) {
    const auto first = context.problems().begin() + static_cast<std::ptrdiff_t>(num_ignored);
    throw ConfigError(std::vector<Problem>(first, context.problems().end()));
  }
  return experiment;
}

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(config::preset_folder() / "models/megatron", error)) {
    if (entry.path().extension() == ".yaml") names.push_back(entry.path().stem().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<std::string> first_words(std::vector<std::string>& words, std::size_t count, const std::string& message,
                                     const std::string& command) {
  // A key may be written as on a command line, `--micro-batch-size`; a file may not.
  const auto is_value = [&](const std::string& word) { return count == 1 || !word.starts_with("-"); };
  if (words.size() < count ||
      !std::all_of(words.begin(), words.begin() + static_cast<std::ptrdiff_t>(count), is_value)) {
    throw ConfigError({{.file = "command line",
                        .message = message,
                        .nearest = fmt::format("see primus-cli config {} --help", command)}});
  }
  std::vector<std::string> taken(words.begin(), words.begin() + static_cast<std::ptrdiff_t>(count));
  words.erase(words.begin(), words.begin() + static_cast<std::ptrdiff_t>(count));
  return taken;
}

std::string planned_text(const config::Resolution& resolution) {
  std::string text;
  for (const config::PlannedUse& use : resolution.planned) text += (text.empty() ? "" : ", ") + use.key;
  return text;
}

std::string shortened(const std::string& text) {
  constexpr std::size_t kLongest = 48;
  return text.size() <= kLongest ? text : text.substr(0, kLongest) + "…";
}

}  // namespace primus::cli
