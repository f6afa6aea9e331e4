#include "model/numerics.hpp"

#include "base/error.hpp"

namespace primus::model {
namespace {

DType state_type(const config::Experiment& experiment, const char* key) {
  const std::string name = experiment.get_string(key);
  for (const DType type : {DType::kFloat32, DType::kBFloat16, DType::kFloat16, DType::kFloat8}) {
    if (name == primus::name(type)) return type;
  }
  PRIMUS_CHECK(false, "{} '{}' passed validation", key, name);
}

}  // namespace

NumericPolicy numeric_policy(const config::Experiment& experiment) {
  NumericPolicy policy;
  const bool is_narrow = experiment.get_bool("bf16") || experiment.get_bool("fp16");
  if (is_narrow) {
    policy.parameters = policy.activations = experiment.get_bool("bf16") ? DType::kBFloat16 : DType::kFloat16;
    if (experiment.get_bool("grad_reduce_in_bf16")) policy.main_gradients = DType::kBFloat16;
    if (experiment.get_optional_string("logit_dtype") == "fp32") policy.logits = DType::kFloat32;
    if (experiment.get_bool("fp32_residual_connection")) policy.residual = DType::kFloat32;
  }
  if (experiment.get_optional_string("moe_router_dtype") == "fp64") policy.router = DType::kFloat64;
  if (!experiment.get_bool("use_precision_aware_optimizer")) return policy;
  policy.main_gradients = state_type(experiment, "main_grads_dtype");
  policy.first_moment = state_type(experiment, "exp_avg_dtype");
  policy.second_moment = state_type(experiment, "exp_avg_sq_dtype");
  // fp32 weights are their own masters.
  if (is_narrow) policy.master = state_type(experiment, "main_params_dtype");
  return policy;
}

NumericPolicy gpu_policy(NumericPolicy policy) {
  const bool fits = policy.parameters == DType::kBFloat16 && policy.master == DType::kFloat32;
  if (fits) policy.master_form = MasterForm::kBesideWeight;
  return policy;
}

NumericPolicy float64_policy() {
  return {.parameters = DType::kFloat64,
          .activations = DType::kFloat64,
          .residual = {},
          .logits = {},
          .statistics = DType::kFloat64,
          .router = DType::kFloat64,
          .main_gradients = DType::kFloat64,
          .master = DType::kFloat64,
          .master_form = MasterForm::kWhole,
          .first_moment = DType::kFloat64,
          .second_moment = DType::kFloat64};
}

}  // namespace primus::model
