#include "config/resolve.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <set>
#include <utility>

#include "base/text.hpp"
#include "base/visible.hpp"
#include "config/checkpoint_settings.hpp"
#include "config/file_text.hpp"
#include "config/key_table.hpp"
#include "config/loader.hpp"
#include "config/map_entries.hpp"
#include "config/merge.hpp"
#include "config/overrides.hpp"
#include "config/parse.hpp"
#include "config/read_beside.hpp"

namespace primus::config {
namespace {

constexpr std::array<std::string_view, 7> kTopLevel = {"work_group", "user_name", "exp_name", "workspace",
                                                       "platform",   "env",       "modules"};
constexpr std::array<std::string_view, 5> kModuleKeys = {"framework", "config", "model", "overrides", "trainer_class"};

constexpr std::array<std::pair<std::string_view, std::string Experiment::*>, kRunNames.size()> kIdentity = {{
    {"work_group", &Experiment::work_group},
    {"user_name", &Experiment::user_name},
    {"exp_name", &Experiment::exp_name},
    {"workspace", &Experiment::workspace},
}};

std::string hint(std::string_view name, std::span<const std::string_view> candidates) {
  const auto nearest = nearest_name(name, candidates);
  return nearest ? fmt::format("did you mean '{}'?", *nearest) : "";
}

// `$NAME` in the values of the env map, as a shell would fill it in.
std::string with_variables(const std::string& text) {
  std::string result;
  for (std::size_t i = 0; i < text.size(); ++i) {
    std::size_t end = i + 1;
    while (end < text.size() && (std::isalnum(static_cast<unsigned char>(text[end])) || text[end] == '_')) ++end;
    if (text[i] != '$' || end == i + 1) {
      result += text[i];
      if (text.compare(i, 2, "$$") == 0) ++i;  // $$: a dollar sign
      continue;
    }
    const char* value = std::getenv(text.substr(i + 1, end - i - 1).c_str());
    result += value ? value : "";
    i = end - 1;
  }
  return result;
}

// The same fault is told once, however many paths led to it; and who has hundreds needs no more than the first.
std::vector<Problem> distinct(std::vector<Problem> problems) {
  constexpr std::size_t kMost = 200;
  std::set<std::string> told;
  std::erase_if(problems, [&told](const Problem& problem) { return !told.insert(to_text(problem)).second; });
  if (problems.size() <= kMost) return problems;
  const std::size_t num_more = problems.size() - kMost;
  problems.resize(kMost);
  problems.push_back({.message = fmt::format("and {} more", num_more)});
  return problems;
}

class Resolver {
 public:
  explicit Resolver(const ResolveRequest& request) : request_(request), merger_(setting_problems_) {}

  Resolution run() {
    const Node root = load_file(request_.file, problems_, &result_.files);
    collect_variables(root);
    file_ = request_.file.lexically_normal().string();
    const bool is_empty = root.kind == Node::Kind::kMap && root.entries.empty();
    if (is_empty && problems_.empty()) {
      add_problem({.file = file_, .message = "is empty"},
                  "an experiment: work_group, user_name, exp_name, workspace, modules");
    }
    if (root.kind == Node::Kind::kMap && !is_empty) {
      read_identity(root);
      read_environment(root);
      read_module(root);
    }
    read_overrides();
    // A file that could not be read, or is empty, has no names to find fault with.
    if (root.kind == Node::Kind::kMap && !is_empty) {
      check_identity(root);
      check_identity_names();
    }
    // Rules read every setting: without presets they would only tell what follows from that.
    const bool is_whole = problems_.empty();
    problems_.insert(problems_.end(), setting_problems_.begin(), setting_problems_.end());
    if (!is_whole) throw_problems();
    merger_.apply_to(result_.experiment);
    take_from_checkpoint();
    apply_rules();
    if (setting_problems_.empty() && has_plausible_sizes(result_.experiment)) collect_key_states();
    if (!problems_.empty()) throw_problems();
    return std::move(result_);
  }

