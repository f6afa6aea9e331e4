#pragma once
// Bias of a linear layer. Legend: T rows, H width. Matrices may have a row stride > H.
#include "ops/dtype.hpp"

namespace primus::ops {

/// x_TH += bias_H in every row.
void bias_add(const Tensor& bias_H, Tensor& x_TH);

/// The bias's main gradient (fp32 or fp64) += Σ_T dy; its bits do not depend on the threads.
void bias_backward(const Tensor& dy_TH, Tensor& main_grad_H);

}  // namespace primus::ops
