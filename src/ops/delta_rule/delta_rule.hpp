#pragma once
// The gated delta rule, linear attention with a state that forgets and corrects itself. Of each value head, from zero
// at the first token of a document on:
//   S = decay ⊙ S;  x = β · (v − Sᵀk);  S = S + k xᵀ;  y = Sᵀq
// with k and q of unit length and q over sqrt(K) besides. A decay is one number a head (Gated DeltaNet, Yang et al.
// 2024) or one a row of the state (Kimi delta attention, 2025). Tokens are taken in chunks, in which all of this is
// products of matrices. CPU only.
// Legend: T tokens in sequences of seq_length; G key heads of size K; A value heads of size V, A/G for each key head.
// Heads are dense; tokens and heads may lie apart.
#include "ops/dtype.hpp"

namespace primus::ops {

struct DeltaRule {
  Tensor q_TGK, k_TGK;
  Tensor v_TAV;
  Tensor log_decay;  // [T, A] or [T, A, K], at most 0; fp32 (fp64 beside fp64), dense
  Tensor beta_TA;    // of the same type, dense
  std::int64_t seq_length = 0;
  Tensor first_key_BS;  // int32, the first token of its sequence that each one sees; undefined: the sequence's
  std::int64_t chunk_size = 64;
};

/// Each in the type and shape of its input; overwritten.
struct DeltaRuleGradient {
  Tensor q_TGK, k_TGK, v_TAV, log_decay, beta_TA;
};

/// y_TAV, overwritten.
void delta_rule_forward(const DeltaRule& in, Tensor& y_TAV);

/// Gradients of all inputs from dy. The states before each chunk are made again, one pair of heads at a time.
void delta_rule_backward(const Tensor& dy_TAV, const DeltaRule& in, DeltaRuleGradient& gradient);

}  // namespace primus::ops
