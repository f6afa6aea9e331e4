#pragma once
// The norm behind linear attention with its output gate: y = weight ⊙ x / rms(x) ⊙ f(gate), head by head. Legend: T
// tokens, A heads, V value size. Heads are dense, any strides else. CPU only.
#include "ops/dtype.hpp"

namespace primus::ops {

enum class NormGate { kSilu, kSigmoid };

struct GatedNorm {
  Tensor weight_V;
  NormGate gate = NormGate::kSilu;
  double epsilon = 1e-6;  // added to the mean square
};

void gated_norm_forward(const Tensor& x_TAV, const Tensor& gate_TAV, const GatedNorm& norm, Tensor& y_TAV);

/// dx_TAV and dgate_TAV (overwritten) from dy; the weight's gradient is added to main_grad_V, fp32 (fp64 beside fp64).
/// dx may be dy's own storage.
void gated_norm_backward(const Tensor& dy_TAV, const Tensor& x_TAV, const Tensor& gate_TAV, const GatedNorm& norm,
                         Tensor& dx_TAV, Tensor& dgate_TAV, Tensor& main_grad_V);

}  // namespace primus::ops
