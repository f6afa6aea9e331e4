#pragma once
// Backward pass of blockwise causal attention. Scores are recomputed transposed, keys × queries: with the operands of
// the queries packed once a head, each of the five products then reads one operand in place and one packed.
// With dropout, M the weights' factors: dV = (P ∘ M)·dO and dP = (V·dOᵀ) ∘ M, while delta stays what it is.
//   P = exp(scale · K·Qᵀ − lse)   dP = V·dOᵀ   dS = scale · P ∘ (dP − delta), delta = Σ_v dO · O
//   dV = P·dO   dK = dS·Q   dQ = dSᵀ·K
#include "ops/attention/selected_keys.hpp"
#include "ops/attention/visible_keys.hpp"
#include "ops/attention/weight_dropout.hpp"

namespace primus::ops::attention {

constexpr std::int64_t kBackwardKeys = Cuts::kBackwardKeys;
constexpr std::int64_t kBackwardQueries = Cuts::kBackwardQueries;
static_assert(kBackwardQueries >= kBackwardKeys, "a key block's first query tile must reach each of its keys");

struct BackwardTensors {
  const Tensor &dcontext, &q, &k, &v, &context, &lse;
  Tensor &dq, &dk, &dv;
};

template <typename T>
class Backward {
 public:
  using Acc = acc_t<T>;
  static constexpr std::int64_t kPanel = tile::kPanel<Acc>;
  static constexpr std::int64_t kTileStride = kBackwardQueries + Cuts::kTilePadding;
  static_assert(kBackwardKeys % kPanel == 0 && kBackwardQueries % kPanel == 0);

  Backward(const Sizes& sizes, const BackwardTensors& tensors, const AttentionOptions& options)
      : sizes_(sizes),
        visible_(sizes, options),
        selected_(sizes, options.selected_BSW),
        scale_(static_cast<Acc>(options.scale)),
        softcap_(static_cast<Acc>(options.softcap)),
        dropout_(sizes, options.dropout),
        cuts_{sizes, sizeof(Acc)},
        padded_sequence_(cuts_.padded_sequence()),
        padded_query_(cuts_.padded_query()),
        padded_value_(cuts_.padded_value()),
        dcontext_(as_heads<T>(tensors.dcontext, sizes, sizes.heads, sizes.value_size, "dcontext")),
        q_(as_heads<T>(tensors.q, sizes, sizes.heads, sizes.query_size, "q")),
        k_(as_heads<T>(tensors.k, sizes, sizes.groups, sizes.query_size, "k")),
        v_(as_heads<T>(tensors.v, sizes, sizes.groups, sizes.value_size, "v")),
        context_(as_heads<T>(tensors.context, sizes, sizes.heads, sizes.value_size, "context")),
        dq_(as_heads<T>(tensors.dq, sizes, sizes.heads, sizes.query_size, "dq")),
        dk_(as_heads<T>(tensors.dk, sizes, sizes.groups, sizes.query_size, "dk")),
        dv_(as_heads<T>(tensors.dv, sizes, sizes.groups, sizes.value_size, "dv")),
        lse_(tensors.lse.data_ptr<Acc>()) {}

  void run() {
    const std::int64_t blocks = at::divup(sizes_.sequence, kBackwardKeys);
    slices_ = cuts_.backward_slices();
    if (cuts_.takes_whole_pairs(at::get_num_threads())) {
      run_whole_pairs(blocks);
    } else {
      run_waves(blocks);
    }
  }

 private:
  static constexpr std::int64_t kKeySteps = 3;
  static constexpr std::int64_t kHeadSteps = 3;
  static constexpr std::int64_t kTileElements = Cuts::kBackwardTiles;

  void run_whole_pairs(std::int64_t blocks) {
    const std::int64_t part_elements = cuts_.backward_part();
    const Tensor buffers =
        scratch<Acc>(at::get_num_threads(), cuts_.backward_pair() + slices_ * part_elements + kTileElements);
    for_each_unit(sizes_.pairs(), [&](std::int64_t worker, std::int64_t index) {
      Acc* const tiles = buffers.data_ptr<Acc>() + worker * buffers.size(1);
      Acc* const dq_parts = tiles + kTileElements;
      const Pair pair = pair_of(index, dq_parts + slices_ * part_elements);
      for (std::int64_t step = 0; step < kKeySteps; ++step) prepare_keys(pair, step);
      for (std::int64_t turn = 0; turn < sizes_.heads_per_group(); ++turn) {
        for (std::int64_t step = 0; step < kHeadSteps; ++step) prepare_head(pair, turn, step);
        for (std::int64_t part = 0; part < slices_; ++part) {
          slice(pair, turn, part, dq_parts + part * part_elements, tiles);
        }
        for (std::int64_t block = 0; block < blocks; ++block) store_dq(pair, turn, block, dq_parts);
      }
      for (std::int64_t block = 0; block < blocks; ++block) store_keys(pair, block);
    });
  }

