// config diff: two resolved experiments, key by key.
#include <fmt/format.h>

#include <array>
#include <string>
#include <utility>

#include "cli/app.hpp"
#include "cli/config_common.hpp"
#include "cli/terminal.hpp"
#include "config/key_table.hpp"
#include "config/value_json.hpp"

namespace primus::cli {
namespace {

constexpr int kDifferent = 1;

struct DiffOptions {
  ReadOptions read;
  std::vector<std::string> files;
};

void add_options(CLI::App& app, DiffOptions& options) {
  add_format_option(app, options.read.format, {"text", "json"});
  add_world_option(app, options.read.world_size);
}

/// A value that differs. Names of the run have no origin.
struct Difference {
  std::string area;
  std::string key;
  std::array<config::Setting, 2> sides;
  enum class Kind { kName, kKey } kind = Kind::kKey;
};

void compare_texts(std::string key, const std::string& left, const std::string& right,
                   std::vector<Difference>& differences) {
  if (left == right) return;
  differences.push_back({"experiment",
                         std::move(key),
                         {config::Setting{{left}, {}}, config::Setting{{right}, {}}},
                         Difference::Kind::kName});
}

std::vector<Difference> compare(const config::Experiment& x, const config::Experiment& y) {
  std::vector<Difference> differences;
  compare_texts("work_group", x.work_group, y.work_group, differences);
  compare_texts("user_name", x.user_name, y.user_name, differences);
  compare_texts("exp_name", x.exp_name, y.exp_name, differences);
  compare_texts("workspace", x.workspace, y.workspace, differences);
  compare_texts("config", x.module_preset, y.module_preset, differences);
  compare_texts("model", x.model_preset, y.model_preset, differences);
  auto names = x.env;
  names.insert(y.env.begin(), y.env.end());
  const auto value_in = [](const config::Experiment& experiment, const std::string& name) {
    const auto found = experiment.env.find(name);
    return found == experiment.env.end() ? std::string() : found->second;
  };
  for (const auto& [name, value] : names)
    compare_texts("env." + name, value_in(x, name), value_in(y, name), differences);
  for (const config::KeySection& section : config::key_sections()) {
    for (const config::Key& key : section.keys) {
      const config::Setting& left = x.setting(key.name);
      const config::Setting& right = y.setting(key.name);
      if (left.value == right.value) continue;
      differences.push_back({std::string(section.area), std::string(key.name), {left, right}});
    }
  }
  return differences;
}

void print_text(const std::vector<Difference>& differences, const std::vector<std::string>& files) {
  if (differences.empty()) {
    fmt::print("{} and {} resolve to the same\n", files[0], files[1]);
    return;
  }
  fmt::print("{}\n{}\n", coloured("- " + files[0], Colour::kRed, stdout),
             coloured("+ " + files[1], Colour::kGreen, stdout));
  std::string area;
  for (const Difference& difference : differences) {
    if (difference.area != area) {
      area = difference.area;
      fmt::print("{}\n", coloured(area, Colour::kBold, stdout));
    }
    for (const std::size_t side : {0U, 1U}) {
      const config::Setting& setting = difference.sides[side];
      const std::string line =
          fmt::format("  {} {}: {}", side == 0 ? '-' : '+', difference.key, config::to_text(setting.value));
      fmt::print("{}", coloured(line, side == 0 ? Colour::kRed : Colour::kGreen, stdout));
      fmt::print("{}\n", difference.kind == Difference::Kind::kKey ? "  # " + origin_text(setting.origin) : "");
    }
  }
  fmt::print("{} in all\n", counted(std::ssize(differences), "difference"));
}

void print_as_json(const std::vector<Difference>& differences, const std::vector<std::string>& files) {
  Json json = {{"ok", true}, {"x", files[0]}, {"y", files[1]}, {"equal", differences.empty()}};
  json["differences"] = Json::array();
  for (const Difference& difference : differences) {
    Json entry = {{"key", difference.key}, {"area", difference.area}};
    for (const std::size_t side : {0U, 1U}) {
      Json value = {{"value", config::json_of(difference.sides[side].value)}};
      if (difference.kind == Difference::Kind::kKey) value.update(json_of(difference.sides[side].origin));
      entry[side == 0 ? "x" : "y"] = std::move(value);
    }
    json["differences"].push_back(std::move(entry));
  }
  print_json(json);
}

int run(std::span<const std::string> words, const LaunchOptions& launch) {
  DiffOptions options;
  CLI::App app("config diff X Y [OPTIONS] [overrides]: two experiments key by key. Exit code 1: they differ.",
               "primus-cli config diff");
  add_options(app, options);
  app.footer(
      "Overrides behind the two files apply to both.\n"
      "examples\n  primus-cli config diff a.yaml b.yaml\n"
      "  primus-cli config diff a.yaml b.yaml --format json --exp_name same");
  if (parse_options(app, words, Rest::kReturn, options.read.overrides) == Parsed::kHelpShown) return 0;
  options.files = first_words(options.read.overrides, 2, "two experiments are needed", "diff");
  const config::Resolution x = read_experiment(options.files[0], options.read, launch);
  const config::Resolution y = read_experiment(options.files[1], options.read, launch);
  const std::vector<Difference> differences = compare(x.experiment, y.experiment);
  const bool is_json = format_of(options.read.format) == Format::kJson || launch.format == Format::kJson;
  is_json ? print_as_json(differences, options.files) : print_text(differences, options.files);
  return differences.empty() ? 0 : kDifferent;
}

}  // namespace

const Command kConfigDiff = {"config",
                             "diff",
                             "X Y [overrides]",
                             "two experiments, key by key",
                             Starts::kNothing,
                             Rest::kReturn,
                             "experiment",
                             [](CLI::App& app) {
                               static DiffOptions unused;
                               add_options(app, unused);
                             },
                             run};

}  // namespace primus::cli
