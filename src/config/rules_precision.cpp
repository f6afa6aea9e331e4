// Rules: number types, low-precision recipes, optimizer states, determinism.
#include <fmt/format.h>

#include <algorithm>

#include "config/rules.hpp"

namespace primus::config {
namespace {

void number_types(RuleContext& context) {
  if (context.is_on("fp16") && context.is_on("bf16")) context.exclude({"fp16", {false}}, {"bf16", {false}});
  if (!context.is_null("fp8") && !context.is_null("fp4")) context.exclude({"fp8", {}}, {"fp4", {}});
}

// Logits may be wider than the activations, not of another narrow type.
void logit_type(RuleContext& context) {
  if (context.is_null("logit_dtype") || context.experiment().get_string("logit_dtype") != "bf16") return;
  if (context.is_on("bf16")) return;
  context.report("logit_dtype",
                 fmt::format("bf16 is no type of this run: {}", setting_text(context.experiment(), "bf16")),
                 "null or fp32, or bf16: true");
}

void low_precision_recipes(RuleContext& context) {
  const Experiment& experiment = context.experiment();
  if (!context.is_on("use_turbo_gemm")) return;
  const std::string fp8 = experiment.get_string("fp8_recipe");
  if (!context.is_null("fp8") && fp8 != "tensorwise" && fp8 != "blockwise" && fp8 != "mxfp8") {
    context.report("fp8_recipe", "use_turbo_gemm does not know this recipe", "one of tensorwise, blockwise, mxfp8");
  }
  if (!context.is_null("fp4") && experiment.get_string("fp4_recipe") != "mxfp4") {
    context.report("fp4_recipe", "use_turbo_gemm does not know this recipe", "mxfp4");
  }
}

// The layers of the other library do not know turbo's fp4 products: they would silently compute in bf16.
void fp4_layers(RuleContext& context) {
  const Experiment& experiment = context.experiment();
  if (context.is_null("fp4") || !context.is_on("use_turbo_gemm") || !context.is_on("fp4_use_native_te_autocast"))
    return;
  if (experiment.get_string("transformer_impl") == "local") return;
  context.report("fp4_use_native_te_autocast",
                 fmt::format("beside use_turbo_gemm the products would silently be bf16: {}",
                             setting_text(experiment, "transformer_impl")),
                 "false, or transformer_impl: local");
}

// An experiment's own environment may say that the library must not use this format.
void mxfp8_environment(RuleContext& context) {
  if (context.is_null("fp8") || context.experiment().get_string("fp8_recipe") != "mxfp8") return;
  const std::string value = context.variable("NVTE_ROCM_ENABLE_MXFP8").value_or("1");
  if (value == "1") return;
  context.report("fp8_recipe",
                 fmt::format("the environment forbids this format: NVTE_ROCM_ENABLE_MXFP8 is '{}'", value),
                 "another recipe", "or set NVTE_ROCM_ENABLE_MXFP8=1");
}

void low_precision_parameters(RuleContext& context) {
  for (const auto& [key, format] : {std::pair{"fp8_param_gather", "fp8"}, std::pair{"fp4_param", "fp4"}}) {
    if (!context.is_on(key) || !context.is_null(format)) continue;
    if (context.is_wanted(key)) {
      context.report(key, fmt::format("needs {}, which is null", format), "false", fmt::format("or set {}", format));
    } else {
      context.demand(format, {{key, {false}}}, Nature::kFact);
    }
  }
}

void bf16_end_layers(RuleContext& context) {
  if (!context.is_on("first_last_layers_bf16")) return;
  const std::int64_t kept =
      context.integer("num_layers_at_start_in_bf16") + context.integer("num_layers_at_end_in_bf16");
  if (kept <= context.integer("num_layers")) return;
  context.report("num_layers_at_start_in_bf16",
                 {.message = fmt::format("the first and last layers in bf16 are more than {}",
                                         setting_text(context.experiment(), "num_layers")),
                  .expected = "together at most the number of layers",
                  .found = fmt::format("{} + {}", context.integer("num_layers_at_start_in_bf16"),
                                       context.integer("num_layers_at_end_in_bf16"))});
}

void optimizer_types(RuleContext& context) {
  const Experiment& experiment = context.experiment();
  for (const std::string_view key : {"main_grads_dtype", "main_params_dtype", "exp_avg_dtype", "exp_avg_sq_dtype"}) {
    if (experiment.get_string(key) == "fp32" || context.is_on("use_precision_aware_optimizer")) continue;
    context.demand(key, {{"use_precision_aware_optimizer", {true}}});
  }
  if (context.is_on("use_precision_aware_optimizer")) {
    context.demand("use_precision_aware_optimizer", {{"use_distributed_optimizer", {true}}});
  }
  const bool is_narrow = context.is_on("bf16") || context.is_on("fp16");
  if (experiment.get_string("main_params_dtype") != "fp32" && !is_narrow) {
    context.report("main_params_dtype", "fp32 weights are their own master weights", "fp32", "or set bf16");
  }
}

void muon_steps(RuleContext& context) {
  const Experiment& experiment = context.experiment();
  if (experiment.get_string("optimizer").find("muon") == std::string::npos) return;
  const std::int64_t steps = context.integer("muon_num_ns_steps");
  const std::string type = experiment.get_string("muon_coefficient_type");
  const auto refuse = [&](const char* expected) {
    context.report("muon_num_ns_steps",
                   fmt::format("does not fit {}", setting_text(experiment, "muon_coefficient_type")), expected);
  };
  if (type == "quintic" && steps % 5 != 0) refuse("a multiple of 5: its coefficients are five rows");
  if (type == "aol" && steps % 4 != 0) refuse("a multiple of 4: its coefficients are four rows");
  if (type == "polar_express" && steps < 8) refuse("at least 8: its coefficients are eight rows");
}

void loss_scale_range(RuleContext& context) {
  const Experiment& experiment = context.experiment();
  if (!context.is_on("fp16") || !context.is_null("loss_scale")) return;
  if (experiment.get_double("min_loss_scale") <= experiment.get_double("initial_loss_scale")) return;
  context.report("min_loss_scale", fmt::format("exceeds {}", setting_text(experiment, "initial_loss_scale")),
                 fmt::format("at most {}", experiment.get_double("initial_loss_scale")));
}

void residual_type(RuleContext& context) {
  if (!context.is_on("fp32_residual_connection") || context.is_on("bf16") || context.is_on("fp16")) return;
  context.report("fp32_residual_connection", "means something only beside bf16 or fp16", "false");
}

// What the fused variants sum up, they sum up in the order in which results arrive.
void deterministic(RuleContext& context) {
  if (!context.is_on("deterministic_mode")) return;
  context.demand(
      "deterministic_mode",
      {{"cross_entropy_loss_fusion", {false}}, {"tp_comm_overlap", {false}}, {"moe_router_fusion", {false}}});
}

// Who asks for repeatable runs and forbids what makes them repeatable contradicts himself; what is not set is set.
void deterministic_environment(RuleContext& context) {
  constexpr std::pair<const char*, std::string_view> kNeeded[] = {{"PRIMUS_DETERMINISTIC", "1"},
                                                                  {"ROCBLAS_DEFAULT_ATOMICS_MODE", "0"},
                                                                  {"TORCH_COMPILE_DISABLE", "1"},
                                                                  {"PRIMUS_TURBO_AUTO_TUNE", "0"}};
  if (!context.is_on("deterministic_mode")) return;
  for (const auto& [name, needed] : kNeeded) {
    const std::string value = context.variable(name).value_or("");
    if (value.empty() || value == needed) continue;
    context.report("deterministic_mode", fmt::format("the environment says otherwise: {} is '{}'", name, value),
                   "false", fmt::format("or set {}={}", name, needed));
  }
}

constexpr Rule kRules[] = {
    {"number_types", "One of fp32, bf16, fp16; one of fp8, fp4.", number_types},
    {"logit_type", "Output logits have the type of the run, or fp32.", logit_type},
    {"low_precision_recipes", "Turbo products know some low-precision recipes.", low_precision_recipes},
    {"fp4_layers", "Turbo's fp4 products with native casts need transformer_impl local.", fp4_layers},
    {"mxfp8_environment", "mxfp8 is not used where the environment forbids it.", mxfp8_environment},
    {"low_precision_parameters", "Parameters in fp8 or fp4 need products in fp8 or fp4.", low_precision_parameters},
    {"bf16_end_layers", "The layers kept in bf16 at both ends are layers of the model.", bf16_end_layers},
    {"optimizer_types", "Optimizer states in other types need the precision-aware, distributed optimizer.",
     optimizer_types},
    {"muon_steps", "Muon's iteration takes as many steps as its coefficients are made for.", muon_steps},
    {"loss_scale_range", "The loss scale starts no lower than it may fall.", loss_scale_range},
    {"residual_type", "fp32 residuals stand beside bf16 or fp16.", residual_type},
    {"deterministic", "Deterministic runs do without fused loss, fused router and tensor overlap.", deterministic},
    {"deterministic_environment", "Deterministic runs are not forbidden by their environment.",
     deterministic_environment},
};

}  // namespace

std::span<const Rule> precision_rules() {
  return kRules;
}

}  // namespace primus::config
