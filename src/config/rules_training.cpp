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
    context.report("train_iters", "the length of the run is not set", "integer >= 1",
                   "write train_iters or train_samples");
  } else if (has_iters && has_samples) {
    context.exclude({"train_iters", {}}, {"train_samples", {}});
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

// A run is counted in steps or in samples, never in both.
void schedule_units(RuleContext& context) {
  const bool by_samples = !context.is_null("train_samples");
  const std::string_view unit = by_samples ? "train_samples" : "train_iters";
  for (const std::string_view name : {"lr_decay", "lr_wsd_decay"}) {
    const std::string wrong = fmt::format("{}_{}", name, by_samples ? "iters" : "samples");
    if (!context.is_null(wrong)) context.demand(unit, {{wrong, {}}}, Nature::kFact);
  }
  const std::string_view wrong = by_samples ? "lr_warmup_iters" : "lr_warmup_samples";
  if (context.integer(wrong) != 0) context.demand(unit, {{wrong, {std::int64_t{0}}}}, Nature::kFact);
}

void warmup_fraction(RuleContext& context) {
  const std::string_view key = context.is_null("train_samples") ? "lr_warmup_iters" : "lr_warmup_samples";
  if (context.is_null("lr_warmup_fraction") || context.integer(key) == 0) return;
  context.exclude({key, {std::int64_t{0}}}, {"lr_warmup_fraction", {}});
}

// An inherited warm-up, or one from an earlier place, yields to a short run and takes as much of it as it may.
void warmup(RuleContext& context) {
  const Experiment& experiment = context.experiment();
  const bool by_samples = !context.is_null("train_samples");
  const std::string_view key = by_samples ? "lr_warmup_samples" : "lr_warmup_iters";
  const std::string_view run = by_samples ? "train_samples" : "train_iters";
  const std::string_view decay = by_samples ? "lr_decay_samples" : "lr_decay_iters";
  const std::string_view bound = context.is_null(decay) ? run : decay;
  const std::int64_t end = experiment.get_optional_int(bound).value_or(0);
  if (end == 0 || context.integer(key) < end) return;
  const Value longest{std::max<std::int64_t>(end - 1, 0)};
  if (!context.is_wanted(key) || context.is_stronger(bound, key)) return context.overrule(key, longest, bound);
  context.report(key, fmt::format("the warm-up is not shorter than {}", setting_text(experiment, bound)),
                 fmt::format("at most {}", end - 1));
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

// Constant decay has one value; a ramp has two ends.
void weight_decay(RuleContext& context) {
  const Experiment& experiment = context.experiment();
  const auto start = experiment.get_optional_double("start_weight_decay");
  const auto end = experiment.get_optional_double("end_weight_decay");
  if (experiment.get_string("weight_decay_incr_style") != "constant") {
    if (start && end && *end >= *start) return;
    context.report("weight_decay_incr_style", "a ramp needs its two ends", "constant",
                   "or write start_weight_decay and an end_weight_decay that is not below it");
    return;
  }
  for (const std::string_view key : {"start_weight_decay", "end_weight_decay"}) {
    if (context.is_null(key) || !context.is_wanted(key)) continue;
    context.report(key, fmt::format("not read: {}", setting_text(experiment, "weight_decay_incr_style")), "null",
                   "write weight_decay_incr_style: linear or cosine for a ramp");
  }
}

void head_learning_rate(RuleContext& context) {
  const Experiment& experiment = context.experiment();
  const auto rate = experiment.get_optional_double("decoupled_lr");
  const auto lowest = experiment.get_optional_double("decoupled_min_lr");
  if (!lowest) return;
  if (!rate) {
    context.report("decoupled_min_lr", "needs decoupled_lr", "null, or both");
  } else if (*lowest > *rate) {
    context.report("decoupled_min_lr", fmt::format("exceeds {}", setting_text(experiment, "decoupled_lr")),
                   fmt::format("at most {}", *rate));
  }
}

// A batch that grows is placed by samples.
void growing_batch(RuleContext& context) {
  for (const std::string_view key : {"rampup_batch_size", "step_batch_size_schedule"}) {
    if (context.is_null(key) || !context.is_null("train_samples")) continue;
    context.report(key, "the run is counted in steps", "null, or train_samples instead of train_iters");
  }
  if (!context.is_null("rampup_batch_size") && !context.is_null("step_batch_size_schedule"))
    context.exclude({"rampup_batch_size", {}}, {"step_batch_size_schedule", {}});
}

void evaluation_batch(RuleContext& context) {
  const Experiment& experiment = context.experiment();
  const auto global = experiment.get_optional_int("eval_global_batch_size");
  const auto own_micro = experiment.get_optional_int("eval_micro_batch_size");
  if (!global && !own_micro) return;
  const std::string_view key = global ? "eval_global_batch_size" : "eval_micro_batch_size";
  const std::int64_t micro = own_micro.value_or(context.integer("micro_batch_size"));
  const std::int64_t whole = global.value_or(context.integer("global_batch_size"));
  if (whole % micro == 0) return;
  context.report(key, fmt::format("an evaluation's batch of {} is no multiple of its micro-batch of {}", whole, micro),
                 global ? fmt::format("a multiple of {}", micro) : fmt::format("a divisor of {}", whole));
}

// Wrong results on purpose that nothing looks for would only spoil the run.
void injected_errors(RuleContext& context) {
  if (context.integer("error_injection_rate") == 0) return;
  if (context.experiment().get_string("rerun_mode") != "disabled") return;
  context.report("error_injection_rate", "nothing looks for wrong results: rerun_mode is disabled",
                 "0, or rerun_mode validate_results or report_stats");
}

constexpr Rule kRules[] = {
    {"run_length", "A run is so many steps or so many samples long.", run_length},
    {"learning_rate", "lr is set and is the highest rate.", learning_rate},
    {"schedule_units", "The schedule counts in the unit of the run's length.", schedule_units},
    {"warmup_fraction", "A warm-up has a length or a fraction.", warmup_fraction},
    {"warmup", "Warm-up ends before the decay does.", warmup},
    {"final_decay", "WSD has a final decay within the run.", final_decay},
    {"growing_batch", "A batch that grows is placed by samples.", growing_batch},
    {"evaluation_batch", "An evaluation's batch is whole micro-batches.", evaluation_batch},
    {"injected_errors", "Errors are injected where steps are computed again.", injected_errors},
    {"weight_decay", "Weight decay is constant, or has two ends.", weight_decay},
    {"head_learning_rate", "The lowest rate of the embedding stands beside its own rate.", head_learning_rate},
};

}  // namespace

std::span<const Rule> training_rules() {
  return kRules;
}

}  // namespace primus::config
