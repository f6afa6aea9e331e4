#pragma once
// Biases behind linear layers: one for all rows, or one an expert. Legend: R rows (sorted by expert), O outputs, E
// experts; offsets int32 [E+1] as in gemm.hpp, undefined: E is 1 and all rows are its own.
// On a GPU: without offsets and scale only.
#include "ops/dtype.hpp"

namespace primus::ops {

/// y_RO[r] += scale_R[r] · bias_EO[expert of r]. `scale_R` (fp32 or fp64) undefined: 1.
void bias_add(const Tensor& bias_EO, const Tensor& offsets, const Tensor& scale_R, Tensor& y_RO);

/// dscale_R[r] += Σ_O dy_RO[r] · bias_EO[expert of r].
void bias_scale_gradient(const Tensor& dy_RO, const Tensor& bias_EO, const Tensor& offsets, Tensor& dscale_R);

/// main_grad_EO[e] += Σ over the expert's rows of scale_R · dy_RO.
void bias_gradient(const Tensor& dy_RO, const Tensor& offsets, const Tensor& scale_R, Tensor& main_grad_EO);

}  // namespace primus::ops
