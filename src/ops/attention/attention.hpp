#pragma once
// Causal attention with separate query/key and value head sizes (MLA: 192/128), blockwise: S × S scores are never held.
// Legend: B batch, S sequence, A query heads, G key/value heads (A mod G = 0), D query/key size, V value size.
#include "ops/dtype.hpp"

namespace primus::ops {

/// context_BSAV = softmax(scale · q·kᵀ, causal) · v; lse_BAS (fp32 or fp64) = log Σ exp of each query's scores.
/// q [B,S,A,D], k [B,S,G,D], v [B,S,G,V], context [B,S,A,V]: any strides, innermost 1.
void attention_forward(const Tensor& q_BSAD, const Tensor& k_BSGD, const Tensor& v_BSGV, double scale,
                       Tensor& context_BSAV, Tensor& lse_BAS);

/// dq, dk, dv (same shapes as q, k, v; overwritten) from dcontext and what forward left.
void attention_backward(const Tensor& dcontext_BSAV, const Tensor& q_BSAD, const Tensor& k_BSGD, const Tensor& v_BSGV,
                        const Tensor& context_BSAV, const Tensor& lse_BAS, double scale, Tensor& dq_BSAD,
                        Tensor& dk_BSGD, Tensor& dv_BSGV);

}  // namespace primus::ops