  void run_waves(std::int64_t blocks) {
    const std::int64_t wave = cuts_.wave(cuts_.backward_pair());
    const Tensor packed = scratch<Acc>(wave, cuts_.backward_pair());
    const Tensor dq_parts = scratch<Acc>(wave * slices_, cuts_.backward_part());
    const Tensor tiles = scratch<Acc>(at::get_num_threads(), kTileElements);
    for (std::int64_t first = 0; first < sizes_.pairs(); first += wave) {
      const std::int64_t count = std::min(wave, sizes_.pairs() - first);
      const auto pair_at = [&](std::int64_t index) {
        return pair_of(first + index, packed.data_ptr<Acc>() + index * packed.size(1));
      };
      const auto dq_part = [&](std::int64_t unit) { return dq_parts.data_ptr<Acc>() + unit * dq_parts.size(1); };
      for_each_unit(count * kKeySteps, [&](std::int64_t, std::int64_t unit) {
        prepare_keys(pair_at(unit / kKeySteps), unit % kKeySteps);
      });
      for (std::int64_t turn = 0; turn < sizes_.heads_per_group(); ++turn) {
        for_each_unit(count * kHeadSteps, [&](std::int64_t, std::int64_t unit) {
          prepare_head(pair_at(unit / kHeadSteps), turn, unit % kHeadSteps);
        });
        for_each_unit(count * slices_, [&](std::int64_t worker, std::int64_t unit) {
          slice(pair_at(unit / slices_), turn, unit % slices_, dq_part(unit),
                tiles.data_ptr<Acc>() + worker * tiles.size(1));
        });
        for_each_unit(count * blocks, [&](std::int64_t, std::int64_t unit) {
          store_dq(pair_at(unit / blocks), turn, unit % blocks, dq_part(unit / blocks * slices_));
        });
      }
      for_each_unit(count * blocks,
                    [&](std::int64_t, std::int64_t unit) { store_keys(pair_at(unit / blocks), unit % blocks); });
    }
  }

  // One (batch, key/value head) and its part of the scratch. The head's members hold one query head at a time.
  struct Pair {
    std::int64_t batch, group;
    Acc *key_columns, *key_rows, *value_rows, *dk, *dv;
    Acc *query_transposed, *query_columns, *dcontext_transposed, *dcontext_columns, *delta;
  };

  Pair pair_of(std::int64_t index, Acc* buffer) const {
    const auto take = [&buffer](std::int64_t elements) {
      Acc* const taken = buffer;
      buffer += elements;
      return taken;
    };
    const std::int64_t sequence = sizes_.sequence;
    Pair pair{};
    pair.batch = index / sizes_.groups;
    pair.group = index % sizes_.groups;
    pair.key_columns = take(sequence * padded_query_);
    pair.query_columns = take(sequence * padded_query_);
    pair.dk = take(sequence * padded_query_);
    pair.dcontext_columns = take(sequence * padded_value_);
    pair.dv = take(sequence * padded_value_);
    pair.query_transposed = take(padded_sequence_ * sizes_.query_size);
    pair.dcontext_transposed = take(padded_sequence_ * sizes_.value_size);
    pair.delta = take(sequence);
    pair.key_rows = take(sequence * sizes_.query_size);
    pair.value_rows = take(sequence * sizes_.value_size);
    return pair;
  }

  std::int64_t head_of(const Pair& pair, std::int64_t turn) const {
    return pair.group * sizes_.heads_per_group() + turn;
  }

