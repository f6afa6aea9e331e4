#pragma once
// RMSNorm: y = x · rstd · weight, rstd = 1/sqrt(mean(x²) + epsilon). Legend: T rows, H width. x may have a row stride >
// H. Each [T, H] may be [T, A, H] too, whose A heads a token are rows of their own, with any strides but the last.
#include "ops/dtype.hpp"

namespace primus::ops {

/// y_TH and rstd_T (fp32, or fp64 beside fp64) from x_TH.
void rms_norm_forward(const Tensor& x_TH, const Tensor& weight_H, double epsilon, Tensor& y_TH, Tensor& rstd_T);

/// y_TH again from x_TH and the saved rstd_T: equal bit for bit to the forward's.
void rms_norm_apply(const Tensor& x_TH, const Tensor& weight_H, const Tensor& rstd_T, Tensor& y_TH);

/// dx_TH (+)= d/dx (row stride allowed); weight's main gradient (fp32 or fp64) += Σ_T dy · x · rstd.
void rms_norm_backward(const Tensor& dy_TH, const Tensor& x_TH, const Tensor& weight_H, const Tensor& rstd_T,
                       Tensor& dx_TH, Write write, Tensor& main_grad_H);

}  // namespace primus::ops
