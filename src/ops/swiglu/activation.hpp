#pragma once
// The function between the two matrices of an MLP, with the routing probability applied before the down projection
// (semantics.md 1.2). Legend: R rows, F ffn width; the pre-activation h holds gate (first F) and up (last F) of a gated
// unit, 2F, or F values of a plain one.
#include <optional>

#include "ops/dtype.hpp"

namespace primus::ops {

enum class ActivationFunction {
  kSilu,         // x · σ(x)
  kQuickGelu,    // x · σ(1.702 x)
  kGelu,         // x · Φ(x), exact
  kTanhGelu,     // GELU with Φ in its tanh form
  kSquaredRelu,  // max(x, 0)²
  kSitu,         // β · tanh(x / β) · σ(x), of gated units
};

enum class ActivationUnit { kGated, kPlain };

struct ActivationOptions {
  ActivationFunction function = ActivationFunction::kSilu;
  ActivationUnit unit = ActivationUnit::kGated;
  std::optional<double> clamp;  // gated: bounds the gate from above, up on both sides; no gradient beyond it
  double linear_offset = 0.0;   // gated: added to up
  double situ_beta = 1.0;       // β of kSitu
  std::optional<double> situ_linear_beta = {};  // beside kSitu: up becomes β · tanh(up / β); neither clamp nor offset

  bool is_swiglu() const {
    return function == ActivationFunction::kSilu && unit == ActivationUnit::kGated && !clamp && linear_offset == 0.0;
  }
  /// Columns of the pre-activation for F of the activation.
  std::int64_t input_width(std::int64_t ffn) const { return unit == ActivationUnit::kGated ? 2 * ffn : ffn; }
};

/// a_RF = f(gate) · (up + offset) · prob_R, or f(h) · prob_R. `prob_R` and `num_rows` as in swiglu_forward.
void activation_forward(const Tensor& h, const ActivationOptions& options, const Tensor& prob_R, const Tensor& num_rows,
                        Tensor& a_RF);

/// dh from da_RF; dprob_R (when prob is defined); and a_RF again, as in swiglu_backward. dh may be h's own storage.
void activation_backward(const Tensor& da_RF, const Tensor& h, const ActivationOptions& options, const Tensor& prob_R,
                         const Tensor& num_rows, Tensor& dh, Tensor& dprob_R, Tensor& a_RF);

}  // namespace primus::ops
