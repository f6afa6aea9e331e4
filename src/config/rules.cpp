#include "config/rules.hpp"

#include <fmt/format.h>

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

void RuleContext::report(std::string_view key, std::string message, std::string expected, std::string nearest) {
  report(key, {.message = std::move(message),
               .expected = std::move(expected),
               .found = to_text(experiment_.setting(key).value),
               .nearest = std::move(nearest)});
}

void RuleContext::report(std::string_view key, Problem what) {
  Problem problem = problem_at(experiment_, key, file_);
  problem.message = std::move(what.message);
  problem.expected = std::move(what.expected);
  problem.found = std::move(what.found);
  problem.nearest = std::move(what.nearest);
  problems_.push_back(std::move(problem));
}

void RuleContext::plan(std::string_view key, std::string reason) {
  const Setting& setting = experiment_.setting(key);
  planned_.push_back({std::string(key), to_text(setting.value), setting.origin, std::move(reason)});
}

void RuleContext::set(std::string_view key, Value value) {
  experiment_.set(key, std::move(value), {Layer::kRule, std::string(rule_), 0});
}

void RuleContext::require(std::string_view key, const Value& value, std::string_view because) {
  const Setting& setting = experiment_.setting(key);
  if (setting.value == value) return;
  if (is_explicit(setting.origin)) {
    report(key, fmt::format("conflicts with {}", because), to_text(value),
           fmt::format("write {}: {}, or leave it out", key, to_text(value)));
    return;
  }
  note(key, fmt::format("{} -> {}, because of {}", to_text(setting.value), to_text(value), because));
  set(key, value);
}

std::vector<Rule> all_rules() {
  std::vector<Rule> rules;
  // Data first: mock_data decides the tokenizer. Turbo next: a stage switches keys on that others then check.
  for (const auto group :
       {data_rules(), turbo_rules(), parallel_rules(), training_rules(), model_rules(), moe_rules()}) {
    rules.insert(rules.end(), group.begin(), group.end());
  }
  return rules;
}

}  // namespace primus::config