 private:
  // A value that a variable filled in is not in the file for its reader to see.
  void collect_variables(const Node& node) {
    for (const std::string& variable : node.variables) {
      std::vector<std::string>& known = variables_of_line_[{node.origin.file, node.origin.line}];
      if (std::find(known.begin(), known.end(), variable) == known.end()) known.push_back(variable);
    }
    for (const Node& item : node.items) collect_variables(item);
    for (const Node::Entry& entry : node.entries) collect_variables(entry.value);
  }

  [[noreturn]] void throw_problems() {
    for (Problem& problem : problems_) {
      const auto found = variables_of_line_.find({problem.file, problem.line});
      if (found == variables_of_line_.end() || problem.line == 0) continue;
      for (const std::string& name : found->second) {
        const char* value = std::getenv(name.c_str());
        if (!value) {
          problem.nearest += fmt::format("{}the '-' belongs to the default of {}: without it ${{{}:value}}",
                                         problem.nearest.empty() ? "" : "; ", name, name);
          continue;
        }
        problem.nearest += fmt::format("{}this line takes {} from the environment, where it is '{}'",
                                       problem.nearest.empty() ? "" : "; ", name, visible(value));
      }
    }
    throw ConfigError(distinct(std::move(problems_)));
  }

  Problem at(const Node& node, std::string key, std::string message) const {
    return {.file = node.origin.file, .line = node.origin.line, .key = std::move(key), .message = std::move(message)};
  }

  void add_problem(Problem problem, std::string expected = "", std::string found = "", std::string nearest = "") {
    problem.expected = std::move(expected);
    problem.found = std::move(found);
    problem.nearest = std::move(nearest);
    problems_.push_back(std::move(problem));
  }

  // Text of a scalar that must be there; empty after a reported fault.
  std::string required_text(const Node& map, std::string_view name, const std::string& full_name) {
    const Node* node = map.find(name);
    if (!node) {
      add_problem({.file = file_, .line = map.origin.line, .key = full_name, .message = "is missing"}, "text");
      return "";
    }
    if (node->is_broken()) return "";
    if (node->kind != Node::Kind::kScalar || node->is_null()) {
      add_problem(at(*node, full_name, "wrong type"), "text", found_text(*node));
      return "";
    }
    return node->text;
  }

  void add_name(std::string name, const std::string& text, const Node& node) {
    result_.names[std::move(name)] = {{text}, {Layer::kExperiment, node.origin.file, node.origin.line}};
  }

  void read_identity(const Node& root) {
    for (const auto& [name, member] : kIdentity) {
      const Node* node = root.find(name);
      if (!node) continue;
      if (node->is_broken()) {
        has_identity_fault_ = true;
        continue;
      }
      if (node->kind != Node::Kind::kScalar || node->is_null()) {
        has_identity_fault_ = true;
        add_problem(at(*node, std::string(name), "wrong type"), "text", found_text(*node));
      }
      result_.experiment.*member = node->text;
      add_name(std::string(name), node->text, *node);
    }
    for (const Node::Entry& entry : root.entries) {
      if (std::find(kTopLevel.begin(), kTopLevel.end(), entry.key) != kTopLevel.end()) continue;
      const bool is_setting = find_key(entry.key) != nullptr;
      add_problem(at(entry.value, entry.key, "unknown key at the top of an experiment"), "", "",
                  is_setting ? "it belongs under modules.<trainer>.overrides" : hint(entry.key, kTopLevel));
    }
    if (const Node* platform = root.find("platform")) {
      result_.no_effect.push_back({"platform", fmt::format("launch settings come from options and environment ({}:{})",
                                                           platform->origin.file, platform->origin.line)});
    }
  }

  // After the overrides, which may name the run.
  void check_identity(const Node& root) {
    for (const auto& [name, member] : kIdentity) {
      if (!(result_.experiment.*member).empty() || root.find(name)) continue;
      has_identity_fault_ = true;
      add_problem({.file = file_, .key = std::string(name), .message = "is missing"}, "text");
    }
  }

