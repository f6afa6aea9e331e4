#pragma once
// Rotary position embedding and the assembly of MLA's queries and keys.
// Legend: B batch, S sequence, T = B·S, A heads, G key/value heads, N qk_head_dim without position, P rotary size, V
// value size.
#include "ops/dtype.hpp"

namespace primus::ops {

/// Which elements form a pair: (i, i + P/2) or (2i, 2i + 1).
enum class RopeLayout { kHalves, kInterleaved };

/// q_TAQ [T, A, N+P] in place: rotate its last P elements by the position t mod S. cos, sin: [S, P/2], fp32
/// (fp64 beside fp64).
/// k_TAQ [T, A, N+P] <- per head: kv's N key elements, then the rotated k_pe; v_TAV <- kv's V value elements.
/// kv_TA(N+V) [T, A, N+V]; k_pe_TP [T, P] (row stride allowed), shared by all heads.
void mla_assemble_forward(const Tensor& kv_TAD, const Tensor& k_pe_TP, const Tensor& cos_SP, const Tensor& sin_SP,
                          RopeLayout layout, Tensor& q_TAQ, Tensor& k_TAQ, Tensor& v_TAV);

/// dq_TAQ in place (rotate back); dkv_TAD <- from dk and dv; dk_pe_TP (row stride allowed) <- Σ over heads, rotated
/// back.
void mla_assemble_backward(const Tensor& dk_TAQ, const Tensor& dv_TAV, const Tensor& cos_SP, const Tensor& sin_SP,
                           RopeLayout layout, Tensor& dq_TAQ, Tensor& dkv_TAD, Tensor& dk_pe_TP);

enum class RopeDirection { kForward, kBackward };

/// Rotate, in place, the first P elements of each head of x_TAD [T, A, D] (any strides, innermost 1).
void rope_apply(const Tensor& cos_SP, const Tensor& sin_SP, RopeLayout layout, RopeDirection direction, Tensor& x_TAD);

}  // namespace primus::ops
