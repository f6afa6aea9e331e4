#include "ops/attention/attention_plain.hpp"

#include <ATen/ops/bmm.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/ones.h>

#include <limits>

namespace primus::ops {
namespace {

constexpr std::int64_t kQueries = 512;  // rows of scores held at a time, for every head of a sequence

/// One sequence's [S, heads, D] as fp32 [heads · repeat, S, D]: each head as often as query heads share it.
Tensor heads_of(const Tensor& x_BSAD, std::int64_t batch, std::int64_t repeat) {
  const Tensor x_ASD = x_BSAD.select(0, batch).transpose(0, 1).to(at::kFloat);
  return repeat == 1 ? x_ASD.contiguous() : x_ASD.repeat_interleave(repeat, 0);
}

/// Writes [heads · repeat, S, D] back: query heads that share one are added up.
void store_heads(const Tensor& x_ASD, std::int64_t batch, Tensor& x_BSAD) {
  const std::int64_t heads = x_BSAD.size(2);
  const Tensor sum = x_ASD.view({heads, x_ASD.size(0) / heads, x_ASD.size(1), x_ASD.size(2)}).sum(1);
  x_BSAD.select(0, batch).copy_(sum.transpose(0, 1));
}

/// A block of queries and the keys that it sees: those up to its last query.
struct Block {
  std::int64_t begin, queries, keys;
};

template <typename Body>
void for_each_block(std::int64_t sequence, const Body& body) {
  for (std::int64_t begin = 0; begin < sequence; begin += kQueries) {
    const std::int64_t queries = std::min(kQueries, sequence - begin);
    body(Block{begin, queries, begin + queries});
  }
}

Tensor queries_of(const Tensor& x_ASD, const Block& block) {
  return x_ASD.narrow(1, block.begin, block.queries);
}
Tensor keys_of(const Tensor& x_ASD, const Block& block) {
  return x_ASD.narrow(1, 0, block.keys);
}

/// scale · q·kᵀ of a block, keys after a query at minus infinity.
Tensor scores_of(const Tensor& q_ASD, const Tensor& k_ASD, const Block& block, double scale) {
  Tensor scores = at::bmm(queries_of(q_ASD, block), keys_of(k_ASD, block).transpose(1, 2)).mul_(scale);
  const Tensor later = at::ones({block.queries, block.keys}, scores.options().dtype(at::kBool)).triu(block.begin + 1);
  return scores.masked_fill_(later, -std::numeric_limits<float>::infinity());
}

}  // namespace

void attention_plain_forward(const Tensor& q_BSAD, const Tensor& k_BSGD, const Tensor& v_BSGV, double scale,
                             Tensor& context_BSAV, Tensor& lse_BAS) {
  const std::int64_t repeat = q_BSAD.size(2) / k_BSGD.size(2);
  for (std::int64_t b = 0; b < q_BSAD.size(0); ++b) {
    const Tensor q = heads_of(q_BSAD, b, 1);
    const Tensor k = heads_of(k_BSGD, b, repeat);
    const Tensor v = heads_of(v_BSGV, b, repeat);
    for_each_block(q_BSAD.size(1), [&](const Block& block) {
      const Tensor scores = scores_of(q, k, block, scale);
      const Tensor lse = at::logsumexp(scores, {2}, true);
      const Tensor context = at::bmm(scores.sub(lse).exp_(), keys_of(v, block));
      lse_BAS.select(0, b).narrow(1, block.begin, block.queries).copy_(lse.squeeze(2));
      context_BSAV.select(0, b).narrow(0, block.begin, block.queries).copy_(context.transpose(0, 1));
    });
  }
}

void attention_plain_backward(const AttentionBackwardTensors& t, double scale) {
  const std::int64_t repeat = t.q.size(2) / t.k.size(2);
  for (std::int64_t b = 0; b < t.q.size(0); ++b) {
    const Tensor q = heads_of(t.q, b, 1);
    const Tensor k = heads_of(t.k, b, repeat);
    const Tensor v = heads_of(t.v, b, repeat);
    const Tensor dcontext = heads_of(t.dcontext, b, 1);
    const Tensor delta = dcontext.mul(heads_of(t.context, b, 1)).sum(2, true);
    const Tensor lse = t.lse.select(0, b).unsqueeze(2);
    const Tensor dq = at::empty_like(q);
    const Tensor dk = at::zeros_like(k);
    const Tensor dv = at::zeros_like(v);
    for_each_block(t.q.size(1), [&](const Block& block) {
      const Tensor probability = scores_of(q, k, block, scale).sub_(queries_of(lse, block)).exp_();
      const Tensor dcontext_block = queries_of(dcontext, block);
      const Tensor dscores = at::bmm(dcontext_block, keys_of(v, block).transpose(1, 2))
                                 .sub_(queries_of(delta, block))
                                 .mul_(probability)
                                 .mul_(scale);
      queries_of(dq, block).copy_(at::bmm(dscores, keys_of(k, block)));
      keys_of(dk, block).add_(at::bmm(dscores.transpose(1, 2), queries_of(q, block)));
      keys_of(dv, block).add_(at::bmm(probability.transpose(1, 2), dcontext_block));
    });
    store_heads(dq, b, t.dq);
    store_heads(dk, b, t.dk);
    store_heads(dv, b, t.dv);
  }
}

}  // namespace primus::ops