  void read_environment(const Node& root) {
    const Node* env = root.find("env");
    if (!env || env->is_null()) return;
    if (env->kind == Node::Kind::kScalar && env->is_broken()) return;
    if (env->kind != Node::Kind::kMap) {
      add_problem(at(*env, "env", "wrong type"), "map of environment variables", found_text(*env));
      return;
    }
    for (const Node::Entry& entry : env->entries) {
      if (!is_variable_name(entry.key)) {
        add_problem(at(entry.value, "env", "not the name of a variable"), "letters, digits and '_', no digit first",
                    fmt::format("'{}'", entry.key));
        continue;
      }
      if (entry.value.is_broken()) continue;
      if (entry.value.kind != Node::Kind::kScalar) {
        add_problem(at(entry.value, "env." + entry.key, "wrong type"), "text", found_text(entry.value));
        continue;
      }
      if (is_utf8(entry.value.text)) {
        const std::string& value = result_.experiment.env[entry.key] = with_variables(entry.value.text);
        add_name("env." + entry.key, value, entry.value);
      } else {
        add_problem(at(entry.value, "env." + entry.key, "not valid UTF-8"), "text");
      }
    }
    if (!request_.check_variables) return;
    for (Problem& problem : request_.check_variables(result_.experiment.env)) {
      const Origin& origin = env->find(problem.key)->origin;
      problem.file = origin.file;
      problem.line = origin.line;
      problem.key = "env." + problem.key;
      problems_.push_back(std::move(problem));
    }
  }

  void read_module(const Node& root) {
    const Node* modules = root.find("modules");
    if (modules && modules->kind == Node::Kind::kScalar && modules->is_broken()) return;
    if (!modules || modules->kind != Node::Kind::kMap) {
      Problem problem = modules ? at(*modules, "modules", "wrong type")
                                : Problem{.file = file_, .key = "modules", .message = "is missing"};
      add_problem(std::move(problem), "map with one trainer, for instance pre_trainer",
                  modules ? found_text(*modules) : "");
      return;
    }
    const Node::Entry* chosen = nullptr;
    bool has_wrong_name = false;
    for (const Node::Entry& entry : modules->entries) {
      if (entry.key.find("trainer") == std::string::npos) {
        has_wrong_name = true;
        add_problem(at(entry.value, "modules." + entry.key, "the name of a module holds the word trainer"),
                    "pre_trainer", entry.key);
      } else if (!chosen || entry.key == "pre_trainer") {
        chosen = &entry;
      }
    }
    if (modules->entries.empty()) return add_problem(at(*modules, "modules", "holds no trainer"), "pre_trainer");
    // What a module of a wrong name holds is wrong or right all the same; what is no block is no module.
    if (!chosen) chosen = &modules->entries.front();
    if (has_wrong_name && chosen == &modules->entries.front() && chosen->value.kind != Node::Kind::kMap &&
        chosen->key.find("trainer") == std::string::npos)
      return;
    for (const Node::Entry& entry : modules->entries) {
      if (entry.key == chosen->key || entry.key.find("trainer") == std::string::npos) continue;
      add_problem(at(entry.value, "modules." + entry.key, "a second trainer"), "one trainer", entry.key,
                  fmt::format("leave it out, or leave {} out", chosen->key));
    }
    result_.experiment.module = chosen->key;
    read_trainer(chosen->value, "modules." + chosen->key);
  }

  void read_trainer(const Node& module, const std::string& place) {
    if (module.kind == Node::Kind::kScalar && module.is_broken()) return;
    if (module.kind != Node::Kind::kMap) {
      add_problem(at(module, place, "wrong type"), "map", found_text(module));
      return;
    }
    Experiment& experiment = result_.experiment;
    experiment.framework = required_text(module, "framework", place + ".framework");
    // What is missing or could not be filled in has been told; the only one there is finds the presets.
    if (experiment.framework.empty()) experiment.framework = "megatron";
    if (experiment.framework != "megatron") {
      add_problem(at(*module.find("framework"), place + ".framework", "this framework is not part of Primus-CPP"),
                  "megatron", experiment.framework);
      return;
    }
    const bool has_config = module.find("config") != nullptr;
    const bool has_model = module.find("model") != nullptr;
    if (has_config != has_model) {
      add_problem(at(module, place, has_config ? "has a config but no model" : "has a model but no config"),
                  "both, or neither");
    }
    if (has_config && has_model) {
      experiment.module_preset = required_text(module, "config", place + ".config");
      experiment.model_preset = required_text(module, "model", place + ".model");
      add_name("config", experiment.module_preset, *module.find("config"));
      add_name("model", experiment.model_preset, *module.find("model"));
      read_preset("modules", experiment.module_preset, *module.find("config"), place + ".config", Layer::kModulePreset);
      read_preset("models", experiment.model_preset, *module.find("model"), place + ".model", Layer::kModelPreset);
    }
    read_module_keys(module, place, has_config || has_model ? Shape::kWithPresets : Shape::kFlat);
  }

