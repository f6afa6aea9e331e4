// DeepSeek-V4's attention a second time: entries window by window, and one softmax over all tokens, entries and sink.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/einsum.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/xlogy.h>
#include <ATen/ops/zeros.h>

#include <limits>

#include "nn/reference.hpp"
#include "ops/windows.hpp"

// Legend: B sequences, S length, C entries, A heads, D their size, I indexer heads.
namespace primus::test {
namespace {

using model::CompressedAttentionSpec;
using model::ModelSpec;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// One layer of a model on a micro-batch.
struct Layer {
  const ModelSpec& spec;
  int layer;
  const ReferenceParameters& p;
  std::int64_t batch, seq;
  Tensor position_BS;  // fp64
  ops::Windowing windowing;

  const CompressedAttentionSpec& attention() const { return spec.compressed; }
  std::string name(const std::string& part) const {
    return fmt::format("decoder.layers.{}.self_attention.{}", layer, part);
  }
  const Tensor& at(const std::string& part) const { return p.at(name(part)); }
  Tensor project(const Tensor& x, const std::string& part) const { return x.matmul(at(part + ".weight").t()); }
  bool has_entries() const { return attention().ratio(layer) > 0; }

  /// The last elements of the heads of x [B, N, A, D] turned by position [B, N], `way` 1, or back, −1.
  Tensor turned(const Tensor& x, const Tensor& position, double way) const {
    const model::RopeSpec& rope = has_entries() ? attention().entry_rope : spec.rope;
    const std::int64_t still = x.size(-1) - rope.rotary_dim;
    const bool interleaved = spec.rope.pairs == model::RopePairs::kNeighbours;
    return at::cat({x.narrow(-1, 0, still),
                    reference_turned(x.narrow(-1, still, rope.rotary_dim), position * way, rope, interleaved)},
                   -1);
  }
};

/// Entries of `size` of x [B, S, H]: [B, C, size]; those that are not there are 0.
Tensor entries_of_layer(const Layer& l, const Tensor& x, const std::string& part, std::int64_t size) {
  const std::int64_t ratio = l.attention().ratio(l.layer);
  const std::int64_t width = l.attention().key_width(l.layer, size);
  const Tensor projected = l.project(x, part + ".linear_key_gate");
  const Tensor& bias = l.at(part + ".position_bias");
  std::vector<Tensor> sequences;
  for (std::int64_t b = 0; b < l.batch; ++b) {
    std::vector<Tensor> rows;
    for (const Entry& entry : entries_of(l.windowing, b, l.seq)) {
      const auto of_window = [&](std::int64_t token, std::int64_t column) {
        return projected[b].narrow(0, token, ratio).narrow(1, column, size);
      };
      const std::int64_t own = width - size;
      Tensor keys = of_window(entry.token, own);
      Tensor gates = of_window(entry.token, width + own) + bias.narrow(1, own, size);
      if (width > size && entry.token > entry.document) {
        keys = at::cat({of_window(entry.token - ratio, 0), keys});
        gates = at::cat({of_window(entry.token - ratio, width) + bias.narrow(1, 0, size), gates});
      }
      const Tensor pooled = (gates.softmax(0) * keys).sum(0);
      const Tensor normed = reference_norm(pooled, l.spec, l.p, l.name(part + ".norm"));
      rows.push_back(l.turned(normed.view({1, 1, 1, size}), l.position_BS[b][entry.token].view({1, 1}), 1.0).flatten());
    }
    while (std::ssize(rows) < l.seq / ratio) rows.push_back(at::zeros({size}, at::kDouble));
    sequences.push_back(rows.empty() ? at::zeros({0, size}, at::kDouble) : at::stack(rows));
  }
  return at::stack(sequences);
}

Tensor indexer_scores(const Layer& l, const Tensor& x, const Tensor& latent) {
  const model::IndexerSpec& indexer = l.attention().indexer;
  const std::string part = "core_attention.indexer.";
  const Tensor q = l.turned(l.project(latent, part + "linear_wq_b").view({l.batch, l.seq, indexer.num_heads, -1}),
                            l.position_BS, 1.0);
  const Tensor k = entries_of_layer(l, x, part + "compressor", indexer.head_dim);
  const Tensor weights = l.project(x, part + "linear_weights_proj") / std::sqrt(static_cast<double>(indexer.num_heads));
  const Tensor products =
      at::einsum("bsid,bcd->bsic", {q, k}).relu() / std::sqrt(static_cast<double>(indexer.head_dim));
  return at::einsum("bsic,bsi->bsc", {products, weights});
}

/// Tokens that a query does not see, [B, S, S].
Tensor hidden_tokens(const Layer& l) {
  Tensor hidden = at::ones({l.batch, l.seq, l.seq}, at::kBool);
  for (std::int64_t b = 0; b < l.batch; ++b) {
    for (std::int64_t s = 0; s < l.seq; ++s) {
      const std::int64_t window = l.attention().window;
      std::int64_t first = window == 0 ? 0 : std::max<std::int64_t>(0, s - window + 1);
      if (l.windowing.first_key_BS.defined()) {
        first = std::max(first, l.windowing.first_key_BS[b][s].item<std::int64_t>());
      }
      hidden[b][s].narrow(0, first, s - first + 1).fill_(false);
    }
  }
  return hidden;
}

/// Of the entries in sight those without the best scores are hidden too; of equal ones the earlier stay.
Tensor not_picked(const Tensor& scores, const Tensor& hidden, std::int64_t top_k) {
  const Tensor order = std::get<1>(at::sort(scores.detach().masked_fill(hidden, -kInfinity), true, -1, true));
  const Tensor picked = order.narrow(-1, 0, std::min(top_k, scores.size(-1)));
  return at::ones_like(hidden).scatter(-1, picked, false).logical_or(hidden);
}

/// Mean over the tokens of KL(heads' weights over picked entries ‖ softmax of their scores).
Tensor divergence(const Tensor& weights_BASC, const Tensor& scores, const Tensor& hidden) {
  const Tensor sees_none = hidden.all(-1, true);
  const Tensor sum = weights_BASC.detach().sum(1);
  const Tensor wanted = (sum / sum.sum(-1, true)).masked_fill(sees_none, 0.0);
  const Tensor log_q =
      scores.masked_fill(hidden, -kInfinity).masked_fill(sees_none, 0.0).log_softmax(-1).masked_fill(hidden, 0.0);
  return (at::xlogy(wanted, wanted) - wanted * log_q).sum(-1).mean();
}

}  // namespace

Tensor reference_compressed_attention(const Tensor& x_BSH, const ModelSpec& spec, int layer,
                                      const ReferenceParameters& p, Tensor* aux_loss, const PackedDocuments& packed) {
  const CompressedAttentionSpec& attention = spec.compressed;
  const std::int64_t batch = x_BSH.size(0);
  const std::int64_t seq = x_BSH.size(1);
  const Tensor column = at::arange(seq, at::kDouble).unsqueeze(0).expand({batch, seq});
  const Layer l{spec,
                layer,
                p,
                batch,
                seq,
                packed.position_BS.defined() ? packed.position_BS.to(at::kDouble) : column,
                {std::max<std::int64_t>(attention.ratio(layer), 1), packed.first_key_BS}};
  const Tensor latent = reference_norm(l.project(x_BSH, "linear_q_down_proj"), spec, p, l.name("q_layernorm"));
  Tensor q = l.project(latent, "linear_q_up_proj").view({batch, seq, attention.num_heads, attention.head_dim});
  q = l.turned(q * (q.square().mean(-1, true) + spec.norm_epsilon).rsqrt(), l.position_BS, 1.0);
  Tensor keys = reference_norm(l.project(x_BSH, "linear_kv_proj"), spec, p, l.name("kv_layernorm"));
  keys = l.turned(keys.unsqueeze(2), l.position_BS, 1.0).squeeze(2);
  Tensor hidden = hidden_tokens(l);
  Tensor hidden_entry;
  Tensor scores;
  if (l.has_entries()) {
    keys = at::cat({keys, entries_of_layer(l, x_BSH, "compressor", attention.head_dim)}, 1);
    hidden_entry = hidden_entries(l.windowing, batch, seq);
    if (attention.picks_entries(layer)) {
      scores = indexer_scores(l, x_BSH.detach(), latent.detach());
      hidden_entry = not_picked(scores, hidden_entry, attention.indexer.top_k);
    }
    hidden = at::cat({hidden, hidden_entry}, 2);
  }
  Tensor logits = at::einsum("bsad,btd->bast", {q, keys}) / std::sqrt(static_cast<double>(attention.head_dim));
  logits = logits.masked_fill(hidden.unsqueeze(1), -kInfinity);
  if (attention.sinks == model::Part::kPresent) {
    const Tensor sink = l.at("core_attention.sinks").view({1, -1, 1, 1});
    logits = at::cat({logits, sink.expand({batch, attention.num_heads, seq, 1})}, 3);
  }
  const Tensor weights = logits.softmax(-1).narrow(3, 0, keys.size(1));
  if (scores.defined() && scores.size(-1) > 0 && attention.indexer.loss_coefficient > 0.0) {
    *aux_loss = *aux_loss + divergence(weights.narrow(3, seq, scores.size(-1)), scores, hidden_entry) *
                                attention.indexer.loss_coefficient;
  }
  const Tensor context = l.turned(at::einsum("bast,btd->bsad", {weights, keys}), l.position_BS, -1.0);
  // Each group of heads by its own rows of the first matrix.
  const Tensor grouped = context.reshape({batch, seq, attention.output_groups, -1});
  const Tensor down = l.at("linear_o_down_proj.weight").view({attention.output_groups, attention.output_rank, -1});
  return l.project(at::einsum("bsgw,grw->bsgr", {grouped, down}).flatten(2), "linear_proj");
}

}  // namespace primus::test
