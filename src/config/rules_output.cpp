// Rules: checkpoints, profiles and logs.
#include <fmt/format.h>

#include <algorithm>

#include "config/key_table.hpp"
#include "config/rules.hpp"

namespace primus::config {
namespace {

void asynchronous_save(RuleContext& context) {
  const Value& value = context.experiment().setting("async_save").value;
  if (value != Value{true}) return;
  context.demand("async_save", {{"ckpt_format", {std::string("torch_dist")}}, {"use_persistent_ckpt_worker", {true}}});
}

// A user who wrote null wants no checkpoints (decision 20), so nothing asks how they are written.
void nothing_saved(RuleContext& context) {
  if (!context.is_null("save") || !context.experiment().is_explicitly_set("save")) return;
  for (const std::string_view key :
       {"save_interval", "save_retain_interval", "save_keep_last", "no_save_optim", "no_save_rng", "async_save"}) {
    const Value& value = context.experiment().setting(key).value;
    if (!context.is_wanted(key) || value == default_value(*find_key(key)) || value == Value{false}) continue;
    context.note(key, "not read: save is null, so nothing is saved", "save");
  }
}

void sharded_format(RuleContext& context) {
  if (context.experiment().get_string("ckpt_format") != "torch_dcp" || context.is_on("use_torch_fsdp2")) return;
  context.report("ckpt_format", "torch_dcp belongs to use_torch_fsdp2, which is off", "torch_dist");
}

void temporary_checkpoints(RuleContext& context) {
  // The original names this kind too, and stops where it would save one.
  if (context.experiment().get_optional_string("non_persistent_ckpt_type") == "in_memory") {
    context.report("non_persistent_ckpt_type",
                   "in_memory would be gone with the process, and nothing would go on from it", "global or local");
    return;
  }
  if (context.is_null("non_persistent_save_interval") || !context.is_null("non_persistent_ckpt_type")) return;
  context.report("non_persistent_save_interval", "needs non_persistent_ckpt_type", "null, or both",
                 "write non_persistent_ckpt_type: global or local");
}

void dumps(RuleContext& context) {
  if (!context.is_null("save") || !context.experiment().is_explicitly_set("save")) return;
  for (const std::string_view key : {"save_activations_interval", "save_dgrads_interval", "save_wgrads_interval",
                                     "save_params_interval", "save_tokens_per_expert_interval"}) {
    if (context.is_null(key)) continue;
    context.report(key, fmt::format("has no folder to write to: {}", setting_text(context.experiment(), "save")),
                   "save set, or not written");
  }
}

void profile_steps(RuleContext& context) {
  if (!context.is_on("profile")) return;
  const std::int64_t start = context.integer("profile_step_start");
  const std::int64_t end = context.integer("profile_step_end");
  if (end <= start) {
    context.report("profile_step_end",
                   fmt::format("does not come after {}", setting_text(context.experiment(), "profile_step_start")),
                   fmt::format("at least {}", start + 1));
    return;
  }
  const auto steps = context.experiment().get_optional_int("train_iters");
  if (steps && start >= *steps) {
    context.report("profile_step_start",
                   fmt::format("no step is recorded: {}", setting_text(context.experiment(), "train_iters")),
                   fmt::format("at most {}", *steps - 1));
  }
}

void profile_ranks(RuleContext& context) {
  if (!context.is_on("profile")) return;
  const Value& ranks = context.experiment().setting("profile_ranks").value;
  const auto* list = std::get_if<Value::List>(&ranks.data);
  if (!list) return;
  for (const Value& item : *list) {
    const std::int64_t rank = std::get<std::int64_t>(item.data);
    if (rank >= 0 && rank < context.world().size) continue;
    context.report("profile_ranks",
                   fmt::format("there is no rank {} among {} ({})", rank, context.world().size, context.world().source),
                   fmt::format("ranks from 0 to {}", context.world().size - 1));
    return;
  }
}

// Traces lie in the folder of the curves, so a profile needs it whoever turned it off.
void profile_folder(RuleContext& context) {
  if (context.is_on("profile")) context.overrule("disable_tensorboard", {false}, "profile");
}

constexpr Rule kRules[] = {
    {"asynchronous_save", "Saving in the background needs torch_dist and a persistent worker.", asynchronous_save},
    {"nothing_saved", "Without a folder to save in, how checkpoints are written is not read; said in a note.",
     nothing_saved},
    {"sharded_format", "The checkpoint format torch_dcp belongs to use_torch_fsdp2.", sharded_format},
    {"temporary_checkpoints", "Temporary checkpoints have a kind.", temporary_checkpoints},
    {"dumps", "What single steps dump goes where the run saves.", dumps},
    {"profile_steps", "A profile ends after it starts, and starts within the run.", profile_steps},
    {"profile_ranks", "Profiled ranks exist.", profile_ranks},
    {"profile_folder", "A profile is written beside the curves, so it turns their folder on.", profile_folder},
};

}  // namespace

std::span<const Rule> output_rules() {
  return kRules;
}

}  // namespace primus::config
