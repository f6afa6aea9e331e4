#include "config/rules.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "config/key_table.hpp"

namespace primus::config {

Problem problem_at(const Experiment& experiment, std::string_view key, const std::string& experiment_file) {
  const Origin& origin = experiment.setting(key).origin;
  Problem problem{.file = origin.file, .line = origin.line, .key = std::string(key)};
  switch (origin.layer) {
    case Layer::kExperiment:
      problem.key = fmt::format("modules.{}.overrides.{}", experiment.module, key);
      break;
    case Layer::kCommandLine:
      problem.key = fmt::format("--{}", key);
      break;
    case Layer::kDefault:
    case Layer::kRule:
      problem.file = experiment_file;
      break;
    default:
      break;
  }
  return problem;
}

std::string setting_text(const Experiment& experiment, std::string_view key) {
  const Setting& setting = experiment.setting(key);
  std::string place;
  switch (setting.origin.layer) {
    case Layer::kDefault:
      place = "default";
      break;
    case Layer::kRule:
      place = fmt::format("rule {}", setting.origin.file);
      break;
    case Layer::kCommandLine:
      place = "command line";
      break;
    default:
      place = fmt::format("{}:{}", setting.origin.file, setting.origin.line);
  }
  return fmt::format("{} {} ({})", key, to_text(setting.value), place);
}

std::string cause_text(const Experiment& experiment, std::string_view key) {
  const Value& value = experiment.setting(key).value;
  const bool* truth = std::get_if<bool>(&value.data);
  return truth && *truth ? std::string(key) : fmt::format("{} {}", key, to_text(value));
}

std::int64_t nearest_divisor(std::int64_t whole, std::int64_t wanted) {
  for (std::int64_t distance = 0; distance < whole; ++distance) {
    if (wanted - distance >= 1 && whole % (wanted - distance) == 0) return wanted - distance;
    if (wanted + distance <= whole && whole % (wanted + distance) == 0) return wanted + distance;
    if (wanted - distance < 1 && wanted + distance > whole) break;
  }
  return std::min(whole, wanted);
}

bool RuleContext::is_wanted(std::string_view key) const {
  return strength(key) >= 2 * static_cast<int>(Layer::kExperiment);
}

int RuleContext::strength(std::string_view key) const {
  const Origin& origin = experiment_.setting(key).origin;
  if (origin.layer == Layer::kRule) {
    const auto found = strength_of_rule_values_.find(key);
    return found == strength_of_rule_values_.end() ? 0 : found->second;
  }
  const bool is_in_the_file_itself = origin.layer == Layer::kExperiment && origin.file == file_;
  return 2 * static_cast<int>(origin.layer) + (is_in_the_file_itself ? 1 : 0);
}

std::string RuleContext::root_of(std::string_view key) const {
  std::string root(key);
  // As many steps as there are causes, should two rules ever name each other.
  for (std::size_t i = 0; i < cause_of_rule_values_.size(); ++i) {
    const auto cause = cause_of_rule_values_.find(root);
    if (cause == cause_of_rule_values_.end() || experiment_.setting(root).origin.layer != Layer::kRule) break;
    root = cause->second;
  }
  return root;
}

std::optional<std::string> RuleContext::variable(const std::string& name) const {
  const auto found = experiment_.env.find(name);
  if (found != experiment_.env.end()) return found->second;
  const char* value = std::getenv(name.c_str());
  return value ? std::optional<std::string>(value) : std::nullopt;
}

void RuleContext::report(std::string_view key, std::string message, std::string expected, std::string nearest) {
  report(key, {.message = std::move(message),
               .expected = std::move(expected),
               .found = to_text(experiment_.setting(key).value),
               .nearest = std::move(nearest)});
}

void RuleContext::report(std::string_view key, Problem what) {
  const std::string root = root_of(key);
  const Problem place = problem_at(experiment_, root, file_);
  what.file = place.file;
  what.line = place.line;
  what.key = place.key;
  const Setting& setting = experiment_.setting(key);
  if (root != key) {
    what.message = fmt::format("sets {} to {}, which {}", key, to_text(setting.value), what.message);
  } else if (setting.origin.layer == Layer::kRule) {
    what.message = fmt::format("{} (set by rule {})", what.message, setting.origin.file);
  }
  problems_.push_back(std::move(what));
}

void RuleContext::plan(std::string_view key, std::string reason) {
  const Setting& setting = experiment_.setting(key);
  planned_.push_back({std::string(key), to_text(setting.value), setting.origin, std::move(reason)});
}

void RuleContext::set(std::string_view key, Value value) {
  experiment_.set(key, std::move(value), {Layer::kRule, std::string(rule_), 0});
}

void RuleContext::require(std::string_view key, const Value& value, std::string_view because) {
  if (experiment_.setting(key).value == value) return;
  if (is_wanted(key)) {
    report(key, fmt::format("conflicts with {}", because), to_text(value),
           fmt::format("write {}: {}, or leave it out", key, to_text(value)));
    return;
  }
  note(key, fmt::format("{} -> {}, because of {}", to_text(experiment_.setting(key).value), to_text(value), because));
  set(key, value);
}

// Only a value that the user wrote has a place worth naming.
void RuleContext::overrule(std::string_view key, const Value& value, std::string_view cause) {
  const int strength_of_cause = strength(cause);
  const std::string because = cause_text(experiment_, cause);
  const Setting& setting = experiment_.setting(key);
  if (setting.value == value) return;
  if (is_explicit(setting.origin)) {
    const std::string place =
        setting.origin.line > 0 ? fmt::format("{}:{}", setting.origin.file, setting.origin.line) : setting.origin.file;
    const std::string_view order = strength_of_cause > strength(key) ? ", which was written later" : "";
    note(key,
         fmt::format("{} ({}) -> {}, because of {}{}", to_text(setting.value), place, to_text(value), because, order),
         cause);
  } else {
    note(key, fmt::format("{} -> {}, because of {}", to_text(setting.value), to_text(value), because), cause);
  }
  experiment_.set(key, value, {Layer::kRule, fmt::format("{}, because of {}", rule_, root_of(cause)), 0});
  strength_of_rule_values_[std::string(key)] = strength_of_cause;
  cause_of_rule_values_[std::string(key)] = cause;
}

bool RuleContext::demand(std::string_view cause, const std::vector<Demand>& needs, Nature nature) {
  bool is_refused = false;
  for (const Demand& need : needs) {
    if (experiment_.setting(need.key).value == need.value || !is_wanted(need.key)) continue;
    if (nature == Nature::kSwitch && !is_wanted(cause)) {
      overrule(cause, default_value(*find_key(cause)), need.key);
      return false;
    }
    if (is_stronger(cause, need.key)) continue;
    is_refused = true;
    const std::string root = root_of(cause);
    const std::string chain = root == cause ? "" : fmt::format(", which needs {}", cause);
    const std::string way =
        fmt::format("write {}: {}, or leave {} out", need.key, to_text(need.value), is_wanted(cause) ? root : "it");
    report(need.key, fmt::format("conflicts with {}{}", setting_text(experiment_, root), chain), to_text(need.value),
           need.way.empty() ? way : need.way);
  }
  // What would follow from a refused wish is not worth telling.
  if (is_refused) return true;
  for (const Demand& need : needs) overrule(need.key, need.value, cause);
  return true;
}

void RuleContext::exclude(const Alternative& first, const Alternative& second) {
  if (is_stronger(second.key, first.key)) return overrule(first.key, first.off, second.key);
  if (is_stronger(first.key, second.key)) return overrule(second.key, second.off, first.key);
  report(second.key, fmt::format("conflicts with {}", setting_text(experiment_, first.key)), "one of the two",
         fmt::format("leave {} or {} out", first.key, second.key));
}

std::vector<RuleGroup> rule_groups() {
  // Sizes stop what would compute with them. What kind of model it is then comes first, and data: mock_data decides the
  // tokenizer. Turbo next: a stage switches keys on that others then check. The pipeline comes after the batch, whose
  // micro-batches its schedule takes.
  return {{"sizes", size_rules()},          {"kinds", kind_rules()},
          {"data", data_rules()},           {"turbo", turbo_rules()},
          {"precision", precision_rules()}, {"parallelism", parallel_rules()},
          {"pipeline", pipeline_rules()},   {"communication", communication_rules()},
          {"training", training_rules()},   {"recomputation", recompute_rules()},
          {"model", model_rules()},         {"experts", moe_rules()},
          {"output", output_rules()}};
}

std::vector<Rule> all_rules() {
  std::vector<Rule> rules;
  for (const RuleGroup& group : rule_groups()) rules.insert(rules.end(), group.rules.begin(), group.rules.end());
  return rules;
}

}  // namespace primus::config
