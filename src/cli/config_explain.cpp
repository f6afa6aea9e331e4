// config explain: one key, in itself and in an experiment.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>

#include "base/error.hpp"
#include "base/visible.hpp"
#include "cli/app.hpp"
#include "cli/config_common.hpp"
#include "cli/key_text.hpp"
#include "cli/terminal.hpp"
#include "config/effects.hpp"
#include "config/map_entries.hpp"
#include "config/overrides.hpp"
#include "config/read_beside.hpp"
#include "config/rule_keys.hpp"
#include "config/rules.hpp"
#include "config/value_json.hpp"

namespace primus::cli {
namespace {

using config::Key;

struct ExplainOptions {
  ReadOptions read;
  std::string key;
};

void add_options(CLI::App& app, ExplainOptions& options) {
  app.add_option("--config,--exp", options.read.config, "Also its value in this experiment")->type_name("FILE.yaml");
  add_format_option(app, options.read.format, {"text", "json"});
  add_world_option(app, options.read.world_size);
}

// What names a run stands at the top of an experiment and has no row in the table.
constexpr std::array<Key, config::kRunNames.size()> kRunRows = {{
    {"work_group", config::KeyType::kText, "null", "", config::KeyState::kWorks, "", config::Impact::kExecution,
     "Second part of the run's folder, workspace/work_group/user_name/exp_name.", "at the top of an experiment"},
    {"user_name", config::KeyType::kText, "null", "", config::KeyState::kWorks, "", config::Impact::kExecution,
     "Third part of the run's folder, workspace/work_group/user_name/exp_name.", "at the top of an experiment"},
    {"exp_name", config::KeyType::kText, "null", "", config::KeyState::kWorks, "", config::Impact::kExecution,
     "Last part of the run's folder, workspace/work_group/user_name/exp_name.", "at the top of an experiment"},
    {"workspace", config::KeyType::kText, "null", "", config::KeyState::kWorks, "", config::Impact::kExecution,
     "Folder of all runs, first part of workspace/work_group/user_name/exp_name.", "at the top of an experiment"},
}};

/// A row that is none of the key table's: an entry of a map, or what names a run.
bool is_in_table(const Key& key) {
  return config::find_key(key.name) == &key;
}

bool names_a_run(const Key& key) {
  return std::any_of(kRunRows.begin(), kRunRows.end(), [&](const Key& row) { return &row == &key; });
}

const Key& wanted_key(std::string name) {
  while (name.starts_with('-')) name.erase(0, 1);
  std::replace(name.begin(), name.end(), '-', '_');
  for (const Key& row : kRunRows) {
    if (row.name == name) return row;
  }
  if (const Key* key = config::find_key(name)) return *key;
  if (const Key* entry = config::find_map_entry(name)) return *entry;
  const std::string_view successor = config::successor_of_removed_key(name);
  const std::string map = name.substr(0, name.find('.'));
  if (const std::span<const Key> entries = config::entries_of_map(map); map != name && !entries.empty()) {
    std::string known;
    for (const Key& entry : entries)
      known += (known.empty() ? "" : ", ") + std::string(entry.name.substr(map.size() + 1));
    throw ConfigError({{.file = "command line",
                        .key = name,
                        .message = fmt::format("unknown entry of {}", map),
                        .expected = "one of " + known,
                        .nearest = config::nearest_entry_hint(map, name.substr(map.size() + 1))}});
  }
  throw ConfigError(
      {{.file = "command line",
        .key = name,
        .message = successor.empty() ? "unknown key" : "this key was removed",
        .nearest = successor.empty() ? config::nearest_key_hint(name) : fmt::format("write {} instead", successor)}});
}

/// The key in one experiment.
struct Use {
  config::Setting setting;          // what it replaced: the nearest first
  std::vector<config::Note> notes;  // about the key, or because of it
  std::optional<config::PlannedUse> planned;
  std::optional<config::PlannedUse> yielding;
  bool is_read = true;
};

/// An entry of a map, as the map was set.
config::Setting entry_setting(const Key& key, const config::Experiment& experiment) {
  const std::size_t dot = key.name.find('.');
  config::Setting setting = experiment.setting(key.name.substr(0, dot));
  const auto* map = std::get_if<config::Value::Map>(&setting.value.data);
  const auto entry = map ? map->find(std::string(key.name.substr(dot + 1))) : decltype(map->end()){};
  if (!map || entry == map->end()) return {config::default_value(key), {}};
  return {entry->second, setting.origin};
}

Use use_of(const Key& key, const ExplainOptions& options, const LaunchOptions& launch) {
  const config::Resolution resolution = read_experiment(options.read.config, options.read, launch);
  Use use;
  if (!is_in_table(key)) {
    const bool is_entry = key.name.find('.') != std::string_view::npos;
    use.setting = is_entry ? entry_setting(key, resolution.experiment) : resolution.names.at(std::string(key.name));
    std::reverse(use.setting.replaced.begin(), use.setting.replaced.end());
    return use;
  }
  use.setting = resolution.experiment.setting(key.name);
  std::reverse(use.setting.replaced.begin(), use.setting.replaced.end());
  for (const config::Note& note : resolution.notes) {
    if (note.key == key.name || note.cause == key.name) use.notes.push_back(note);
  }
  for (const config::PlannedUse& planned : resolution.planned) {
    if (planned.key == key.name) use.planned = planned;
  }
  for (const config::PlannedUse& yielding : resolution.yielding) {
    if (yielding.key == key.name) use.yielding = yielding;
  }
  use.is_read = config::is_read(key, resolution.experiment);
  return use;
}

std::vector<const config::Rule*> rules_about(const Key& key, const std::vector<config::Rule>& rules) {
  std::vector<const config::Rule*> found;
  for (const config::Rule& rule : rules) {
    if (config::is_rule_about(rule.name, key.name)) found.push_back(&rule);
  }
  return found;
}

/// Entries of a map belong where the map does.
std::string_view area_text(const Key& key) {
  const Key* row = config::find_key(key.name.substr(0, key.name.find('.')));
  return row ? config::area_of(*row) : "run folder";
}

void print_row(std::string_view label, std::string_view text) {
  fmt::print("  {:<10} {}\n", label, text);
}

/// A key asked for by another name is told that it has two; dashes are no other name.
bool is_spelling_of(std::string asked, const Key& key) {
  asked.erase(0, asked.find_first_not_of('-'));
  std::replace(asked.begin(), asked.end(), '-', '_');
  return asked == key.name;
}

void print_key(const Key& key, const std::string& asked) {
  fmt::print("{}\n", coloured(key.name, Colour::kBold, stdout));
  if (!is_spelling_of(asked, key)) print_row("also", asked);
  print_row("meaning", key.meaning);
  print_row("area", area_text(key));
  const bool is_name = names_a_run(key);
  print_row("default", is_name ? "none: it must be written" : config::to_text(config::default_value(key)));
  print_row("values", config::expected_text(key) + (config::allows_null(key) && !is_name ? ", or null" : ""));
  print_row("state", state_with_reason(key));
  const std::vector<config::Rule> rules = config::all_rules();
  for (const config::Rule* rule : rules_about(key, rules))
    print_row("rule", fmt::format("{}: {}", rule->name, rule->meaning));
  if (!is_in_table(key)) return;
  for (const config::Effect& effect : config::effects_of(key))
    print_row("switches", fmt::format("with {}: {} {}", effect.value, effect.key, effect.change));
  std::string details;
  for (const std::string_view detail : config::details_of(key)) {
    details += (details.empty() ? "" : ", ") + std::string(detail);
  }
  if (!details.empty()) print_row("beside it", "are read: " + details);
}

/// Layer and place: "model preset, configs/…:3"; some layers are their own place.
std::string place_text(const config::Origin& origin) {
  const std::string place = origin_text(origin);
  const std::string_view layer = config::layer_text(origin.layer);
  return place.starts_with(layer) ? place : fmt::format("{}, {}", layer, place);
}

void print_use(const Use& use, const std::string& file) {
  fmt::print("{}\n", coloured("in " + visible(file), Colour::kBold, stdout));
  print_row("value", config::to_text(use.setting.value));
  const bool is_default = use.setting.origin.layer == config::Layer::kDefault;
  print_row("set by", is_default ? "nothing: it is the default" : place_text(use.setting.origin));
  for (const config::ReplacedValue& value : use.setting.replaced)
    print_row("overrode", fmt::format("{} ({})", config::to_text(value.value), place_text(value.origin)));
  for (const config::Note& note : use.notes) print_row("note", fmt::format("{}: {}", note.key, visible(note.text)));
  if (use.planned) print_row("planned", "a real train refuses it: " + use.planned->reason);
  if (use.yielding) print_row("planned", "a real train computes the same numbers without it");
  if (!use.is_read) print_row("no effect", "nothing that reads it is switched on");
}

Json use_json(const Use& use, const std::string& file) {
  Json json = {{"file", file}, {"value", config::json_of(use.setting.value)}, {"origin", json_of(use.setting.origin)}};
  json["overrode"] = Json::array();
  for (const config::ReplacedValue& value : use.setting.replaced) {
    Json entry = {{"value", config::json_of(value.value)}};
    entry.update(json_of(value.origin));
    json["overrode"].push_back(std::move(entry));
  }
  json["notes"] = Json::array();
  for (const config::Note& note : use.notes) json["notes"].push_back({{"key", note.key}, {"text", note.text}});
  json["planned"] = use.planned.has_value();
  json["yielding"] = use.yielding.has_value();
  json["read"] = use.is_read;
  return json;
}

int run(std::span<const std::string> words, const LaunchOptions& launch) {
  ExplainOptions options;
  CLI::App app("config explain KEY [OPTIONS] [overrides]: what a key means, what it may be, what sets it.",
               "primus-cli config explain");
  add_options(app, options);
  app.footer(
      "examples\n  primus-cli config explain turbo_sync_free_moe_stage\n"
      "  primus-cli config explain lr --config exp.yaml --lr 3e-4");
  if (parse_options(app, words, Rest::kReturn, options.read.overrides) == Parsed::kHelpShown) return 0;
  options.key = first_words(options.read.overrides, 1, "KEY is missing", "explain").front();
  const Key& key = wanted_key(options.key);
  if (options.read.config.empty() && !options.read.overrides.empty()) {
    throw ConfigError({{.file = "command line",
                        .message = fmt::format("unexpected '{}'", options.read.overrides.front()),
                        .nearest = "overrides need an experiment: --config FILE"}});
  }
  std::optional<Use> use;
  if (!options.read.config.empty()) use = use_of(key, options, launch);
  if (format_of(options.read.format) == Format::kJson || launch.format == Format::kJson) {
    Json json = {{"ok", true}};
    json.update(describe_key(key));
    if (names_a_run(key)) {
      json.erase("default");
      json["required"] = true;
    }
    json["area"] = area_text(key);
    const std::vector<config::Rule> rules = config::all_rules();
    json["rules"] = Json::array();
    for (const config::Rule* rule : rules_about(key, rules)) json["rules"].push_back(rule->name);
    json["switches"] = Json::array();
    const std::vector<config::Effect> effects =
        is_in_table(key) ? config::effects_of(key) : std::vector<config::Effect>();
    for (const config::Effect& effect : effects)
      json["switches"].push_back({{"value", effect.value}, {"key", effect.key}, {"change", effect.change}});
    json["read_beside_it"] = config::details_of(key);
    if (use) json["experiment"] = use_json(*use, options.read.config);
    print_json(json);
    return 0;
  }
  print_key(key, options.key);
  if (use) print_use(*use, options.read.config);
  return 0;
}

}  // namespace

const Command kConfigExplain = {"config",
                                "explain",
                                "KEY [--config FILE] [overrides]",
                                "one key, and what sets it",
                                Starts::kNothing,
                                Rest::kReturn,
                                "key",
                                [](CLI::App& app) {
                                  static ExplainOptions unused;
                                  add_options(app, unused);
                                },
                                run};

}  // namespace primus::cli
