#pragma once
// AdamW with decoupled decay in one pass, and the reductions around it.
#include "ops/dtype.hpp"

namespace primus::ops {

struct AdamWOptions {
  double learning_rate = 0.0;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0.0;  // 0 for parameters that do not decay
  std::int64_t step = 1;      // 1 at the first update
  double grad_scale = 1.0;    // clipping coefficient
};

/// One update: g = main_grad · grad_scale; m = β1·m + (1−β1)·g; v = β2·v + (1−β2)·g²; master −= lr·(decay·master
/// + (m/(1−β1^step)) / (sqrt(v/(1−β2^step)) + ε)); weight <- master in the weight's type. When the weight is itself
/// fp32 (or fp64), pass it as `master` and `weight` alike. main_grad is left as it is.
void adamw_step(const AdamWOptions& options, const Tensor& main_grad, Tensor& master, Tensor& exp_avg,
                Tensor& exp_avg_sq, Tensor& weight);

/// Σ x² in double, the same bits whatever the number of threads.
double sum_of_squares(const Tensor& x);

/// Is any element NaN or infinite?
bool has_nonfinite(const Tensor& x);

}  // namespace primus::ops
