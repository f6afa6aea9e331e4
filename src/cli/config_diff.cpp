// config diff: two resolved experiments, key by key.
#include <fmt/format.h>

#include <array>
#include <string>
#include <utility>

#include "base/text.hpp"
#include "base/visible.hpp"
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

/// A value that differs.
struct Difference {
  std::string area;
  std::string key;
  std::array<config::Setting, 2> sides;
};

constexpr std::string_view kNames = "experiment";

/// A variable or a preset of one side only: settings have a default instead.
bool is_absent(const Difference& difference, std::size_t side) {
  return difference.area == kNames && difference.sides[side].value.is_null();
}

void compare_names(const config::Resolution& left, const config::Resolution& right,
                   std::vector<Difference>& differences) {
  auto x = left.names;
  auto y = right.names;
  for (const auto& [name, setting] : x) y.try_emplace(name);
  for (const auto& [name, setting] : y) {
    if (x[name].value != setting.value) differences.push_back({std::string(kNames), name, {x[name], setting}});
  }
}

std::vector<Difference> compare(const config::Resolution& one, const config::Resolution& other) {
  std::vector<Difference> differences;
  compare_names(one, other, differences);
  const config::Experiment& x = one.experiment;
  const config::Experiment& y = other.experiment;
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
    fmt::print("{} and {} resolve to the same\n", visible(files[0]), visible(files[1]));
    return;
  }
  fmt::print("{}\n{}\n", coloured("- " + visible(files[0]), Colour::kRed, stdout),
             coloured("+ " + visible(files[1]), Colour::kGreen, stdout));
  std::string area;
  for (const Difference& difference : differences) {
    if (difference.area != area) {
      area = difference.area;
      fmt::print("{}\n", coloured(area, Colour::kBold, stdout));
    }
    for (const std::size_t side : {0U, 1U}) {
      const config::Setting& setting = difference.sides[side];
      const bool is_there = !is_absent(difference, side);
      const std::string line = fmt::format("  {} {}: {}", side == 0 ? '-' : '+', difference.key,
                                           is_there ? config::to_text(setting.value) : "(not written)");
      fmt::print("{}", coloured(line, side == 0 ? Colour::kRed : Colour::kGreen, stdout));
      fmt::print("{}\n", is_there ? "  # " + origin_text(setting.origin) : "");
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
      if (!is_absent(difference, side)) value.update(json_of(difference.sides[side].origin));
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
  const std::vector<Difference> differences = compare(x, y);
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