  void read_preset(const std::string& kind, const std::string& name, const Node& where, const std::string& key,
                   Layer layer) {
    if (name.empty()) return;
    const Problem place{.file = where.origin.file, .line = where.origin.line, .key = key};
    try {
      const Node preset = load_preset({kind, result_.experiment.framework, name, place}, problems_, &result_.files);
      collect_variables(preset);
      merger_.add_layer(preset, layer, "");
    } catch (const UserError& error) {
      add_problem({.message = error.what()});
    }
  }

  // Without presets the block itself holds the settings.
  enum class Shape { kWithPresets, kFlat };

  void read_module_keys(const Node& module, const std::string& place, Shape shape) {
    for (const Node::Entry& entry : module.entries) {
      if (entry.key == "overrides") {
        const bool is_scalar = entry.value.kind == Node::Kind::kScalar;
        if (entry.value.is_null() || (is_scalar && entry.value.is_broken())) continue;
        if (entry.value.kind != Node::Kind::kMap) {
          add_problem(at(entry.value, place + ".overrides", "wrong type"), "map of keys", found_text(entry.value));
          continue;
        }
        merger_.add_layer(entry.value, Layer::kExperiment, place + ".overrides.");
      } else if (entry.key == "trainer_class") {
        if (!entry.value.is_null() && !entry.value.is_broken()) {
          add_problem(at(entry.value, place + ".trainer_class", "trainers written in Python cannot run here"), "null",
                      found_text(entry.value));
        }
      } else if (std::find(kModuleKeys.begin(), kModuleKeys.end(), entry.key) == kModuleKeys.end()) {
        if (shape == Shape::kFlat) {
          merger_.add(entry.key, entry.value, Layer::kExperiment, place + "." + entry.key);
        } else {
          add_problem(
              at(entry.value, place + "." + entry.key, "unknown key of a module"), "", "",
              find_key(entry.key) ? fmt::format("it belongs under {}.overrides", place) : hint(entry.key, kModuleKeys));
        }
      }
    }
  }

  void read_overrides() {
    for (const Override& item : parse_overrides(request_.overrides, problems_)) {
      const auto identity =
          std::find_if(kIdentity.begin(), kIdentity.end(), [&](const auto& row) { return row.first == item.key; });
      if (identity != kIdentity.end() && item.value.is_null()) {
        has_identity_fault_ = true;
        const bool is_empty = item.value.text.empty();
        add_problem({.file = "command line", .key = item.written, .message = is_empty ? "needs a value" : "wrong type"},
                    "text", is_empty ? "''" : "null");
      } else if (identity != kIdentity.end()) {
        result_.experiment.*(identity->second) = item.value.text;
        Setting& setting = result_.names[item.key];
        if (!setting.value.is_null()) setting.replaced.push_back({setting.value, setting.origin});
        setting.value = {item.value.text};
        setting.origin = {Layer::kCommandLine, "command line", 0};
      } else {
        merger_.add(item.key, item.value, Layer::kCommandLine, item.written);
      }
    }
  }

  /// The run's folder is made of these names: none may be empty or lead elsewhere.
  void check_identity_names() {
    for (const auto& [name, member] : kIdentity) {
      const std::string& text = result_.experiment.*member;
      const auto written = result_.names.find(name);
      Problem place{.file = file_, .key = std::string(name)};
      if (written != result_.names.end()) {
        place.file = written->second.origin.file;
        place.line = written->second.origin.line;
      }
      const bool is_path = name == "workspace";
      const bool leads_elsewhere = !is_path && (text == "." || text == ".." || text.find('/') != std::string::npos);
      const bool has_control =
          std::any_of(text.begin(), text.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; });
      if (!is_utf8(text)) {
        place.message = "not valid UTF-8";
        add_problem(std::move(place), "text");
        continue;
      }
      if (has_control) {
        place.message = "holds a control character";
        add_problem(std::move(place), "text of one line", fmt::format("'{}'", visible(text)));
        continue;
      }
      if (!leads_elsewhere && !text.empty()) continue;
      if (text.empty() && has_identity_fault_) continue;  // told already
      place.message = "cannot name a part of the run's folder";
      add_problem(std::move(place), is_path ? "a folder" : "a name without '/'", fmt::format("'{}'", text));
    }
  }

