#pragma once
// The grouped products as one cuBLAS product an expert, over several streams (KernelFamilies::Experts::kOneByOne).
// Groups' borders are read on the host, which waits for them: no step with these can be recorded. Shapes as in
// ops/gemm; operands of one type, fp32 or bf16.
#include "ops/dtype.hpp"
#include "ops/write.hpp"

namespace primus::ops::cuda {

void experts_forward(const Tensor& x_RI, const Tensor& w_EOI, const Tensor& offsets, Tensor& y_RO);
void experts_dgrad(const Tensor& dy_RO, const Tensor& w_EOI, const Tensor& offsets, Tensor& dx_RI);
/// Leaves gradients of experts without rows as they are.
void experts_wgrad(const Tensor& dy_RO, const Tensor& x_RI, const Tensor& offsets, Tensor& main_grad_EOI, Write write);

}  // namespace primus::ops::cuda