  void prepare_keys(const Pair& pair, std::int64_t step) const {
    const T* keys = k_.at(pair.batch, pair.group);
    const T* values = v_.at(pair.batch, pair.group);
    if (step == 0) {
      tile::pack_columns(keys, k_.stride, sizes_.sequence, sizes_.query_size, pair.key_columns);
    } else if (step == 1) {
      copy_rows(keys, k_.stride, sizes_.sequence, sizes_.query_size, pair.key_rows);
    } else {
      copy_rows(values, v_.stride, sizes_.sequence, sizes_.value_size, pair.value_rows);
    }
  }

  void prepare_head(const Pair& pair, std::int64_t turn, std::int64_t step) const {
    const std::int64_t head = head_of(pair, turn);
    const T* queries = q_.at(pair.batch, head);
    const T* dcontext = dcontext_.at(pair.batch, head);
    if (step == 0) {
      tile::pack_transposed(queries, q_.stride, sizes_.sequence, sizes_.query_size, scale_, pair.query_transposed);
      tile::pack_columns(queries, q_.stride, sizes_.sequence, sizes_.query_size, pair.query_columns);
    } else if (step == 1) {
      tile::pack_transposed(dcontext, dcontext_.stride, sizes_.sequence, sizes_.value_size, Acc{1},
                            pair.dcontext_transposed);
      tile::pack_columns(dcontext, dcontext_.stride, sizes_.sequence, sizes_.value_size, pair.dcontext_columns);
    } else {
      const T* context = context_.at(pair.batch, head);
      for (std::int64_t s = 0; s < sizes_.sequence; ++s) {
        const T* left = dcontext + s * dcontext_.stride;
        const T* right = context + s * context_.stride;
        Acc dot = 0;
#pragma omp simd reduction(+ : dot)
        for (std::int64_t v = 0; v < sizes_.value_size; ++v)
          dot += static_cast<Acc>(left[v]) * static_cast<Acc>(right[v]);
        pair.delta[s] = dot;
      }
    }
  }

  // The key blocks of one slice. The first block sees every query and the last few: dealt there and back
  // (0 1 2 2 1 0 ...), the slices get about the same work.
  void slice(const Pair& pair, std::int64_t turn, std::int64_t index, Acc* dq, Acc* tiles) const {
    std::fill_n(dq, sizes_.sequence * padded_query_, Acc{0});
    const std::int64_t blocks = at::divup(sizes_.sequence, kBackwardKeys);
    for (std::int64_t block = 0; block < blocks; ++block) {
      const std::int64_t place = block % (2 * slices_);
      if (std::min(place, 2 * slices_ - 1 - place) != index) continue;
      const std::int64_t first_key = block * kBackwardKeys;
      const std::int64_t last_query = visible_.last_query(pair.batch, first_key + kBackwardKeys - 1);
      for (std::int64_t first_query = first_key; first_query <= last_query; first_query += kBackwardQueries) {
        if (turn == 0 && first_query == first_key) {
          tile_pair<Write::kOverwrite>(pair, turn, first_key, first_query, dq, tiles);
        } else {
          tile_pair<Write::kAccumulate>(pair, turn, first_key, first_query, dq, tiles);
        }
      }
    }
  }

  // One block of keys against one block of queries: its share of dK and dV (`write` says whether it is the first) and
  // of dQ.
  template <Write write>
  void tile_pair(const Pair& pair, std::int64_t turn, std::int64_t first_key, std::int64_t first_query, Acc* dq,
                 Acc* tiles) const {
    const std::int64_t keys = std::min(kBackwardKeys, sizes_.sequence - first_key);
    const std::int64_t queries = std::min(kBackwardQueries, sizes_.sequence - first_query);
    Acc* weights = tiles;
    Acc* dscores = tiles + kBackwardKeys * kTileStride;
    const Block block{visible_, pair.batch, head_of(pair, turn), first_key, first_query, keys, queries};
    score_tile(block, pair.key_rows, pair.query_transposed, sizes_.query_size, weights);
    score_tile(block, pair.value_rows, pair.dcontext_transposed, sizes_.value_size, dscores);
    const std::int64_t lse_offset = (pair.batch * sizes_.heads + head_of(pair, turn)) * sizes_.sequence;
    softmax_tile(block, lse_ + lse_offset + first_query, pair.delta + first_query, weights, dscores);
    key_tile<write>(block, weights, pair.dcontext_columns, padded_value_, pair.dv);
    key_tile<write>(block, dscores, pair.query_columns, padded_query_, pair.dk);
    query_tile(block, dscores, pair.key_columns, dq);
  }