  void take_from_checkpoint() {
    CheckpointSettings taken = take_checkpoint_settings(result_.experiment, file_);
    problems_.insert(problems_.end(), taken.problems.begin(), taken.problems.end());
    result_.notes.insert(result_.notes.end(), taken.notes.begin(), taken.notes.end());
  }

  void apply_rules() {
    constexpr std::int64_t kMaxProcesses = 10'000'000;
    const bool is_plausible = has_plausible_sizes(result_.experiment);
    result_.world = request_.world.value_or(
        WorldSize{is_plausible ? smallest_world(result_.experiment) : 1, "the smallest that is legal"});
    if (result_.world.size < 1 || result_.world.size > kMaxProcesses) {
      add_problem({.message = fmt::format("no run has so many processes ({})", result_.world.source)},
                  fmt::format("1 to {}", kMaxProcesses), std::to_string(result_.world.size));
      return;
    }
    RuleContext context(result_.experiment, request_.purpose, result_.world, file_);
    for (const RuleGroup& group : rule_groups()) {
      for (const Rule& rule : group.rules) {
        context.enter(rule.name);
        rule.apply(context);
      }
      if (!is_plausible) break;
    }
    for (const Problem& problem : context.problems()) {
      if (!follows_from_setting_problems(problem)) problems_.push_back(problem);
    }
    result_.notes.insert(result_.notes.end(), context.notes().begin(), context.notes().end());
    result_.planned = context.planned();
  }

  // A setting that could not be read leaves the inherited value in its place; what a rule then says about that key is
  // not the user's fault. The same for the key that a misspelt name was meant to be.
  bool follows_from_setting_problems(const Problem& problem) const {
    const std::string text = to_text(problem);
    return std::any_of(setting_problems_.begin(), setting_problems_.end(), [&](const Problem& cause) {
      const std::string name = cause.key.substr(cause.key.find_last_of(".-") + 1);
      // Without the layout that was meant, the layers are cut evenly, which nobody asked for.
      constexpr std::string_view kCuts[] = {"pipeline_model_parallel_layout", "decoder_pipeline_manual_split_list",
                                            "decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers"};
      const bool is_cut = std::find(std::begin(kCuts), std::end(kCuts), name) != std::end(kCuts);
      if (is_cut && problem.key.ends_with("pipeline_model_parallel_size")) return true;
      const std::size_t quote = cause.nearest.find('\'');
      const std::string meant =
          quote == std::string::npos ? name : cause.nearest.substr(quote + 1, cause.nearest.rfind('\'') - quote - 1);
      return text.find(name) != std::string::npos || text.find(meant) != std::string::npos;
    });
  }

  void collect_key_states() {
    const Experiment& experiment = result_.experiment;
    for (const auto& [name, setting] : experiment.settings()) {
      const Key& key = *find_key(name);
      const bool is_written = is_explicit(setting.origin);
      if (is_written) tell_unread_entries(key, setting.value);
      if (key.state == KeyState::kNoEffect && is_written) result_.no_effect.push_back({name, std::string(key.note)});
      if (key.state == KeyState::kNoEffect) continue;
      if (!is_read(key, experiment)) {
        if (is_written && setting.value != default_value(key)) result_.no_effect.push_back({name, unread_text(key)});
        continue;
      }
      if (is_working_value(key, setting.value) || (!is_written && has_planned_switch(key, experiment))) continue;
      PlannedUse use{name, to_text(setting.value), setting.origin, unbuilt_text(key)};
      // A train cannot compute something else than it was told; how it computes may differ where nobody insisted.
      const bool yields = key.impact == Impact::kExecution && !is_written;
      (yields ? result_.yielding : result_.planned).push_back(std::move(use));
    }
    if (request_.purpose != Purpose::kTrain) return;
    for (const PlannedUse& use : result_.yielding) {
      result_.notes.push_back(
          {use.key, fmt::format("{} is planned; the same numbers are computed without it", use.value)});
    }
    for (const PlannedUse& use : result_.planned) refuse(use);
  }

