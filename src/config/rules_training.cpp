// Rules: length of a run and its learning rate.
#include <fmt/format.h>

#include <algorithm>

#include "config/rules.hpp"

namespace primus::config {
namespace {

void run_length(RuleContext& context) {
  const Experiment& experiment = context.experiment();
  const bool has_iters = !experiment.is_null("train_iters");
  const bool has_samples = !experiment.is_null("train_samples");
  if (!has_iters && !has_samples) {
    context.report("train_iters", "the length of the run is not set", "integer >= 0",
                   "write train_iters or train_samples");
  } else if (has_iters && has_samples) {
    const std::string_view yielding = experiment.is_explicitly_set("train_samples") ? "train_iters" : "train_samples";
    context.require(yielding, {},
                    setting_text(experiment, yielding == "train_iters" ? "train_samples" : "train_iters"));
  }
}

void learning_rate(RuleContext& context) {
  const Experiment& experiment = context.experiment();
  const auto highest = experiment.get_optional_double("lr");
  if (!highest) {
    context.report("lr", "the learning rate is not set", "number > 0");
    return;
  }
  if (experiment.get_double("min_lr") > *highest) {
    context.report("min_lr", fmt::format("exceeds {}", setting_text(experiment, "lr")),
                   fmt::format("at most {}", *highest));
  }
  if (experiment.get_double("lr_warmup_init") > *highest) {
    context.report("lr_warmup_init", fmt::format("exceeds {}", setting_text(experiment, "lr")),
                   fmt::format("at most {}", *highest));
  }
}

// Megatron counts a run in steps or in samples, never in both.
void schedule_units(RuleContext& context) {
  const Experiment& experiment = context.experiment();
  const bool by_samples = !experiment.is_null("train_samples");
  const std::string because = setting_text(experiment, by_samples ? "train_samples" : "train_iters");
  for (const std::string_view name : {"lr_decay", "lr_wsd_decay"}) {
    const std::string wrong = fmt::format("{}_{}", name, by_samples ? "iters" : "samples");
    if (!experiment.is_null(wrong)) context.require(wrong, {}, because);
  }
  const std::string_view wrong = by_samples ? "lr_warmup_iters" : "lr_warmup_samples";
  if (experiment.get_int(wrong) != 0) context.require(wrong, {std::int64_t{0}}, because);
}

void warmup(RuleContext& context) {
  const Experiment& experiment = context.experiment();
  const bool by_samples = !experiment.is_null("train_samples");
  const std::string_view key = by_samples ? "lr_warmup_samples" : "lr_warmup_iters";
  if (!experiment.is_null("lr_warmup_fraction")) {
    if (experiment.get_int(key) != 0) {
      context.require(key, {std::int64_t{0}}, setting_text(experiment, "lr_warmup_fraction"));
    }
    return;
  }
  const auto length = experiment.get_optional_int(by_samples ? "train_samples" : "train_iters");
  const auto decay = experiment.get_optional_int(by_samples ? "lr_decay_samples" : "lr_decay_iters");
  const std::int64_t end = decay.value_or(length.value_or(0));
  if (end == 0 || experiment.get_int(key) < end) return;
  // An inherited warm-up yields to a short run and takes as much of it as the rule allows.
  context.require(key, {std::max<std::int64_t>(end - 1, 0)}, fmt::format("a learning rate that decays over {}", end));
}

void final_decay(RuleContext& context) {
  const Experiment& experiment = context.experiment();
  if (experiment.get_string("lr_decay_style") != "WSD") return;
  const bool by_samples = !experiment.is_null("train_samples");
  const std::string_view key = by_samples ? "lr_wsd_decay_samples" : "lr_wsd_decay_iters";
  const auto length = experiment.get_optional_int(key);
  if (!length) {
    context.report(key, "lr_decay_style WSD needs the length of its final decay", "integer >= 1");
    return;
  }
  const auto run = experiment.get_optional_int(by_samples ? "train_samples" : "train_iters");
  const auto decay = experiment.get_optional_int(by_samples ? "lr_decay_samples" : "lr_decay_iters");
  const std::int64_t end = decay.value_or(run.value_or(0));
  if (end > 0 && *length > end)
    context.report(key, fmt::format("is longer than the whole decay of {}", end), fmt::format("at most {}", end));
}

constexpr Rule kRules[] = {
    {"run_length", "A run is so many steps or so many samples long.", run_length},
    {"learning_rate", "lr is set and is the highest rate.", learning_rate},
    {"schedule_units", "The schedule counts in the unit of the run's length.", schedule_units},
    {"warmup", "Warm-up ends before the decay does; its fraction replaces its length.", warmup},
    {"final_decay", "WSD has a final decay within the run.", final_decay},
};

}  // namespace

std::span<const Rule> training_rules() {
  return kRules;
}

}  // namespace primus::config
