#include "model/numerics.hpp"

namespace primus::model {

NumericPolicy numeric_policy(const config::Experiment& experiment) {
  NumericPolicy policy;
  if (experiment.get_bool("bf16")) {
    policy.parameters = DType::kBFloat16;
    policy.activations = DType::kBFloat16;
  }
  if (experiment.get_optional_string("moe_router_dtype") == "fp64") policy.router = DType::kFloat64;
  return policy;
}

NumericPolicy float64_policy() {
  return {.parameters = DType::kFloat64,
          .activations = DType::kFloat64,
          .statistics = DType::kFloat64,
          .router = DType::kFloat64,
          .main_gradients = DType::kFloat64,
          .master = DType::kFloat64,
          .moments = DType::kFloat64};
}

}  // namespace primus::model
