#pragma once
// Forward pass of blockwise causal attention, one query block at a time.
#include <limits>

#include "ops/attention/selected_keys.hpp"
#include "ops/attention/visible_keys.hpp"
#include "ops/attention/weight_dropout.hpp"
#include "ops/row_math.hpp"

namespace primus::ops::attention {

constexpr std::int64_t kForwardQueries = Cuts::kForwardQueries;
constexpr std::int64_t kForwardKeys = Cuts::kForwardKeys;

template <typename T>
class Forward {
 public:
  using Acc = acc_t<T>;
  static constexpr std::int64_t kPanel = tile::kPanel<Acc>;
  static_assert(kPanel == Cuts::panel(sizeof(Acc)));
  static constexpr std::int64_t kTileStride = kForwardKeys + Cuts::kTilePadding;

  Forward(const Sizes& sizes, const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& options,
          Tensor& context, Tensor& lse)
      : sizes_(sizes),
        visible_(sizes, options),
        selected_(sizes, options.selected_BSW),
        scale_(static_cast<Acc>(options.scale)),
        softcap_(static_cast<Acc>(options.softcap)),
        dropout_(sizes, options.dropout),
        sinks_(sink_data<Acc>(sizes, options.sink_A)),
        cuts_{sizes, sizeof(Acc)},
        padded_value_(cuts_.padded_value()),
        q_(as_heads<T>(q, sizes, sizes.heads, sizes.query_size, "q")),
        k_(as_heads<T>(k, sizes, sizes.groups, sizes.query_size, "k")),
        v_(as_heads<T>(v, sizes, sizes.groups, sizes.value_size, "v")),
        context_(as_heads<T>(context, sizes, sizes.heads, sizes.value_size, "context")),
        lse_(lse.data_ptr<Acc>()) {}

  void run() {
    if (cuts_.takes_whole_pairs(at::get_num_threads())) {
      run_whole_pairs();
    } else {
      run_waves();
    }
  }

 private:
  static constexpr std::int64_t kSteps = 2;

  std::int64_t blocks() const { return at::divup(sizes_.sequence, kForwardQueries); }

  void run_whole_pairs() {
    const Tensor buffers = scratch<Acc>(at::get_num_threads(), cuts_.forward_worker() + cuts_.forward_pair());
    for_each_unit(sizes_.pairs(), [&](std::int64_t worker, std::int64_t pair) {
      Acc* const buffer = buffers.data_ptr<Acc>() + worker * buffers.size(1);
      Acc* const packed = buffer + cuts_.forward_worker();
      for (std::int64_t step = 0; step < kSteps; ++step) prepare(pair, step, packed);
      for (std::int64_t turn = 0; turn < sizes_.heads_per_group(); ++turn) {
        for (std::int64_t block = 0; block < blocks(); ++block) query_block(pair, turn, block, packed, buffer);
      }
    });
  }

  void run_waves() {
    const std::int64_t wave = cuts_.wave(cuts_.forward_pair());
    const Tensor packed_tensor = scratch<Acc>(wave, cuts_.forward_pair());
    const Tensor buffers = scratch<Acc>(at::get_num_threads(), cuts_.forward_worker());
    const auto packed = [&](std::int64_t pair) { return packed_tensor.data_ptr<Acc>() + pair * packed_tensor.size(1); };
    for (std::int64_t first = 0; first < sizes_.pairs(); first += wave) {
      const std::int64_t pairs = std::min(wave, sizes_.pairs() - first);
      for_each_unit(kSteps * pairs, [&](std::int64_t, std::int64_t unit) {
        prepare(first + unit / kSteps, unit % kSteps, packed(unit / kSteps));
      });
      // The last blocks of queries see the most keys: they go first, so that no thread starts one at the end.
      const std::int64_t heads = pairs * sizes_.heads_per_group();
      for_each_unit(heads * blocks(), [&](std::int64_t worker, std::int64_t unit) {
        const std::int64_t pair = unit % heads / sizes_.heads_per_group();
        query_block(first + pair, unit % heads % sizes_.heads_per_group(), blocks() - 1 - unit / heads, packed(pair),
                    buffers.data_ptr<Acc>() + worker * buffers.size(1));
      });
    }
  }

