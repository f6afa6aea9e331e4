#pragma once
// A sigmoid gate on attention's output. Legend: T tokens, A heads, V value size. Heads are dense, any strides else.
#include "ops/dtype.hpp"

namespace primus::ops {

/// y_TAV = x · sigmoid(gate).
void output_gate_forward(const Tensor& x_TAV, const Tensor& gate_TAV, Tensor& y_TAV);

/// dx_TAV and dgate_TAV (overwritten) from dy. dx may be dy's own storage.
void output_gate_backward(const Tensor& dy_TAV, const Tensor& x_TAV, const Tensor& gate_TAV, Tensor& dx_TAV,
                          Tensor& dgate_TAV);

}  // namespace primus::ops
