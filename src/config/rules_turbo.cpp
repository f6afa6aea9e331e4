// Rules: turbo switches, DeepEP and the sync-free stages.
#include <fmt/format.h>

#include <array>

#include "config/key_table.hpp"
#include "config/rules.hpp"

namespace primus::config {
namespace {

bool low_precision(const RuleContext& context) {
  return !context.is_null("fp8") || !context.is_null("fp4");
}

// What is incompatible with the older grouped product stays an error whoever wrote it (decision 2): it is the mistake
// that users of these stages make most.
void sync_free_stage(RuleContext& context) {
  const std::int64_t stage = context.integer("turbo_sync_free_moe_stage");
  if (stage == 0) return;
  if (!context.is_on("enable_primus_turbo")) {
    context.report("turbo_sync_free_moe_stage", "the sync-free stages need enable_primus_turbo", "0",
                   "write enable_primus_turbo: true beside it");
    return;
  }
  if (stage >= 2 && context.is_on("moe_use_legacy_grouped_gemm")) {
    context.report("moe_use_legacy_grouped_gemm",
                   fmt::format("conflicts with {}, which uses the turbo grouped product",
                               setting_text(context.experiment(), "turbo_sync_free_moe_stage")),
                   "false", "write moe_use_legacy_grouped_gemm: false, or turbo_sync_free_moe_stage: 1");
    return;
  }
  std::vector<Demand> needs = {{"moe_use_fused_router_with_aux_score", {true}}, {"moe_permute_fusion", {true}}};
  if (low_precision(context)) needs.push_back({"moe_router_padding_for_quantization", {true}});
  if (stage >= 2) {
    needs.push_back({"use_turbo_deepep", {true}});
    needs.push_back({"use_turbo_grouped_gemm", {true}});
  }
  if (stage >= 3) needs.push_back({"use_turbo_fused_act_with_probs", {true}});
  context.demand("turbo_sync_free_moe_stage", needs);
}

void grouped_gemm(RuleContext& context) {
  if (!context.is_on("use_turbo_grouped_gemm") || !context.is_on("moe_use_legacy_grouped_gemm")) return;
  // A stage that asked for the turbo product has told it already.
  if (context.integer("turbo_sync_free_moe_stage") >= 2) return;
  context.report("use_turbo_grouped_gemm",
                 fmt::format("conflicts with {}", setting_text(context.experiment(), "moe_use_legacy_grouped_gemm")),
                 "one of the two", "write moe_use_legacy_grouped_gemm: false");
}

void unpadded_groups(RuleContext& context) {
  if (!context.is_on("turbo_grouped_gemm_without_padding")) return;
  if (!context.is_on("enable_primus_turbo") || !context.is_on("use_turbo_grouped_gemm")) {
    context.report("turbo_grouped_gemm_without_padding", "needs enable_primus_turbo and use_turbo_grouped_gemm",
                   "false, or both of them true");
  } else if (context.is_on("moe_router_padding_for_quantization")) {
    context.report(
        "turbo_grouped_gemm_without_padding",
        fmt::format("conflicts with {}", setting_text(context.experiment(), "moe_router_padding_for_quantization")),
        "false");
  }
}

void deepep(RuleContext& context) {
  if (!context.is_on("use_turbo_deepep")) return;
  context.demand("use_turbo_deepep", {{"moe_shared_expert_overlap", {false}},
                                      {"moe_router_dtype", {std::string("fp32")}},
                                      {"moe_enable_deepep", {true}},
                                      {"moe_token_dispatcher_type", {std::string("flex")}}});
}

// Sixteen expert ranks are more than one node has, and between nodes the turbo backend talks through 32 units.
void deepep_compute_units(RuleContext& context) {
  constexpr std::int64_t kMostBetweenNodes = 32;
  if (!context.is_on("use_turbo_deepep") || context.integer("expert_model_parallel_size") < 16) return;
  if (context.integer("turbo_deepep_num_cu") <= kMostBetweenNodes) return;
  const bool uses_uccl = context.variable("USING_UEP").value_or("0") == "1";
  const std::string backend =
      context.variable("PRIMUS_TURBO_MOE_DISPATCH_COMBINE_BACKEND").value_or(uses_uccl ? "DEEP_EP" : "TURBO");
  if (backend != "TURBO") return;
  context.report("turbo_deepep_num_cu",
                 fmt::format("between nodes ({}) DeepEP talks through at most {} compute units",
                             setting_text(context.experiment(), "expert_model_parallel_size"), kMostBetweenNodes),
                 fmt::format("at most {}", kMostBetweenNodes), "or export USING_UEP=1 to go through UCCL");
}

void mega_moe(RuleContext& context) {
  if (!context.is_on("use_turbo_mega_moe")) return;
  const Experiment& experiment = context.experiment();
  if (!context.demand("use_turbo_mega_moe", {{"bf16", {true}},
                                             {"swiglu", {true}},
                                             {"add_bias_linear", {false}},
                                             {"moe_expert_capacity_factor", {}},
                                             {"init_model_with_meta_device", {false}}})) {
    return;
  }
  if (context.integer("tensor_model_parallel_size") > 1) {
    context.report("use_turbo_mega_moe",
                   fmt::format("cannot share experts' matrices between ranks: {}",
                               setting_text(experiment, "tensor_model_parallel_size")),
                   "false, or one tensor rank");
  }
  const std::int64_t expert = context.integer("expert_model_parallel_size");
  if (expert < 2 || expert > 8) {
    context.report(
        "use_turbo_mega_moe",
        fmt::format("works between the ranks of one node: {}", setting_text(experiment, "expert_model_parallel_size")),
        "false, or 2 to 8 expert ranks");
  }
  if (experiment.get_strings("moe_router_load_balancing_type") == std::vector<std::string>{"sinkhorn"}) {
    context.report("use_turbo_mega_moe",
                   fmt::format("cannot route with {}", setting_text(experiment, "moe_router_load_balancing_type")),
                   "false, or another way of balancing");
  }
}

// Turbo products do not know sharded matrices. Who inherits them on several tensor ranks gets the plain ones.
void turbo_linear(RuleContext& context) {
  if (context.integer("tensor_model_parallel_size") == 1) return;
  for (const std::string_view key : {"use_turbo_gemm", "use_turbo_norm_te_linear"}) {
    if (!context.is_on(key)) continue;
    if (context.is_wanted(key)) {
      context.report(key,
                     fmt::format("works with one tensor rank only: {}",
                                 setting_text(context.experiment(), "tensor_model_parallel_size")),
                     "false");
    } else {
      context.demand("tensor_model_parallel_size", {{key, {false}}}, Nature::kFact);
    }
  }
}

void turbo_attention(RuleContext& context) {
  if (!context.is_on("use_turbo_attention")) return;
  if (!context.is_null("window_size")) {
    context.exclude({"use_turbo_attention", {false}}, {"window_size", {}});
    return;
  }
  if (context.integer("sink_sliding_window") == 0 || context.is_on("use_sink_attention")) return;
  context.report("use_turbo_attention",
                 fmt::format("has a sliding window only together with sinks: {}",
                             setting_text(context.experiment(), "sink_sliding_window")),
                 "false, or use_sink_attention: true");
}

void turbo_master_switch(RuleContext& context) {
  constexpr std::array kSwitches = {"use_turbo_attention", "use_turbo_gemm",     "use_turbo_grouped_gemm",
                                    "use_turbo_deepep",    "use_turbo_rms_norm", "use_turbo_mega_moe"};
  if (context.is_on("enable_primus_turbo")) return;
  for (const std::string_view key : kSwitches) {
    if (!context.is_on(key) || !context.is_wanted(key)) continue;
    context.note(key, "does nothing while enable_primus_turbo is false", "enable_primus_turbo");
  }
}

constexpr Rule kRules[] = {
    {"sync_free_stage", "A sync-free stage needs turbo, excludes the legacy grouped product, and switches its set on.",
     sync_free_stage},
    {"grouped_gemm", "Turbo and legacy grouped products exclude each other.", grouped_gemm},
    {"unpadded_groups", "Grouped products without padding need turbo and rows that are not padded.", unpadded_groups},
    {"deepep", "DeepEP wants an fp32 router, the flex dispatcher and no overlap of shared experts.", deepep},
    {"deepep_compute_units", "Between nodes the turbo backend of DeepEP takes at most 32 compute units.",
     deepep_compute_units},
    {"mega_moe", "The one-kernel expert layer wants bf16, gated SiLU, one tensor rank and 2 to 8 expert ranks.",
     mega_moe},
    {"turbo_linear", "Turbo linear layers have one tensor rank.", turbo_linear},
    {"turbo_attention", "Turbo attention has a sliding window only with sinks, and that is sink_sliding_window.",
     turbo_attention},
    {"turbo_master_switch", "Turbo switches do nothing without enable_primus_turbo; said in a note.",
     turbo_master_switch},
};

}  // namespace

std::span<const Rule> turbo_rules() {
  return kRules;
}

}  // namespace primus::config