  // Keys (step 0) and values (step 1) of a pair, packed.
  void prepare(std::int64_t pair, std::int64_t step, Acc* packed) const {
    const std::int64_t batch = pair / sizes_.groups;
    const std::int64_t group = pair % sizes_.groups;
    if (step == 0) {
      tile::pack_transposed(k_.at(batch, group), k_.stride, sizes_.sequence, sizes_.query_size, scale_, packed);
    } else {
      tile::pack_columns(v_.at(batch, group), v_.stride, sizes_.sequence, sizes_.value_size,
                         packed + cuts_.forward_keys());
    }
  }

  // Up to kForwardQueries queries against up to kForwardKeys keys. Keys are counted from the tile's first.
  struct Tile {
    std::int64_t batch, head, first_query, first_key, rows;
  };
  struct Span {
    std::int64_t begin, end;
    bool is_empty() const { return begin >= end; }
  };
  struct Running {
    Acc *output, *maximum, *sum;
  };

  // Keys of the tile that its queries row … last_row see, one of them at least.
  Span seen(const Tile& tile, std::int64_t row, std::int64_t last_row) const {
    return {std::clamp<std::int64_t>(visible_.first_key(tile.batch, tile.first_query + row) - tile.first_key, 0,
                                     kForwardKeys),
            std::clamp<std::int64_t>(tile.first_query + last_row - tile.first_key + 1, 0, kForwardKeys)};
  }

  // softmax(scores) · v of up to kForwardQueries queries, tile of keys by tile of keys, with the running maximum and
  // sum of each query.
  void query_block(std::int64_t pair, std::int64_t turn, std::int64_t block, const Acc* packed, Acc* buffer) const {
    const std::int64_t batch = pair / sizes_.groups;
    const std::int64_t head = pair % sizes_.groups * sizes_.heads_per_group() + turn;
    const std::int64_t first_query = block * kForwardQueries;
    const std::int64_t rows = std::min(kForwardQueries, sizes_.sequence - first_query);
    Acc* scores = buffer;
    Running running{};
    running.output = scores + kForwardQueries * kTileStride;
    running.maximum = running.output + kForwardQueries * padded_value_;
    running.sum = running.maximum + kForwardQueries;
    Acc* queries = running.sum + kForwardQueries;
    copy_rows(q_.at(batch, head) + first_query * q_.stride, q_.stride, rows, sizes_.query_size, queries);
    std::fill_n(running.maximum, rows, -std::numeric_limits<Acc>::infinity());
    std::fill_n(running.sum, rows, Acc{0});
    const std::int64_t begin = visible_.first_key(batch, first_query) / kPanel * kPanel;
    for (std::int64_t first_key = begin; first_key < first_query + rows; first_key += kForwardKeys) {
      const Tile tile{batch, head, first_query, first_key, rows};
      score_tile(tile, queries, packed, scores);
      if (first_key == begin) {
        softmax_tile<Write::kOverwrite>(tile, scores, running);
        value_tile<Write::kOverwrite>(tile, scores, packed + cuts_.forward_keys(), running.output);
      } else {
        softmax_tile<Write::kAccumulate>(tile, scores, running);
        value_tile<Write::kAccumulate>(tile, scores, packed + cuts_.forward_keys(), running.output);
      }
    }
    store(batch, head, first_query, rows, running);
  }

  void store(std::int64_t batch, std::int64_t head, std::int64_t first_query, std::int64_t rows,
             const Running& running) const {
    T* context = context_.at(batch, head) + first_query * context_.stride;
    Acc* lse = lse_ + (batch * sizes_.heads + head) * sizes_.sequence + first_query;
    for (std::int64_t row = 0; row < rows; ++row) {
      Acc highest = running.maximum[row];
      Acc sum = running.sum[row];
      Acc factor = 1;
      if (sinks_ != nullptr) {
        highest = std::max(highest, sinks_[head]);
        factor = std::exp(running.maximum[row] - highest);
        sum = sum * factor + std::exp(sinks_[head] - highest);
      }
      lse[row] = highest + std::log(sum);
      store_row(running.output + row * padded_value_, factor / sum, sizes_.value_size, context + row * context_.stride);
    }
  }

