#pragma once
// The indexer of sparse attention: small heads that score every key for a query, the keys that are picked, and the loss
// that teaches the scores where attention looks. S × S scores are never held.
//   score(s, t) = scale · Σ_i w_i(s) · f(q_i(s) · k(t)), f = relu or the identity
// The keys are tokens, or entries that stand for windows of tokens (ops/compressor/windows.hpp).
// Legend: B batch, S sequence, N keys of a sequence (S, or the windows' capacity), I indexer heads, D their size, W =
// ceil(N / 32) words of bits, A attention heads, G those of attention's keys, Q their size.
#include <optional>

#include "ops/attention/attention.hpp"
#include "ops/compressor/windows.hpp"

namespace primus::ops {

struct IndexerOptions {
  std::int64_t top_k = 1;
  double scale = 1.0;
  enum class Scoring { kRelu, kLinear } scoring = Scoring::kRelu;
  std::optional<Windowing> entries = {};  // keys are the entries of these windows
};

/// What scores are made of: q [B,S,I,D], k [B,N,D], w [B,S,I]; any strides of q's and k's first two axes, w contiguous.
struct IndexerInput {
  Tensor q_BSID, k_BND, weight_BSI;
};

/// selected_BSW (int32, bits as AttentionOptions::selected_BSW) <- the top_k keys of the highest score among those that
/// the query sees (of tokens `attention` says which: window and documents); all of them where there are no more. Ties:
/// the earlier key.
void indexer_select(const IndexerInput& in, const IndexerOptions& options, const AttentionOptions& attention,
                    Tensor& selected_BSW);

/// loss_BS (fp32 or fp64) <- KL(p ‖ softmax of the scores) of each query, over the keys that it sees (and, where
/// `attention` has selected keys, has selected), 0 where it sees none; p: the heads' attention weights, added up and
/// divided by their sum. The gradients (overwritten) are factor · Σ_BS dloss; nothing flows into attention's q
/// [B,S,A,Q] and k [B,N,G,Q]. lse_BAS (fp32 or fp64): the logarithm of attention's sum where its softmax is over other
/// keys too; undefined: it is over these keys and the sink.
void indexer_loss(const IndexerInput& in, const IndexerOptions& options, const Tensor& q_BSAQ, const Tensor& k_BNGQ,
                  const AttentionOptions& attention, double factor, Tensor& loss_BS, IndexerInput& gradient,
                  const Tensor& lse_BAS = {});

}  // namespace primus::ops
