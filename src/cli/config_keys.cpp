// config keys: the key table, for people, programs and docs/keys.md.
#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string>

#include "base/error.hpp"
#include "base/text.hpp"
#include "cli/app.hpp"
#include "cli/config_common.hpp"
#include "cli/key_text.hpp"
#include "cli/terminal.hpp"
#include "config/key_table.hpp"
#include "config/read_beside.hpp"

namespace primus::cli {
namespace {

using config::Key;
using config::KeySection;

struct KeysOptions {
  std::string pattern;
  std::string area;
  std::string state;
  std::string format = "text";
};

void add_options(CLI::App& app, KeysOptions& options) {
  app.add_option("PATTERN", options.pattern, "Part of a name or meaning, or a pattern with * and ?");
  app.add_option("--area", options.area, "Only this area (part of its name)")->type_name("AREA");
  app.add_option("--state", options.state, "works, planned or no-effect")->type_name("STATE");
  add_format_option(app, options.format, {"text", "json", "markdown"});
}

[[noreturn]] void refuse(std::string key, std::string message, std::string expected, std::string nearest) {
  throw ConfigError({{.file = "command line",
                      .key = std::move(key),
                      .message = std::move(message),
                      .expected = std::move(expected),
                      .nearest = std::move(nearest)}});
}

std::string with_spaces(std::string text) {
  std::replace(text.begin(), text.end(), '-', ' ');
  std::replace(text.begin(), text.end(), '_', ' ');
  return lower(text);
}

void check_area(const std::string& area) {
  std::string names;
  std::vector<std::string_view> views;
  for (const KeySection& section : config::key_sections()) {
    if (section.area.find(with_spaces(area)) != std::string_view::npos) return;
    names += (names.empty() ? "" : ", ") + std::string(section.area);
    views.push_back(section.area);
  }
  const auto nearest = nearest_name(with_spaces(area), views);
  refuse("--area", fmt::format("there is no area '{}'", area), names,
         nearest ? fmt::format("did you mean '{}'?", *nearest) : "");
}

void check_state(const std::string& state) {
  constexpr std::array<std::string_view, 3> kStates = {"works", "planned", "no effect"};
  const std::string wanted = with_spaces(state);
  if (std::find(kStates.begin(), kStates.end(), wanted) != kStates.end()) return;
  const auto nearest = nearest_name(wanted, kStates);
  refuse("--state", fmt::format("there is no state '{}'", state), "works, planned or no-effect",
         nearest ? fmt::format("did you mean '{}'?", *nearest) : "");
}

bool fits(const Key& key, const std::string& pattern) {
  if (pattern.empty()) return true;
  std::string wanted = lower(pattern);
  if (wanted.find_first_of("*?[") != std::string::npos)
    return fnmatch(wanted.c_str(), std::string(key.name).c_str(), 0) == 0;
  if (lower(key.meaning).find(wanted) != std::string::npos) return true;
  std::replace(wanted.begin(), wanted.end(), '-', '_');
  return key.name.find(wanted) != std::string_view::npos;
}

struct Chosen {
  std::string_view area;
  std::vector<const Key*> keys;
};

std::vector<Chosen> choose(const KeysOptions& options) {
  if (!options.area.empty()) check_area(options.area);
  if (!options.state.empty()) check_state(options.state);
  std::vector<Chosen> chosen;
  for (const KeySection& section : config::key_sections()) {
    if (!options.area.empty() && section.area.find(with_spaces(options.area)) == std::string_view::npos) continue;
    Chosen part{section.area, {}};
    for (const Key& key : section.keys) {
      const bool is_wanted = options.state.empty() || config::state_text(key.state) == with_spaces(options.state);
      if (is_wanted && fits(key, options.pattern)) part.keys.push_back(&key);
    }
    if (!part.keys.empty()) chosen.push_back(std::move(part));
  }
  if (!chosen.empty()) return chosen;
  // A key of another name may be what was meant: an alias, a removed key, a near miss.
  const Key* alias = config::find_key(options.pattern);
  const std::string_view successor = config::successor_of_removed_key(options.pattern);
  std::string nearest = config::nearest_key_hint(options.pattern);
  if (alias) nearest = fmt::format("it is another name of {}", alias->name);
  if (!successor.empty()) nearest = fmt::format("it was removed: {} is its successor", successor);
  refuse("",
         options.pattern.empty() ? "no key has this area and state" : fmt::format("no key fits '{}'", options.pattern),
         "", nearest);
}

void print_text(const std::vector<Chosen>& chosen) {
  std::int64_t count = 0;
  for (const Chosen& part : chosen) {
    fmt::print("{}\n", coloured(part.area, Colour::kBold, stdout));
    for (const Key* key : part.keys) {
      ++count;
      fmt::print("  {} = {}  [{}]\n", key->name, config::to_text(config::default_value(*key)), state_with_reason(*key));
      fmt::print("      {}. {}\n", config::expected_text(*key), key->meaning);
    }
  }
  fmt::print("{}\n", counted(count, "key"));
}

Json key_json(const Key& key, std::string_view area) {
  Json json = describe_key(key);
  json["area"] = area;
  return json;
}

void print_as_json(const std::vector<Chosen>& chosen) {
  Json json = {{"ok", true}, {"keys", Json::array()}};
  for (const Chosen& part : chosen) {
    for (const Key* key : part.keys) json["keys"].push_back(key_json(*key, part.area));
  }
  print_json(json);
}

std::string cell(std::string text) {
  std::string result;
  for (const char c : text) {
    if (c == '|' || c == '<' || c == '*') result += '\\';
    result += c;
  }
  return result;
}

void print_markdown(const std::vector<Chosen>& chosen) {
  std::array<std::int64_t, 3> counts = {};
  std::int64_t num_details = 0;
  for (const Chosen& part : chosen) {
    for (const Key* key : part.keys) {
      ++counts[static_cast<std::size_t>(key->state)];
      if (key->state == config::KeyState::kPlanned && !config::switches_of(*key).empty()) ++num_details;
    }
  }
  fmt::print(
      "# Keys\n\nEvery key that an experiment or the command line may set. Generated by `tools/docs_keys` from the key "
      "table; a\n"
      "test compares it. {} keys: {} work, {} are planned (away from their default they stop a real `train`), {} are\n"
      "accepted and have no effect here. {} of the planned ones are read only beside a switch, which the last column\n"
      "names: while it is off they have no effect either. `primus-cli config explain KEY` says more of one.\n",
      format_count(counts[0] + counts[1] + counts[2]), counts[0], counts[1], counts[2], num_details);
  for (const Chosen& part : chosen) {
    fmt::print("\n## {}\n\n| key | default | values | meaning | state |\n|---|---|---|---|---|\n", part.area);
    for (const Key* key : part.keys) {
      fmt::print("| `{}` | `{}` | {} | {} | {} |\n", key->name, config::to_text(config::default_value(*key)),
                 cell(config::expected_text(*key)), cell(std::string(key->meaning)), cell(state_with_reason(*key)));
    }
  }
}

int run(std::span<const std::string> words, const LaunchOptions& launch) {
  KeysOptions options;
  CLI::App app("List the keys of experiments: default, allowed values, meaning, state.", "primus-cli config keys");
  add_options(app, options);
  app.footer(
      "examples\n  primus-cli config keys deepep\n  primus-cli config keys 'moe_router_*' --state planned\n"
      "  primus-cli config keys --area recompute --format json\n"
      "`primus-cli config explain KEY` says all about one key.");
  std::vector<std::string> rest;
  if (parse_options(app, words, Rest::kRefuse, rest) == Parsed::kHelpShown) return 0;
  const std::vector<Chosen> chosen = choose(options);
  const Format format = launch.format == Format::kJson ? Format::kJson : format_of(options.format);
  if (format == Format::kJson) {
    print_as_json(chosen);
  } else if (format == Format::kMarkdown) {
    print_markdown(chosen);
  } else {
    print_text(chosen);
  }
  return 0;
}

}  // namespace

const Command kConfigKeys = {"config",
                             "keys",
                             "[PATTERN] [--area A] [--state S]",
                             "what may be set",
                             Starts::kNothing,
                             Rest::kRefuse,
                             "key",
                             [](CLI::App& app) {
                               static KeysOptions unused;
                               add_options(app, unused);
                             },
                             run};

}  // namespace primus::cli