  // Groups of queries that see no key of a panel are left out: outside the visible keys nothing is computed but the
  // rim.
  void score_tile(const Tile& tile, const Acc* queries, const Acc* keys, Acc* scores) const {
    const std::int64_t columns = seen(tile, 0, tile.rows - 1).end;
    for (std::int64_t column = 0; column < columns; column += kPanel) {
      const std::int64_t key = tile.first_key + column;
      const Acc* panel = keys + key * sizes_.query_size;
      const std::int64_t first_row = std::max<std::int64_t>(0, key - tile.first_query);
      const std::int64_t end_row =
          std::min(tile.rows, visible_.last_query(tile.batch, key + kPanel - 1) - tile.first_query + 1);
      for (std::int64_t row = first_row / tile::kGroup * tile::kGroup; row < end_row; row += tile::kGroup) {
        tile::multiply_group<Acc, Write::kOverwrite>(
            std::min(tile::kGroup, tile.rows - row), {queries + row * sizes_.query_size, sizes_.query_size}, panel,
            sizes_.query_size, scores + row * kTileStride + column, kTileStride);
      }
    }
  }

  // Scores become exp(score − maximum); what was summed under a smaller maximum is scaled down (`write`: whether there
  // is such). Masked columns within what the group's product with v reads, and out to whole vectors, become
  // exp(−inf) = 0.
  template <Write write>
  void softmax_tile(const Tile& tile, Acc* scores, const Running& running) const {
    for (std::int64_t row = 0; row < tile.rows; ++row) {
      Acc* score = scores + row * kTileStride;
      const std::int64_t first_of_group = row / tile::kGroup * tile::kGroup;
      const Span own = seen(tile, row, row);
      Span group = seen(tile, first_of_group, std::min(tile.rows, first_of_group + tile::kGroup) - 1);
      group = {group.begin / tile::kLanes<Acc> * tile::kLanes<Acc>, tile::round_up(group.end, tile::kLanes<Acc>)};
      if (own.is_empty()) {
        if (!group.is_empty()) std::fill(score + group.begin, score + group.end, Acc{0});
        continue;
      }
      if (softcap_ > 0) softcap(score + own.begin, own.end - own.begin, softcap_);
      if (selected_.is_on()) {
        selected_.hide(tile.batch, tile.first_query + row, tile.first_key + own.begin, own.end - own.begin,
                       score + own.begin);
      }
      std::fill(score + group.begin, score + own.begin, -std::numeric_limits<Acc>::infinity());
      std::fill(score + own.end, score + group.end, -std::numeric_limits<Acc>::infinity());
      const Acc highest = tile::maximum(score + group.begin, group.end - group.begin, running.maximum[row]);
      if (highest == -std::numeric_limits<Acc>::infinity()) {  // no key of this tile or one before is selected
        std::fill(score + group.begin, score + group.end, Acc{0});
        continue;
      }
      const Acc added = exponentials(score + group.begin, highest, group.end - group.begin, score + group.begin);
      if (dropout_.is_on()) {
        dropout_.multiply_keys(tile.batch, tile.head, tile.first_query + row, tile.first_key + own.begin,
                               own.end - own.begin, score + own.begin);
      }
      if (write == Write::kAccumulate && highest > running.maximum[row]) {
        const Acc factor = fast_exp(running.maximum[row] - highest);
        Acc* output = running.output + row * padded_value_;
        running.sum[row] *= factor;
        store_row(output, factor, padded_value_, output);
      }
      running.maximum[row] = highest;
      running.sum[row] += added;
    }
  }

  template <Write write>
  void value_tile(const Tile& tile, const Acc* weights, const Acc* values, Acc* output) const {
    for (std::int64_t column = 0; column < padded_value_; column += kPanel) {
      for (std::int64_t row = 0; row < tile.rows; row += tile::kGroup) {
        const std::int64_t count = std::min(tile::kGroup, tile.rows - row);
        const Span keys = seen(tile, row, row + count - 1);
        const Acc* panel = values + column * sizes_.sequence + (tile.first_key + keys.begin) * kPanel;
        tile::multiply_group<Acc, write>(count, {weights + row * kTileStride + keys.begin, kTileStride}, panel,
                                         std::max<std::int64_t>(0, keys.end - keys.begin),
                                         output + row * padded_value_ + column, padded_value_);
      }
    }
  }

  Sizes sizes_;
  VisibleKeys visible_;
  SelectedKeys selected_;
  Acc scale_, softcap_;
  WeightDropout dropout_;
  const Acc* sinks_;
  Cuts cuts_;
  std::int64_t padded_value_;
  Heads<T> q_, k_, v_, context_;
  Acc* lse_;
};

}  // namespace primus::ops::attention
