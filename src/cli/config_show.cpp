// config show: the resolved experiment.
#include <fmt/format.h>

#include <string>

#include "base/visible.hpp"
#include "cli/app.hpp"
#include "cli/config_common.hpp"
#include "cli/resolution_json.hpp"
#include "config/file_text.hpp"
#include "config/key_table.hpp"
#include "config/value_json.hpp"

namespace primus::cli {
namespace {

struct ShowOptions {
  ReadOptions read;
  bool origin = false;
};

void add_options(CLI::App& app, ShowOptions& options) {
  add_config_option(app, options.read);
  app.add_flag("--origin", options.origin, "Say of every value where it comes from");
  add_format_option(app, options.read.format, {"yaml", "json"});
  add_world_option(app, options.read.world_size);
}

/// Every value that something set, as an experiment; the notes follow as comments.
std::string show_text(const config::Resolution& resolution) {
  const config::Experiment& experiment = resolution.experiment;
  std::string text;
  const auto add = [&](std::string_view name, const std::string& value) {
    text += fmt::format("{}: {}\n", name, config::file_text({value}));
  };
  add("work_group", experiment.work_group);
  add("user_name", experiment.user_name);
  add("exp_name", experiment.exp_name);
  add("workspace", experiment.workspace);
  if (!experiment.env.empty()) text += "env:\n";
  for (const auto& [name, value] : experiment.env)
    text += fmt::format("  {}: {}\n", name, config::variable_file_text(value));
  text += fmt::format("modules:\n  {}:\n    framework: {}\n", experiment.module, experiment.framework);
  if (!experiment.module_preset.empty()) {
    add("    config", experiment.module_preset);
    add("    model", experiment.model_preset);
  }
  text += "    overrides:\n";
  for (const config::KeySection& section : config::key_sections()) {
    std::string rows;
    for (const config::Key& key : section.keys) {
      const auto found = experiment.settings().find(key.name);
      if (found != experiment.settings().end())
        rows += fmt::format("      {}: {}\n", key.name, config::file_text(found->second.value));
    }
    if (!rows.empty()) text += fmt::format("      # {}\n{}", section.area, rows);
  }
  for (const config::Note& note : resolution.notes)
    text += fmt::format("# note: {}: {}\n", note.key, visible(note.text));
  for (const config::PlannedUse& use : resolution.planned)
    text += fmt::format("# planned: {}: {}\n", use.key, use.reason);
  for (const config::Note& note : resolution.no_effect)
    text += fmt::format("# no effect: {}: {}\n", note.key, visible(note.text));
  return text;
}

int run(std::span<const std::string> words, const LaunchOptions& launch) {
  ShowOptions options;
  CLI::App app("Show a resolved experiment: presets, file and overrides merged, rules applied.",
               "primus-cli config show");
  add_options(app, options);
  app.footer(
      "overrides\n  --key value  --key=value  key=value  --flag  --no-flag  --map.key value\n"
      "examples\n  primus-cli config show --config exp.yaml --origin\n"
      "  primus-cli config show --config exp.yaml --format json --lr 3e-4 | jq .settings.lr");
  if (parse_options(app, words, Rest::kReturn, options.read.overrides) == Parsed::kHelpShown) return 0;
  const config::Resolution resolution = read_experiment(options.read.config, options.read, launch);
  if (format_of(options.read.format) == Format::kJson || launch.format == Format::kJson) {
    print_json(json_of(resolution, options.origin ? Origins::kShown : Origins::kLeftOut));
  } else if (options.origin) {
    fmt::print("{}", config::to_yaml(resolution.experiment));
  } else {
    fmt::print("{}", show_text(resolution));
  }
  return 0;
}

}  // namespace

Json notes_json(const std::vector<config::Note>& notes) {
  Json json = Json::array();
  for (const config::Note& note : notes) json.push_back({{"key", note.key}, {"text", note.text}});
  return json;
}

Json json_of(const config::Resolution& resolution, Origins origins) {
  const config::Experiment& experiment = resolution.experiment;
  Json json = {{"ok", true},
               {"work_group", experiment.work_group},
               {"user_name", experiment.user_name},
               {"exp_name", experiment.exp_name},
               {"workspace", experiment.workspace},
               {"run_folder", experiment.run_folder()},
               {"module", experiment.module},
               {"module_preset", experiment.module_preset},
               {"model_preset", experiment.model_preset},
               {"env", experiment.env},
               {"world", {{"size", resolution.world.size}, {"source", resolution.world.source}}}};
  Json settings = Json::object();
  for (const auto& [key, setting] : experiment.settings()) {
    if (origins == Origins::kLeftOut) {
      settings[key] = config::json_of(setting.value);
      continue;
    }
    Json entry = {{"value", config::json_of(setting.value)}};
    entry.update(json_of(setting.origin));
    settings[key] = std::move(entry);
  }
  json["settings"] = std::move(settings);
  json["notes"] = notes_json(resolution.notes);
  json["no_effect"] = notes_json(resolution.no_effect);
  json["planned"] = Json::array();
  for (const config::PlannedUse& use : resolution.planned)
    json["planned"].push_back({{"key", use.key}, {"value", use.value}, {"reason", use.reason}});
  json["yielding"] = Json::array();
  for (const config::PlannedUse& use : resolution.yielding)
    json["yielding"].push_back({{"key", use.key}, {"value", use.value}, {"reason", use.reason}});
  return json;
}

const Command kConfigShow = {"config",
                             "show",
                             "--config FILE [--origin] [overrides]",
                             "a resolved experiment",
                             Starts::kNothing,
                             Rest::kReturn,
                             "",
                             [](CLI::App& app) {
                               static ShowOptions unused;
                               add_options(app, unused);
                             },
                             run};

}  // namespace primus::cli
