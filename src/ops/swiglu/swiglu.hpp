#pragma once
// SwiGLU, with the routing probability applied to the activation before the down projection (semantics.md 1.2).
// Legend: R rows, F ffn width; the pre-activation h_R2F holds gate (first F) and up (last F).
#include "ops/dtype.hpp"

namespace primus::ops {

/// a_RF = silu(gate) · up · prob_R. `prob_R` (fp32 or fp64) may be undefined: 1. `num_rows`: int32 tensor of one
/// element on the same device, rows past it are not touched; undefined: all rows.
void swiglu_forward(const Tensor& h_R2F, const Tensor& prob_R, const Tensor& num_rows, Tensor& a_RF);

/// dh_R2F from da_RF; dprob_R = Σ_F da · silu(gate) · up (when prob is defined); and a_RF again, as forward gave it,
/// for the down projection's weight gradient. dh may be h's own storage.
void swiglu_backward(const Tensor& da_RF, const Tensor& h_R2F, const Tensor& prob_R, const Tensor& num_rows,
                     Tensor& dh_R2F, Tensor& dprob_R, Tensor& a_RF);

}  // namespace primus::ops
