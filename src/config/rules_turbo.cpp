// Rules: turbo switches, DeepEP and the sync-free stages.
#include <fmt/format.h>

#include "config/rules.hpp"

namespace primus::config {
namespace {

bool low_precision(const Experiment& experiment) {
  return !experiment.is_null("fp8") || !experiment.is_null("fp4");
}

// Switched on by a stage; a user who wrote the opposite has two wishes.
void switch_on(RuleContext& context, std::string_view key, std::string_view because) {
  context.require(key, {true}, because);
}

void sync_free_stage(RuleContext& context) {
  const Experiment& experiment = context.experiment();
  const std::int64_t stage = experiment.get_int("turbo_sync_free_moe_stage");
  if (stage == 0) return;
  if (!experiment.get_bool("enable_primus_turbo")) {
    context.report("turbo_sync_free_moe_stage", "needs enable_primus_turbo", "0, or enable_primus_turbo: true");
    return;
  }
  if (stage >= 2 && experiment.get_bool("moe_use_legacy_grouped_gemm")) {
    context.report("moe_use_legacy_grouped_gemm", fmt::format("conflicts with turbo_sync_free_moe_stage {}", stage),
                   "false");
    return;
  }
  const std::string because = fmt::format("turbo_sync_free_moe_stage {}", stage);
  switch_on(context, "moe_use_fused_router_with_aux_score", because);
  switch_on(context, "moe_permute_fusion", because);
  if (low_precision(experiment)) switch_on(context, "moe_router_padding_for_quantization", because);
  if (stage >= 2) {
    switch_on(context, "use_turbo_deepep", because);
    switch_on(context, "use_turbo_grouped_gemm", because);
  }
  if (stage >= 3) switch_on(context, "use_turbo_fused_act_with_probs", because);
}

void grouped_gemm(RuleContext& context) {
  const Experiment& experiment = context.experiment();
  if (experiment.get_bool("use_turbo_grouped_gemm") && experiment.get_bool("moe_use_legacy_grouped_gemm")) {
    context.report("use_turbo_grouped_gemm",
                   fmt::format("conflicts with {}", setting_text(experiment, "moe_use_legacy_grouped_gemm")),
                   "one of the two", "write moe_use_legacy_grouped_gemm: false");
  }
  if (!experiment.get_bool("turbo_grouped_gemm_without_padding")) return;
  if (!experiment.get_bool("enable_primus_turbo") || !experiment.get_bool("use_turbo_grouped_gemm")) {
    context.report("turbo_grouped_gemm_without_padding", "needs enable_primus_turbo and use_turbo_grouped_gemm",
                   "false, or both");
  } else if (experiment.get_bool("moe_router_padding_for_quantization")) {
    context.report("turbo_grouped_gemm_without_padding",
                   fmt::format("conflicts with {}", setting_text(experiment, "moe_router_padding_for_quantization")),
                   "false");
  }
}

void deepep(RuleContext& context) {
  const Experiment& experiment = context.experiment();
  if (!experiment.get_bool("use_turbo_deepep")) return;
  context.require("moe_shared_expert_overlap", {false}, "use_turbo_deepep");
  context.require("moe_router_dtype", {std::string("fp32")}, "use_turbo_deepep");
  context.require("moe_enable_deepep", {true}, "use_turbo_deepep");
  context.require("moe_token_dispatcher_type", {std::string("flex")}, "use_turbo_deepep");
  if (experiment.get_int("expert_model_parallel_size") >= 16 && experiment.get_int("turbo_deepep_num_cu") > 32) {
    context.report("turbo_deepep_num_cu", "more than one node's experts talk through at most 32 compute units",
                   "at most 32");
  }
}

void low_precision_recipes(RuleContext& context) {
  const Experiment& experiment = context.experiment();
  if (!experiment.get_bool("use_turbo_gemm")) return;
  const std::string fp8 = experiment.get_string("fp8_recipe");
  if (!experiment.is_null("fp8") && fp8 != "tensorwise" && fp8 != "blockwise" && fp8 != "mxfp8") {
    context.report("fp8_recipe", "use_turbo_gemm does not know this recipe", "one of tensorwise, blockwise, mxfp8");
  }
  if (!experiment.is_null("fp4") && experiment.get_string("fp4_recipe") != "mxfp4") {
    context.report("fp4_recipe", "use_turbo_gemm does not know this recipe", "mxfp4");
  }
}

constexpr Rule kRules[] = {
    {"sync_free_stage", "A sync-free stage switches on what it needs, and needs turbo.", sync_free_stage},
    {"grouped_gemm", "Turbo and legacy grouped products exclude each other.", grouped_gemm},
    {"deepep", "DeepEP wants an fp32 router and no overlap of shared experts.", deepep},
    {"low_precision_recipes", "Turbo products know some low-precision recipes.", low_precision_recipes},
};

}  // namespace

std::span<const Rule> turbo_rules() {
  return kRules;
}

}  // namespace primus::config