  void tell_unread_entries(const Key& key, const Value& value) {
    for (const std::string& entry : unread_entries(key, value))
      result_.no_effect.push_back({entry, fmt::format("read only beside {}.enabled", key.name)});
  }

  // The key that the user wrote and that made rules set this one, by their notes.
  std::string root_of(const std::string& key) const {
    std::string root = key;
    for (std::size_t i = 0; i < result_.notes.size(); ++i) {
      if (result_.experiment.setting(root).origin.layer != Layer::kRule) break;
      const auto note = std::find_if(result_.notes.begin(), result_.notes.end(), [&](const Note& candidate) {
        return candidate.key == root && !candidate.cause.empty();
      });
      if (note == result_.notes.end()) break;
      root = note->cause;
    }
    return root;
  }

  void refuse(const PlannedUse& use) {
    const std::string root = root_of(use.key);
    Problem problem = problem_at(result_.experiment, root, file_);
    const bool is_known =
        std::any_of(problems_.begin(), problems_.end(), [&](const Problem& other) { return other.key == problem.key; });
    if (is_known) return;
    problem.message = fmt::format("planned, not built yet: {}", use.reason);
    if (root != use.key)
      problem.message = fmt::format("sets {} to {}, which is {}", use.key, use.value, problem.message);
    problem.expected = working_text(*find_key(use.key));
    problem.found = use.value;
    problems_.push_back(std::move(problem));
  }

  static std::string working_text(const Key& key) {
    if (key.working.empty()) return key.state == KeyState::kPlanned ? std::string(key.default_text) : "";
    std::string text;
    for (const std::string& word : split(key.working, '|')) text += (text.empty() ? "" : " or ") + word;
    return text;
  }

  const ResolveRequest& request_;
  std::vector<Problem> problems_;
  std::vector<Problem> setting_problems_;  // unknown keys and values that do not fit theirs
  SettingMerger merger_;
  Resolution result_;
  bool has_identity_fault_ = false;
  std::map<std::pair<std::string, int>, std::vector<std::string>> variables_of_line_;
  std::string file_;
};

std::string origin_comment(const Origin& origin) {
  switch (origin.layer) {
    case Layer::kDefault:
      return "default";
    case Layer::kRule:
      return fmt::format("rule {}", origin.file);
    case Layer::kCommandLine:
      return "command line";
    default:
      return fmt::format("{}:{}", visible(origin.file), origin.line);  // a comment is one line
  }
}

}  // namespace

Resolution resolve(const ResolveRequest& request) {
  return Resolver(request).run();
}

std::string to_yaml(const Experiment& experiment) {
  std::string text(kResolvedHeading);
  text +=
      "every setting with the place that set it. What presets and rules set stands as a "
      "comment,\n"
      "# because they set it again, so that this file resolves to itself.\n";
  for (const auto& [name, member] : kIdentity) text += fmt::format("{}: {}\n", name, file_text({experiment.*member}));
  if (!experiment.env.empty()) text += "env:\n";
  // In this map a reader fills in $NAME as well.
  for (const auto& [name, value] : experiment.env) text += fmt::format("  {}: {}\n", name, variable_file_text(value));
  text += fmt::format("modules:\n  {}:\n    framework: {}\n", experiment.module, experiment.framework);
  if (!experiment.module_preset.empty()) {
    text += fmt::format("    config: {}\n    model: {}\n", experiment.module_preset, experiment.model_preset);
  }
  text += "    overrides:\n";
  for (const KeySection& section : key_sections()) {
    bool has_title = false;
    for (const Key& key : section.keys) {
      const auto found = experiment.settings().find(key.name);
      if (found == experiment.settings().end()) continue;
      const auto& [value, origin, replaced] = found->second;
      if (!std::exchange(has_title, true)) text += fmt::format("      # {}\n", section.area);
      text += fmt::format("      {}{}: {}  # {}\n", is_explicit(origin) ? "" : "# ", key.name, file_text(value),
                          origin_comment(origin));
    }
  }
  return text;
}

}  // namespace primus::config
