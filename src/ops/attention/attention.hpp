#pragma once
// Causal attention with separate query/key and value head sizes (MLA: 192/128), blockwise: S × S scores are never held.
// Legend: B batch, S sequence, A query heads, G key/value heads (A mod G = 0), D query/key size, V value size.
#include "ops/dtype.hpp"

namespace primus::ops {

/// Weights are zero with this probability, the others divided by 1 − probability. The weight of a key t for a query s
/// has the number ((sequence · A + head) · S + s) · S + t in the stream, the sequence counted over the global batch.
struct AttentionDropout {
  double probability = 0.0;
  std::uint64_t seed = 0;
  std::uint64_t stream = 0;
  std::int64_t first_sequence = 0;
};

/// What a query sees and how its scores become weights; the defaults are plain causal attention.
struct AttentionOptions {
  double scale = 1.0;
  std::int64_t window = 0;  // keys that a query sees, itself included; 0: every one up to itself
  double softcap = 0.0;     // scores become softcap · tanh(score / softcap); 0: they stay
  Tensor first_key_BS;      // int32: first key that each query sees, never falling (packed documents); undefined: key 0
  Tensor sink_A;            // a logit a head, without a value, in every softmax (fp32 or fp64); undefined: none
  Tensor selected_BSW = {};  // int32, W = ceil(S / 32): bit t mod 32 of word t / 32 says whether the query sees key t
                             // of those above, one at least; undefined: all of them
  AttentionDropout dropout = {};
};

/// context_BSAV = softmax(scale · q·kᵀ, causal) · v; lse_BAS (fp32 or fp64) = log Σ exp of each query's scores, the
/// sink's included.
/// q [B,S,A,D], k [B,S,G,D], v [B,S,G,V], context [B,S,A,V]: any strides, innermost 1.
void attention_forward(const Tensor& q_BSAD, const Tensor& k_BSGD, const Tensor& v_BSGV,
                       const AttentionOptions& options, Tensor& context_BSAV, Tensor& lse_BAS);

/// dq, dk, dv (same shapes as q, k, v; overwritten) from dcontext and what forward left.
void attention_backward(const Tensor& dcontext_BSAV, const Tensor& q_BSAD, const Tensor& k_BSGD, const Tensor& v_BSGV,
                        const Tensor& context_BSAV, const Tensor& lse_BAS, const AttentionOptions& options,
                        Tensor& dq_BSAD, Tensor& dk_BSGD, Tensor& dv_BSGV);

/// The sinks' main gradient (fp32 or fp64) += −Σ_BS exp(sink − lse) · (dcontext · context).
void attention_sink_backward(const Tensor& dcontext_BSAV, const Tensor& context_BSAV, const Tensor& lse_BAS,
                             const Tensor& sink_A, Tensor& main_grad_A);

}  // namespace primus::ops
