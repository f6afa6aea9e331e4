#pragma once
// How fast the states of linear attention forget: log decay = −exp(a_log) · softplus(x + dt_bias), or with a lower
// bound L < 0 the bounded form L · sigmoid(exp(a_log) · (x + dt_bias)). Legend: T tokens, A heads, K numbers a head (1,
// or one a row of the state). CPU only.
#include <optional>

#include "ops/dtype.hpp"

namespace primus::ops {

struct DecayGate {
  Tensor a_log_A;
  Tensor dt_bias;  // A·K numbers
  std::optional<double> lower_bound;
};

/// Sums that the parameters' gradients are added to, fp32 (fp64 beside fp64).
struct DecayGateGradient {
  Tensor a_log_A;
  Tensor dt_bias;
};

/// log_decay_TAK, dense, fp32 (fp64 beside fp64). Tokens of x may lie apart.
void decay_gate_forward(const Tensor& x_TAK, const DecayGate& gate, Tensor& log_decay_TAK);

/// dx_TAK (overwritten, tokens may lie apart) from dlog_decay_TAK, dense.
void decay_gate_backward(const Tensor& dlog_decay_TAK, const Tensor& x_TAK, const DecayGate& gate, Tensor& dx_TAK,
                         DecayGateGradient& gradient);

}  // namespace primus::ops
