#include "ops/attention/attention_plain.hpp"

#include <ATen/ops/arange.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/logaddexp.h>
#include <ATen/ops/logsumexp.h>

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

/// A block of queries and the keys that some of it sees: from the window of its first query to its last query.
struct Block {
  std::int64_t first_query, queries, first_key, keys;
};

template <typename Body>
void for_each_block(std::int64_t sequence, const AttentionOptions& options, const Body& body) {
  for (std::int64_t begin = 0; begin < sequence; begin += kQueries) {
    const std::int64_t queries = std::min(kQueries, sequence - begin);
    const std::int64_t first_key = options.window == 0 ? 0 : std::max<std::int64_t>(0, begin - options.window + 1);
    body(Block{begin, queries, first_key, begin + queries - first_key});
  }
}

Tensor queries_of(const Tensor& x_ASD, const Block& block) {
  return x_ASD.narrow(1, block.first_query, block.queries);
}
Tensor keys_of(const Tensor& x_ASD, const Block& block) {
  return x_ASD.narrow(1, block.first_key, block.keys);
}

/// True where a query of sequence `batch` does not see a key.
Tensor hidden_of(const Block& block, std::int64_t batch, const AttentionOptions& options, at::Device device) {
  const auto integers = at::TensorOptions(at::kInt).device(device);
  const Tensor query_Q1 = at::arange(block.first_query, block.first_query + block.queries, integers).unsqueeze(1);
  const Tensor key_1K = at::arange(block.first_key, block.first_key + block.keys, integers).unsqueeze(0);
  Tensor hidden = key_1K.gt(query_Q1);
  if (options.window > 0) hidden.logical_or_(key_1K.le(query_Q1.sub(options.window)));
  if (options.first_key_BS.defined()) {
    const Tensor first_Q1 = options.first_key_BS.select(0, batch).narrow(0, block.first_query, block.queries);
    hidden.logical_or_(key_1K.lt(first_Q1.unsqueeze(1)));
  }
  return hidden;
}

/// softcap(scale · q·kᵀ) of a block, hidden keys at minus infinity.
Tensor scores_of(const Tensor& q_ASD, const Tensor& k_ASD, const Block& block, std::int64_t batch,
                 const AttentionOptions& options) {
  Tensor scores = at::bmm(queries_of(q_ASD, block), keys_of(k_ASD, block).transpose(1, 2)).mul_(options.scale);
  if (options.softcap > 0.0) scores.div_(options.softcap).tanh_().mul_(options.softcap);
  return scores.masked_fill_(hidden_of(block, batch, options, scores.device()),
                             -std::numeric_limits<float>::infinity());
}

Tensor with_sink(const Tensor& lse_AS1, const AttentionOptions& options) {
  return options.sink_A.defined() ? at::logaddexp(lse_AS1, options.sink_A.view({-1, 1, 1})) : lse_AS1;
}

}  // namespace

void attention_plain_forward(const Tensor& q_BSAD, const Tensor& k_BSGD, const Tensor& v_BSGV,
                             const AttentionOptions& options, Tensor& context_BSAV, Tensor& lse_BAS) {
  const std::int64_t repeat = q_BSAD.size(2) / k_BSGD.size(2);
  for (std::int64_t b = 0; b < q_BSAD.size(0); ++b) {
    const Tensor q = heads_of(q_BSAD, b, 1);
    const Tensor k = heads_of(k_BSGD, b, repeat);
    const Tensor v = heads_of(v_BSGV, b, repeat);
    for_each_block(q_BSAD.size(1), options, [&](const Block& block) {
      const Tensor scores = scores_of(q, k, block, b, options);
      const Tensor lse = with_sink(at::logsumexp(scores, {2}, true), options);
      const Tensor context = at::bmm(scores.sub(lse).exp_(), keys_of(v, block));
      lse_BAS.select(0, b).narrow(1, block.first_query, block.queries).copy_(lse.squeeze(2));
      context_BSAV.select(0, b).narrow(0, block.first_query, block.queries).copy_(context.transpose(0, 1));
    });
  }
}

void attention_plain_backward(const AttentionBackwardTensors& t, const AttentionOptions& options) {
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
    for_each_block(t.q.size(1), options, [&](const Block& block) {
      const Tensor scores = scores_of(q, k, block, b, options);
      const Tensor probability = scores.sub(queries_of(lse, block)).exp_();
      const Tensor dcontext_block = queries_of(dcontext, block);
      const Tensor dscores = at::bmm(dcontext_block, keys_of(v, block).transpose(1, 2))
                                 .sub_(queries_of(delta, block))
                                 .mul_(probability)
                                 .mul_(options.scale);
      if (options.softcap > 0.0) {
        // Bounded scores are at most the cap; hidden ones are at minus infinity, where the factor must stay finite.
        const Tensor bounded = scores.clamp_min(-options.softcap).div_(options.softcap);
        dscores.mul_(bounded.square_().neg_().add_(1.0));
      }
      queries_of(dq, block).copy_(at::bmm(dscores, keys_of(k, block)));
      keys_of(dk, block).add_(at::bmm(dscores.transpose(1, 2), queries_of(q, block)));
      keys_of(dv, block).add_(at::bmm(probability.transpose(1, 2), dcontext_block));
    });
    store_heads(dq, b, t.dq);
    store_heads(dk, b, t.dk);
    store_heads(dv, b, t.dv);
  }
}

void attention_plain_sink_backward(const Tensor& dcontext_BSAV, const Tensor& context_BSAV, const Tensor& lse_BAS,
                                   const Tensor& sink_A, Tensor& main_grad_A) {
  const at::ScalarType wide = lse_BAS.scalar_type();
  const Tensor delta_BSA = dcontext_BSAV.to(wide).mul(context_BSAV.to(wide)).sum(3);
  const Tensor weight_BAS = sink_A.view({1, -1, 1}).sub(lse_BAS).exp_();
  main_grad_A.sub_(weight_BAS.mul_(delta_BSA.transpose(1, 2)).sum(at::IntArrayRef({0, 2})));
}

}  // namespace primus::ops