  // Keys and queries are counted from the block's first.
  struct Block {
    const VisibleKeys& visible;
    std::int64_t batch, head, first_key, first_query, keys, queries;

    // Queries of the block that see a key: first_seeing … end_seeing.
    std::int64_t first_seeing(std::int64_t key) const {
      return std::clamp<std::int64_t>(first_key + key - first_query, 0, queries);
    }
    std::int64_t end_seeing(std::int64_t key) const {
      return std::clamp<std::int64_t>(visible.last_query(batch, first_key + key) - first_query + 1, 0, queries);
    }
    // Keys of the block that a query sees: first_seen … end_seen.
    std::int64_t first_seen(std::int64_t query) const {
      return std::clamp<std::int64_t>(visible.first_key(batch, first_query + query) - first_key, 0, keys);
    }
    std::int64_t end_seen(std::int64_t query) const {
      return std::clamp<std::int64_t>(first_query + query - first_key + 1, 0, keys);
    }
  };

  // target = rows[keys] · columns[queries]ᵀ, but for the groups of keys that a panel of queries does not see.
  void score_tile(const Block& block, const Acc* rows, const Acc* panels, std::int64_t depth, Acc* target) const {
    for (std::int64_t query = 0; query < block.queries; query += kPanel) {
      const Acc* panel = panels + (block.first_query + query) * depth;
      const std::int64_t end = block.end_seen(query + kPanel - 1);
      for (std::int64_t key = block.first_seen(query) / tile::kGroup * tile::kGroup; key < end; key += tile::kGroup) {
        tile::multiply_group<Acc, Write::kOverwrite>(std::min(tile::kGroup, block.keys - key),
                                                     {rows + (block.first_key + key) * depth, depth}, panel, depth,
                                                     target + key * kTileStride + query, kTileStride);
      }
    }
  }

  // Scores become weights, their gradients' products dS; 0 where the query does not see the key. The loop starts at a
  // whole vector, on scores that are computed though masked, and these become 0 after it.
  void softmax_tile(const Block& block, const Acc* lse, const Acc* delta, Acc* weights, Acc* dscores) const {
    for (std::int64_t key = 0; key < block.keys; ++key) {
      Acc* weight = weights + key * kTileStride;
      Acc* dscore = dscores + key * kTileStride;
      const std::int64_t first = block.first_seeing(key);
      const std::int64_t end = std::max(first, block.end_seeing(key));
      const std::int64_t start = first / tile::kLanes<Acc> * tile::kLanes<Acc>;
      std::array<Acc, kBackwardQueries> factors;
      if (dropout_.is_on()) {
        for (std::int64_t query = start; query < end; ++query) {
          factors[static_cast<std::size_t>(query)] =
              dropout_.template factor<Acc>(block.batch, block.head, block.first_query + query, block.first_key + key);
          dscore[query] *= factors[static_cast<std::size_t>(query)];
        }
      }
      if (softcap_ > 0) {
        capped_row(start, end, lse, delta, weight, dscore);
      } else {
#pragma omp simd
        for (std::int64_t query = start; query < end; ++query) {
          weight[query] = fast_exp(weight[query] - lse[query]);
          dscore[query] = weight[query] * (dscore[query] - delta[query]) * scale_;
        }
      }
      if (dropout_.is_on()) {
        for (std::int64_t query = start; query < end; ++query)
          weight[query] *= factors[static_cast<std::size_t>(query)];
      }
      if (selected_.is_on()) hide(block, key, first, end, weight, dscore);
      std::fill_n(weight, first, Acc{0});
      std::fill_n(dscore, first, Acc{0});
      std::fill(weight + end, weight + block.queries, Acc{0});
      std::fill(dscore + end, dscore + block.queries, Acc{0});
    }
  }

  // 0 for the queries that have not selected the key, whatever their scores gave: that may be infinite.
  void hide(const Block& block, std::int64_t key, std::int64_t first, std::int64_t end, Acc* weight,
            Acc* dscore) const {
    for (std::int64_t query = first; query < end; ++query) {
      if (selected_.has(block.batch, block.first_query + query, block.first_key + key)) continue;
      weight[query] = 0;
      dscore[query] = 0;
    }
  }

