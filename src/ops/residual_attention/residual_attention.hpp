#pragma once
// Attention over the residual stream's blocks (Kimi Team, "Attention Residuals", 2026): what a part of a layer reads is
// a mean of each token's rows in the blocks, weighted by a softmax over the blocks of query · (norm ⊙ x / rms(x)).
// Legend: T tokens, H hidden, N blocks. CPU only.
#include <span>

#include "ops/dtype.hpp"

namespace primus::ops {

struct ResidualAttention {
  Tensor norm_H;
  Tensor query_H;
  double epsilon = 1e-6;  // added to the mean square
};

/// y_TH (overwritten) from the blocks, [T, H] each, dense; and the softmax's weights_TN, overwritten, fp32 (fp64 beside
/// fp64).
void residual_attention_forward(std::span<const Tensor> blocks_TH, const ResidualAttention& attention,
                                Tensor& weights_TN, Tensor& y_TH);

/// Gradients from dy: those of the blocks are added to gradients_TH, of the blocks' type, dense; those of norm and
/// query to norm_sum_H and query_sum_H, fp32 (fp64 beside fp64). weights_TN is forward's.
void residual_attention_backward(const Tensor& dy_TH, std::span<const Tensor> blocks_TH,
                                 const ResidualAttention& attention, const Tensor& weights_TN,
                                 std::span<Tensor> gradients_TH, Tensor& norm_sum_H, Tensor& query_sum_H);

}  // namespace primus::ops
