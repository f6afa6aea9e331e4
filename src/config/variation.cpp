#include "config/variation.hpp"

#include "config/merge.hpp"
#include "config/overrides.hpp"

namespace primus::config {
namespace {

/// What was merged, before rules changed it.
Experiment before_rules(const Experiment& resolved) {
  Experiment merged;
  merged.work_group = resolved.work_group;
  merged.user_name = resolved.user_name;
  merged.exp_name = resolved.exp_name;
  merged.workspace = resolved.workspace;
  merged.module = resolved.module;
  merged.framework = resolved.framework;
  merged.module_preset = resolved.module_preset;
  merged.model_preset = resolved.model_preset;
  merged.env = resolved.env;
  for (const auto& [key, setting] : resolved.settings()) {
    for (const ReplacedValue& earlier : setting.replaced) {
      if (earlier.origin.layer != Layer::kRule) merged.set(key, earlier.value, earlier.origin);
    }
    if (setting.origin.layer != Layer::kRule) merged.set(key, setting.value, setting.origin);
  }
  return merged;
}

}  // namespace

Experiment with_overrides(const Experiment& resolved, std::span<const std::string> overrides, const WorldSize& world) {
  Experiment experiment = before_rules(resolved);
  std::vector<Problem> problems;
  SettingMerger merger(problems);
  for (const Override& item : parse_overrides(overrides, problems)) {
    merger.add(item.key, item.value, Layer::kCommandLine, item.written);
  }
  if (!problems.empty()) throw ConfigError(std::move(problems));
  merger.apply_to(experiment);
  RuleContext context(experiment, Purpose::kPlan, world, "command line");
  for (const Rule& rule : all_rules()) {
    context.enter(rule.name);
    rule.apply(context);
  }
  if (!context.problems().empty()) throw ConfigError(context.problems());
  return experiment;
}

}  // namespace primus::config
