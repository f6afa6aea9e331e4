#include "cli/plan_report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "base/text.hpp"
#include "base/visible.hpp"
#include "cli/config_common.hpp"
#include "cli/data_check.hpp"
#include "cli/key_text.hpp"
#include "cli/resolution_json.hpp"
#include "cli/start_check.hpp"
#include "cli/terminal.hpp"
#include "config/key_table.hpp"
#include "config/read_beside.hpp"
#include "config/value_json.hpp"
#include "model/architecture.hpp"
#include "model/flops.hpp"
#include "model/model_spec.hpp"
#include "model/parameters.hpp"

namespace primus::cli {
namespace {

using config::Experiment;
using config::Resolution;

std::string line(std::string_view label, const std::string& text) {
  return fmt::format("  {:<12}{}\n", label, visible(text));
}

std::string title(std::string_view text) {
  return coloured(text, Colour::kBold, stdout) + "\n";
}

std::string size_text(std::int64_t count) {
  return fmt::format("{} ({})", format_short_count(static_cast<double>(count)), format_count(count));
}

std::string model_lines(const Experiment& experiment) {
  const model::ModelSpec spec = model::build_model_spec(experiment);
  const model::ParameterCount count = model::count_parameters(spec);
  const model::FlopsPerToken flops = model::flops_per_token(spec);
  std::string text = line("parameters", fmt::format("{}, active {}", size_text(count.total), size_text(count.active)));
  if (spec.num_mtp_layers > 0) {
    text += line("", fmt::format("and {} in {} multi-token prediction depth{}",
                                 size_text(model::count_mtp_parameters(spec) * spec.num_mtp_parameter_sets()),
                                 spec.num_mtp_layers, spec.num_mtp_layers == 1 ? "" : "s"));
  }
  text += line("layers", fmt::format("{}, {} of them MoE; hidden {}, {} heads", spec.num_layers(),
                                     spec.num_moe_layers(), spec.hidden_size, spec.num_heads()));
  if (spec.num_streams() > 1) text += line("", fmt::format("{} residual streams", spec.num_streams()));
  if (spec.moe && spec.num_moe_layers() > 0) {
    text += line("experts",
                 fmt::format("{} a layer, {} a token, inner width {}; shared {}", spec.moe->router.num_experts,
                             spec.moe->router.top_k, spec.moe->ffn_hidden_size, spec.moe->shared_ffn_hidden_size));
  }
  for (const model::ArchitecturePart& part : model::unsupported_parts(experiment)) {
    text += line("planned", fmt::format("{} ({}){}", part.name, part.key,
                                        part.counted == model::Counted::kMissing ? ", not counted above" : ""));
  }
  text += line("vocabulary",
               fmt::format("{}, padded to {}", format_count(spec.vocab_size), format_count(spec.padded_vocab_size)));
  text += line("FLOPs", fmt::format("{} a token in training (causal attention counted half)",
                                    format_short_count(static_cast<double>(flops.training()))));
  return text;
}

std::string batch_lines(const Resolution& resolution) {
  const Experiment& experiment = resolution.experiment;
  std::string text = line("world", fmt::format("{} process{} ({})", resolution.world.size,
                                               resolution.world.size == 1 ? "" : "es", resolution.world.source));
  const auto parallel = [&](std::string_view key) { return experiment.get_int(key); };
  text += line("parallel", fmt::format("TP {} x CP {} x PP {}, EP {}", parallel("tensor_model_parallel_size"),
                                       parallel("context_parallel_size"), parallel("pipeline_model_parallel_size"),
                                       parallel("expert_model_parallel_size")));
  const auto plan = config::batch_plan(experiment, resolution.world.size);
  const std::int64_t global = experiment.get_int("global_batch_size");
  const std::int64_t length = experiment.get_int("seq_length");
  if (plan) {
    text += line("batch", fmt::format("{} sequences = {} micro x {} data ranks x {} accumulated; {} tokens a step",
                                      global, experiment.get_int("micro_batch_size"), plan->data_parallel,
                                      plan->accumulation, format_count(global * length)));
  }
  const auto steps = experiment.get_optional_int("train_iters");
  const std::int64_t samples = steps ? *steps * global : experiment.get_int("train_samples");
  text += line("length", fmt::format("{} sequences of {} tokens, {} tokens in all{}", format_count(samples), length,
                                     format_short_count(static_cast<double>(samples * length)),
                                     steps ? fmt::format(", {} steps", *steps) : ""));
  text += line("schedule", fmt::format("{} {}, learning rate {} to {}", experiment.get_string("optimizer"),
                                       experiment.get_string("lr_decay_style"), experiment.get_double("lr"),
                                       experiment.get_double("min_lr")));
  return text;
}

std::string state_of(const config::Key& key, const Experiment& experiment) {
  if (key.state == config::KeyState::kNoEffect) return fmt::format("no effect: {}", key.note);
  if (!config::is_read(key, experiment)) return fmt::format("no effect: {}", config::unread_text(key));
  if (!config::is_working_value(key, experiment.setting(key.name).value)) return "planned";
  return key.note.empty() ? "works" : fmt::format("works; {}", key.note);
}

/// What an override replaced: the nearest of the weaker layers, or the default.
config::ReplacedValue value_before(const config::Key& key, const config::Setting& setting) {
  config::ReplacedValue before{config::default_value(key), {}};
  for (const config::ReplacedValue& past : setting.replaced) {
    if (past.origin.layer != config::Layer::kCommandLine) before = past;
  }
  return before;
}

std::string override_line(const config::Key& key, const Experiment& experiment) {
  const config::Setting& setting = experiment.setting(key.name);
  const config::ReplacedValue before = value_before(key, setting);
  const bool is_default = before.origin.layer == config::Layer::kDefault;
  return fmt::format("  {} = {}: {} [{}]\n      {} {} {}\n", key.name, config::to_text(setting.value), key.meaning,
                     state_of(key, experiment), before.value == setting.value ? "as" : "was",
                     shortened(config::to_text(before.value)),
                     is_default ? "by default" : "in " + origin_text(before.origin));
}

/// The same for programs, with the keys that the override switched.
Json overrides_json(const Resolution& resolution) {
  Json json = Json::array();
  for (const auto& [name, setting] : resolution.experiment.settings()) {
    const bool is_typed = setting.origin.layer == config::Layer::kCommandLine ||
                          std::any_of(setting.replaced.begin(), setting.replaced.end(), [](const auto& past) {
                            return past.origin.layer == config::Layer::kCommandLine;
                          });
    if (!is_typed) continue;
    const config::Key& key = *config::find_key(name);
    const config::ReplacedValue before = value_before(key, setting);
    Json entry = {
        {"key", name}, {"value", config::json_of(setting.value)}, {"state", state_of(key, resolution.experiment)}};
    entry["before"] = {{"value", config::json_of(before.value)}, {"origin", json_of(before.origin)}};
    entry["effects"] = Json::array();
    for (const config::Note& note : resolution.notes) {
      if (note.cause == name) entry["effects"].push_back({{"key", note.key}, {"text", note.text}});
    }
    json.push_back(std::move(entry));
  }
  return json;
}

/// Every override with what it replaced and what it switched on. Notes told here are taken out of `notes`.
std::string override_lines(const PlanInputs& inputs, std::vector<config::Note>& notes) {
  const std::vector<config::Note> all = notes;
  std::string text;
  for (const auto& [name, setting] : inputs.resolution.experiment.settings()) {
    if (setting.origin.layer != config::Layer::kCommandLine) continue;
    text += override_line(*config::find_key(name), inputs.resolution.experiment);
    for (const config::Note& note : all) {
      if (note.cause == name) text += fmt::format("      -> {}: {}\n", note.key, note.text);
    }
    std::erase_if(notes, [&](const config::Note& note) { return note.cause == name; });
  }
  return text.empty() ? text : title("overrides") + text;
}

std::string note_lines(std::string_view heading, const std::vector<config::Note>& notes) {
  if (notes.empty()) return "";
  std::string text = title(heading);
  for (const config::Note& note : notes) text += fmt::format("  {}: {}\n", note.key, visible(note.text));
  return text;
}

// Keys that share a reason share a line.
std::string no_effect_lines(const std::vector<config::Note>& keys) {
  std::vector<std::pair<std::string, std::string>> reasons;
  for (const config::Note& note : keys) {
    const auto same =
        std::find_if(reasons.begin(), reasons.end(), [&](const auto& row) { return row.first == note.text; });
    if (same == reasons.end()) {
      reasons.emplace_back(note.text, note.key);
    } else {
      same->second += ", " + note.key;
    }
  }
  std::string text;
  for (const auto& [reason, names] : reasons) text += fmt::format("  {}: {}\n", names, reason);
  return text.empty() ? text : title("no effect") + text;
}

std::string planned_lines(std::string_view heading, const std::vector<config::PlannedUse>& planned) {
  std::string text;
  for (const config::PlannedUse& use : planned)
    text += fmt::format("  {} = {}: {}\n", use.key, shortened(use.value), use.reason);
  return text.empty() ? text : title(heading) + text;
}

/// Variables that the worker would have beside those of this shell, and what all of them do.
launch::Variables worker_variables(const PlanInputs& inputs) {
  launch::Variables variables = launch::current_environment();
  for (const auto& [name, value] : inputs.command.environment) variables[name] = value;
  return variables;
}

std::string environment_lines(const PlanInputs& inputs) {
  std::string text;
  for (const launch::VariableUse& use : launch::explain_variables(worker_variables(inputs)))
    text += fmt::format("  {}={}: {}\n", use.name, visible(use.value), use.effect);
  return text.empty() ? text : title("environment") + text;
}

std::string launch_lines(const PlanInputs& inputs) {
  const LaunchOptions& launch = inputs.launch;
  std::string text;
  for (const OuterText& outer : inputs.outer) {
    text += fmt::format("  {:<12}{}\n", outer.mode, outer.command);
    for (const std::string& remark : outer.remarks) text += line("", remark);
  }
  if (!launch.launcher_file.empty()) text += line("defaults", launch.launcher_file);
  for (const launch::Script& script : inputs.scripts) {
    const char* kind = script.kind == launch::ScriptKind::kPatch       ? "patch"
                       : script.kind == launch::ScriptKind::kAfterHook ? "hook after"
                                                                       : "hook";
    text += line(kind, script.path.string() + " (not run by a dry run)");
  }
  if (!launch.log_file.empty()) text += line("log file", launch.log_file);
  if (!inputs.export_config.empty()) text += line("export", inputs.export_config + " (not written by a dry run)");
  return text.empty() ? text : title("launch") + text;
}

/// What a plan can say about data without a run: files that are there are opened, and nothing is written.
std::string data_lines(const Experiment& experiment) {
  std::string text;
  for (const DataUse& use : look_at_data(experiment)) {
    const std::string what = use.fault.empty() ? fmt::format("{} sequences, {} tokens", format_count(use.num_sequences),
                                                             format_count(use.num_tokens))
                                               : use.fault;
    text += fmt::format("  {}: {}: {}\n", use.key, visible(use.prefix), what);
  }
  if (!text.empty()) return title("data (the index of each file was read, its tokens were not)") + text;
  const bool is_mock = experiment.get_bool("mock_data");
  return title("data") + (is_mock ? "  mock_data: token ids are made up, no file is read\n"
                                  : "  no file is named: a real train needs data_path or train_data_path\n");
}

std::string start_lines(const Experiment& experiment) {
  const StartUse use = look_at_start(experiment);
  std::string text = "random weights";
  if (!use.fault.empty()) {
    text = "a real train refuses " + use.fault;
  } else if (!use.key.empty()) {
    text = fmt::format("{} ({})", use.folder, use.key);
  }
  return title("start") + fmt::format("  {}\n", visible(text));
}

Json start_json(const Experiment& experiment) {
  const StartUse use = look_at_start(experiment);
  if (use.key.empty()) return {{"from", "random weights"}};
  if (!use.fault.empty()) return {{"key", use.key}, {"fault", use.fault}};
  return {{"from", use.folder}, {"key", use.key}};
}

Json data_json(const Experiment& experiment) {
  Json json = Json::array();
  for (const DataUse& use : look_at_data(experiment)) {
    Json entry = {{"key", use.key}, {"prefix", use.prefix}};
    if (use.fault.empty()) {
      entry.update({{"sequences", use.num_sequences}, {"tokens", use.num_tokens}});
    } else {
      entry["fault"] = use.fault;
    }
    json.push_back(std::move(entry));
  }
  return json;
}

std::vector<config::Note> all_no_effect(const PlanInputs& inputs) {
  std::vector<config::Note> notes = inputs.launch.no_effect;
  notes.insert(notes.end(), inputs.resolution.no_effect.begin(), inputs.resolution.no_effect.end());
  return notes;
}

}  // namespace

std::string plan_report(const PlanInputs& inputs) {
  const Resolution& resolution = inputs.resolution;
  const Experiment& experiment = resolution.experiment;
  std::string text = title(fmt::format("plan of {}", experiment.exp_name));
  text += line("experiment", inputs.experiment_file);
  if (!experiment.model_preset.empty()) {
    text += line("presets", fmt::format("{} on {}", experiment.model_preset, experiment.module_preset));
  }
  text += line("folder", experiment.run_folder());
  text += title("model") + model_lines(experiment);
  text += title("run") + batch_lines(resolution);
  text += data_lines(experiment);
  text += start_lines(experiment);
  std::vector<config::Note> notes = resolution.notes;
  text += override_lines(inputs, notes);
  text += note_lines("notes", notes);
  text += no_effect_lines(all_no_effect(inputs));
  text += planned_lines("planned (a real train refuses these)", resolution.planned);
  text += planned_lines("planned (a real train computes the same numbers without these)", resolution.yielding);
  text += environment_lines(inputs);
  text += launch_lines(inputs);
  text += title("worker") + fmt::format("  {}\n", launch::shell_text(inputs.command));
  return text;
}

Json plan_json(const PlanInputs& inputs) {
  Json json = json_of(inputs.resolution, Origins::kShown);
  for (const config::Note& note : inputs.launch.no_effect)
    json["no_effect"].push_back({{"key", note.key}, {"text", note.text}});
  const model::ModelSpec spec = model::build_model_spec(inputs.resolution.experiment);
  const model::ParameterCount count = model::count_parameters(spec);
  json["overrides"] = overrides_json(inputs.resolution);
  json["data"] = data_json(inputs.resolution.experiment);
  json["start"] = start_json(inputs.resolution.experiment);
  json["parameters"] = {{"total", count.total}, {"active", count.active}};
  json["environment"] = Json::array();
  for (const launch::VariableUse& use : launch::explain_variables(worker_variables(inputs)))
    json["environment"].push_back({{"name", use.name}, {"value", use.value}, {"effect", use.effect}});
  if (!inputs.export_config.empty()) json["export_config"] = inputs.export_config;
  json["launch"] = Json::array();
  for (const OuterText& outer : inputs.outer)
    json["launch"].push_back({{"mode", outer.mode}, {"command", outer.command}});
  json["scripts"] = Json::array();
  for (const launch::Script& script : inputs.scripts) json["scripts"].push_back(script.path.string());
  json["worker"] = launch::shell_text(inputs.command);
  return json;
}

std::string start_notes(const Resolution& resolution) {
  return note_lines("notes", resolution.notes) + no_effect_lines(resolution.no_effect);
}

}  // namespace primus::cli