  // The same with u = tanh(score / softcap): the weight is exp(softcap · u − lse), and dS has the factor 1 − u².
  void capped_row(std::int64_t start, std::int64_t end, const Acc* lse, const Acc* delta, Acc* weight,
                  Acc* dscore) const {
    const Acc cap = softcap_;
    const Acc inverse = Acc{1} / cap;
    const Acc scale = scale_;
#pragma omp simd
    for (std::int64_t query = start; query < end; ++query) {
      const Acc bounded = fast_tanh(weight[query] * inverse);
      weight[query] = fast_exp(cap * bounded - lse[query]);
      dscore[query] = weight[query] * (dscore[query] - delta[query]) * scale * (Acc{1} - bounded * bounded);
    }
  }

  // target[keys] (+)= tile · columns[queries].
  template <Write write>
  void key_tile(const Block& block, const Acc* source, const Acc* panels, std::int64_t width, Acc* target) const {
    for (std::int64_t column = 0; column < width; column += kPanel) {
      for (std::int64_t key = 0; key < block.keys; key += tile::kGroup) {
        const std::int64_t count = std::min(tile::kGroup, block.keys - key);
        const std::int64_t first = block.first_seeing(key);
        const Acc* panel = panels + column * sizes_.sequence + (block.first_query + first) * kPanel;
        tile::multiply_group<Acc, write>(count, {source + key * kTileStride + first, kTileStride}, panel,
                                         std::max<std::int64_t>(0, block.end_seeing(key + count - 1) - first),
                                         target + (block.first_key + key) * width + column, width);
      }
    }
  }

  // dq[queries] += tileᵀ · keys.
  void query_tile(const Block& block, const Acc* dscores, const Acc* panels, Acc* dq) const {
    for (std::int64_t column = 0; column < padded_query_; column += kPanel) {
      for (std::int64_t query = 0; query < block.queries; query += tile::kGroup) {
        const std::int64_t count = std::min(tile::kGroup, block.queries - query);
        const std::int64_t first = block.first_seen(query);
        const Acc* panel = panels + column * sizes_.sequence + (block.first_key + first) * kPanel;
        tile::multiply_group<Acc, Write::kAccumulate>(
            count, {dscores + first * kTileStride + query, 1, kTileStride}, panel,
            std::max<std::int64_t>(0, block.end_seen(query + count - 1) - first),
            dq + (block.first_query + query) * padded_query_ + column, padded_query_);
      }
    }
  }

  // The slices' parts of dQ, added in their order.
  void store_dq(const Pair& pair, std::int64_t turn, std::int64_t block, Acc* parts) const {
    const std::int64_t part_elements = cuts_.backward_part();
    T* target = dq_.at(pair.batch, head_of(pair, turn));
    const std::int64_t end = std::min(sizes_.sequence, (block + 1) * kBackwardKeys);
    for (std::int64_t s = block * kBackwardKeys; s < end; ++s) {
      Acc* sum = parts + s * padded_query_;
      for (std::int64_t index = 1; index < slices_; ++index) {
        const Acc* part = sum + index * part_elements;
#pragma omp simd
        for (std::int64_t d = 0; d < sizes_.query_size; ++d) sum[d] += part[d];
      }
      store_row(sum, Acc{1}, sizes_.query_size, target + s * dq_.stride);
    }
  }

  void store_keys(const Pair& pair, std::int64_t block) const {
    T* dk = dk_.at(pair.batch, pair.group);
    T* dv = dv_.at(pair.batch, pair.group);
    const std::int64_t end = std::min(sizes_.sequence, (block + 1) * kBackwardKeys);
    for (std::int64_t s = block * kBackwardKeys; s < end; ++s) {
      store_row(pair.dk + s * padded_query_, Acc{1}, sizes_.query_size, dk + s * dk_.stride);
      store_row(pair.dv + s * padded_value_, Acc{1}, sizes_.value_size, dv + s * dv_.stride);
    }
  }

  Sizes sizes_;
  VisibleKeys visible_;
  SelectedKeys selected_;
  Acc scale_, softcap_;
  WeightDropout dropout_;
  Cuts cuts_;
  std::int64_t padded_sequence_, padded_query_, padded_value_;
  std::int64_t slices_ = 1;
  Heads<T> dcontext_, q_, k_, v_, context_, dq_, dk_, dv_;
  const Acc* lse_;
};

}  // namespace primus::ops::attention
