// config explain: one key, in itself and in an experiment.
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>

#include "base/error.hpp"
#include "cli/app.hpp"
#include "cli/config_common.hpp"
#include "cli/key_text.hpp"
#include "cli/terminal.hpp"
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

const Key& wanted_key(std::string name) {
  while (name.starts_with('-')) name.erase(0, 1);
  std::replace(name.begin(), name.end(), '-', '_');
  if (const Key* key = config::find_key(name)) return *key;
  const std::string_view successor = config::successor_of_removed_key(name);
  throw ConfigError(
      {{.file = "command line",
        .key = name,
        .message = successor.empty() ? "unknown key" : "this key was removed",
        .nearest = successor.empty() ? config::nearest_key_hint(name) : fmt::format("write {} instead", successor)}});
}

/// Does the text speak of the key, and not merely of a longer one?
bool names_key(std::string_view text, std::string_view key) {
  const auto is_part = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; };
  for (std::size_t at = text.find(key); at != std::string_view::npos; at = text.find(key, at + 1)) {
    const std::size_t end = at + key.size();
    if ((at == 0 || !is_part(text[at - 1])) && (end == text.size() || !is_part(text[end]))) return true;
  }
  return false;
}

/// The key in one experiment.
struct Use {
  config::Setting setting;          // what it replaced: the nearest first
  std::vector<config::Note> notes;  // about the key, or because of it
  std::optional<config::PlannedUse> planned;
};

Use use_of(const Key& key, const ExplainOptions& options, const LaunchOptions& launch) {
  const config::Resolution resolution = read_experiment(options.read.config, options.read, launch);
  Use use;
  use.setting = resolution.experiment.setting(key.name);
  std::reverse(use.setting.replaced.begin(), use.setting.replaced.end());
  for (const config::Note& note : resolution.notes) {
    if (note.key == key.name || note.cause == key.name) use.notes.push_back(note);
  }
  for (const config::PlannedUse& planned : resolution.planned) {
    if (planned.key == key.name) use.planned = planned;
  }
  return use;
}

std::vector<const config::Rule*> rules_about(const Key& key, const std::vector<config::Rule>& rules) {
  std::vector<const config::Rule*> found;
  for (const config::Rule& rule : rules) {
    if (rule.name == key.name || names_key(rule.meaning, key.name)) found.push_back(&rule);
  }
  return found;
}

void print_row(std::string_view label, std::string_view text) {
  fmt::print("  {:<10} {}\n", label, text);
}

void print_key(const Key& key, const std::string& asked) {
  fmt::print("{}\n", coloured(key.name, Colour::kBold, stdout));
  if (asked != key.name) print_row("also", asked);
  print_row("meaning", key.meaning);
  print_row("area", config::area_of(key));
  print_row("default", config::to_text(config::default_value(key)));
  print_row("values", config::expected_text(key) + (config::allows_null(key) ? ", or null" : ""));
  print_row("state", state_with_reason(key));
  const std::vector<config::Rule> rules = config::all_rules();
  for (const config::Rule* rule : rules_about(key, rules))
    print_row("rule", fmt::format("{}: {}", rule->name, rule->meaning));
}

/// Layer and place: "model preset, configs/…:3"; some layers are their own place.
std::string place_text(const config::Origin& origin) {
  const std::string place = origin_text(origin);
  const std::string_view layer = config::layer_text(origin.layer);
  return place.starts_with(layer) ? place : fmt::format("{}, {}", layer, place);
}

void print_use(const Use& use, const std::string& file) {
  fmt::print("{}\n", coloured("in " + file, Colour::kBold, stdout));
  print_row("value", config::to_text(use.setting.value));
  const bool is_default = use.setting.origin.layer == config::Layer::kDefault;
  print_row("set by", is_default ? "nothing: it is the default" : place_text(use.setting.origin));
  for (const config::ReplacedValue& value : use.setting.replaced)
    print_row("overrode", fmt::format("{} ({})", config::to_text(value.value), place_text(value.origin)));
  for (const config::Note& note : use.notes) print_row("note", fmt::format("{}: {}", note.key, note.text));
  if (use.planned) print_row("planned", "a real train refuses it: " + use.planned->reason);
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
    json["area"] = config::area_of(key);
    const std::vector<config::Rule> rules = config::all_rules();
    json["rules"] = Json::array();
    for (const config::Rule* rule : rules_about(key, rules)) json["rules"].push_back(rule->name);
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
