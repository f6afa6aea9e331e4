#pragma once
// Norms of any kind: RMSNorm and LayerNorm, with weights as they are or around one. Legend: T rows, H width; tensors as
// in rms_norm.hpp, which does the plain kind. Statistics: rstd_T, and behind it for LayerNorm mean_T (fp32 or fp64).
#include "ops/dtype.hpp"

namespace primus::ops {

enum class NormKind { kRms, kLayer };
enum class NormWeight { kPlain, kAroundOne };

struct NormOptions {
  NormKind kind = NormKind::kRms;
  NormWeight weight = NormWeight::kPlain;
  double epsilon = 1e-5;

  /// Numbers of statistics a row.
  std::int64_t num_statistics() const { return kind == NormKind::kLayer ? 2 : 1; }
};

/// What a norm multiplies with and adds; bias undefined: none.
struct NormParameters {
  Tensor weight_H, bias_H;
};

/// y = n · weight (or 1 + weight) + bias with n = x · rstd, or (x − mean) · rstd; rstd = 1/sqrt(mean(n'²) + epsilon)
/// of what rstd multiplies. Leaves the statistics.
void norm_forward(const Tensor& x_TH, const NormParameters& parameters, const NormOptions& options, Tensor& y_TH,
                  Tensor& statistics);

/// y_TH again from x_TH and the statistics: equal bit for bit to the forward's.
void norm_apply(const Tensor& x_TH, const NormParameters& parameters, const NormOptions& options,
                const Tensor& statistics, Tensor& y_TH);

/// dx_TH (+)= d/dx; the main gradients (fp32 or fp64) of weight and, where there is one, bias are added to.
void norm_backward(const Tensor& dy_TH, const Tensor& x_TH, const NormParameters& parameters,
                   const NormOptions& options, const Tensor& statistics, Tensor& dx_TH, Write write,
                   NormParameters& main_grad);

}  // namespace primus::ops
