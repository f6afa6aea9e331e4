#pragma once
// Forward pass of blockwise causal attention, one query block at a time.
#include <limits>

#include "ops/attention/attention_common.hpp"

namespace primus::ops::attention {

// Tile sizes by measurement (bench/ops/ops_bench attention): the query block and the score tile share the L2 cache.
constexpr std::int64_t kForwardQueries = 192;
constexpr std::int64_t kForwardKeys = 512;

template <typename T>
class Forward {
 public:
  using Acc = acc_t<T>;
  static constexpr std::int64_t kPanel = tile::kPanel<Acc>;
  static constexpr std::int64_t kTileStride = kForwardKeys + kTilePadding;

  Forward(const Sizes& sizes, const Tensor& q, const Tensor& k, const Tensor& v, double scale, Tensor& context,
          Tensor& lse)
      : sizes_(sizes),
        scale_(static_cast<Acc>(scale)),
        padded_value_(tile::round_up(sizes.value_size, kPanel)),
        q_(as_heads<T>(q, sizes, sizes.heads, sizes.query_size, "q")),
        k_(as_heads<T>(k, sizes, sizes.groups, sizes.query_size, "k")),
        v_(as_heads<T>(v, sizes, sizes.groups, sizes.value_size, "v")),
        context_(as_heads<T>(context, sizes, sizes.heads, sizes.value_size, "context")),
        lse_(lse.data_ptr<Acc>()) {}

  void run() {
    // With pairs for every thread, each takes whole pairs: packed operands stay in its own cache, and nobody waits.
    if (sizes_.pairs() >= 2 * at::get_num_threads()) {
      run_whole_pairs();
    } else {
      run_waves();
    }
  }

 private:
  static constexpr std::int64_t kSteps = 2;

  std::int64_t blocks() const { return at::divup(sizes_.sequence, kForwardQueries); }
  std::int64_t key_elements() const { return tile::round_up(sizes_.sequence, kPanel) * sizes_.query_size; }
  std::int64_t pair_elements() const { return key_elements() + sizes_.sequence * padded_value_; }
  std::int64_t worker_elements() const {
    return kForwardQueries * (kTileStride + padded_value_ + sizes_.query_size + 2);
  }

  void run_whole_pairs() {
    const Tensor buffers = scratch<Acc>(at::get_num_threads(), worker_elements() + pair_elements());
    for_each_unit(sizes_.pairs(), [&](std::int64_t worker, std::int64_t pair) {
      Acc* const buffer = buffers.data_ptr<Acc>() + worker * buffers.size(1);
      Acc* const packed = buffer + worker_elements();
      for (std::int64_t step = 0; step < kSteps; ++step) prepare(pair, step, packed);
      for (std::int64_t turn = 0; turn < sizes_.heads_per_group(); ++turn) {
        for (std::int64_t block = 0; block < blocks(); ++block) query_block(pair, turn, block, packed, buffer);
      }
    });
  }

  void run_waves() {
    const std::int64_t wave = wave_size(sizes_, pair_elements() * static_cast<std::int64_t>(sizeof(Acc)));
    const Tensor packed_tensor = scratch<Acc>(wave, pair_elements());
    const Tensor buffers = scratch<Acc>(at::get_num_threads(), worker_elements());
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
      tile::pack_columns(v_.at(batch, group), v_.stride, sizes_.sequence, sizes_.value_size, packed + key_elements());
    }
  }

  // softmax(scores) · v of up to kForwardQueries queries, tile of keys by tile of keys, with the running maximum and
  // sum of each query.
  void query_block(std::int64_t pair, std::int64_t turn, std::int64_t block, const Acc* packed, Acc* buffer) const {
    const std::int64_t batch = pair / sizes_.groups;
    const std::int64_t head = pair % sizes_.groups * sizes_.heads_per_group() + turn;
    const std::int64_t first_query = block * kForwardQueries;
    const Acc* keys = packed;
    const Acc* values = packed + key_elements();
    const std::int64_t rows = std::min(kForwardQueries, sizes_.sequence - first_query);
    Acc* scores = buffer;
    Acc* output = scores + kForwardQueries * kTileStride;
    Acc* maximum = output + kForwardQueries * padded_value_;
    Acc* sum = maximum + kForwardQueries;
    Acc* queries = sum + kForwardQueries;
    copy_rows(q_.at(batch, head) + first_query * q_.stride, q_.stride, rows, sizes_.query_size, queries);
    std::fill_n(maximum, rows, -std::numeric_limits<Acc>::infinity());
    std::fill_n(sum, rows, Acc{0});
    for (std::int64_t first_key = 0; first_key < first_query + rows; first_key += kForwardKeys) {
      score_tile(queries, rows, first_query, first_key, keys, scores);
      softmax_tile(rows, first_query, first_key, scores, output, maximum, sum);
      if (first_key == 0) {
        value_tile<Write::kOverwrite>(rows, first_query, first_key, scores, values, output);
      } else {
        value_tile<Write::kAccumulate>(rows, first_query, first_key, scores, values, output);
      }
    }
    T* context = context_.at(batch, head) + first_query * context_.stride;
    Acc* lse = lse_ + (batch * sizes_.heads + head) * sizes_.sequence + first_query;
    for (std::int64_t row = 0; row < rows; ++row) {
      lse[row] = maximum[row] + std::log(sum[row]);
      store_row(output + row * padded_value_, Acc{1} / sum[row], sizes_.value_size, context + row * context_.stride);
    }
  }

  // Keys of the tile that a query sees.
  static std::int64_t visible(std::int64_t query, std::int64_t first_key) {
    return std::clamp<std::int64_t>(query - first_key + 1, 0, kForwardKeys);
  }

  // Groups of queries that see no key of a panel are left out: nothing above the diagonal is computed but its rim.
  void score_tile(const Acc* queries, std::int64_t rows, std::int64_t first_query, std::int64_t first_key,
                  const Acc* keys, Acc* scores) const {
    const std::int64_t columns = visible(first_query + rows - 1, first_key);
    for (std::int64_t column = 0; column < columns; column += kPanel) {
      const Acc* panel = keys + (first_key + column) * sizes_.query_size;
      const std::int64_t first_row = std::max<std::int64_t>(0, first_key + column - first_query);
      for (std::int64_t row = first_row / tile::kGroup * tile::kGroup; row < rows; row += tile::kGroup) {
        tile::multiply_group<Acc, Write::kOverwrite>(
            std::min(tile::kGroup, rows - row), {queries + row * sizes_.query_size, sizes_.query_size}, panel,
            sizes_.query_size, scores + row * kTileStride + column, kTileStride);
      }
    }
  }

  // Scores become exp(score − maximum); what was summed under a smaller maximum is scaled down. Masked columns up to
  // what the group's product with v reads, and on to a whole vector, become exp(−inf) = 0.
  void softmax_tile(std::int64_t rows, std::int64_t first_query, std::int64_t first_key, Acc* scores, Acc* output,
                    Acc* maximum, Acc* sum) const {
    for (std::int64_t row = 0; row < rows; ++row) {
      Acc* score = scores + row * kTileStride;
      const std::int64_t columns = visible(first_query + row, first_key);
      const std::int64_t last_of_group = std::min(rows - 1, row / tile::kGroup * tile::kGroup + tile::kGroup - 1);
      const std::int64_t end = tile::round_up(visible(first_query + last_of_group, first_key), tile::kLanes<Acc>);
      if (columns == 0) {
        std::fill(score, score + end, Acc{0});
        continue;
      }
      std::fill(score + columns, score + end, -std::numeric_limits<Acc>::infinity());
      const Acc highest = tile::maximum(score, end, maximum[row]);
      Acc added = 0;
#pragma omp simd reduction(+ : added)
      for (std::int64_t column = 0; column < end; ++column) {
        const Acc weight = fast_exp(score[column] - highest);
        score[column] = weight;
        added += weight;
      }
      if (first_key > 0 && highest > maximum[row]) {
        const Acc factor = fast_exp(maximum[row] - highest);
        sum[row] *= factor;
        store_row(output + row * padded_value_, factor, padded_value_, output + row * padded_value_);
      }
      maximum[row] = highest;
      sum[row] += added;
    }
  }

  template <Write write>
  void value_tile(std::int64_t rows, std::int64_t first_query, std::int64_t first_key, const Acc* weights,
                  const Acc* values, Acc* output) const {
    for (std::int64_t column = 0; column < padded_value_; column += kPanel) {
      const Acc* panel = values + column * sizes_.sequence + first_key * kPanel;
      for (std::int64_t row = 0; row < rows; row += tile::kGroup) {
        const std::int64_t count = std::min(tile::kGroup, rows - row);
        tile::multiply_group<Acc, write>(count, {weights + row * kTileStride, kTileStride}, panel,
                                         visible(first_query + row + count - 1, first_key),
                                         output + row * padded_value_ + column, padded_value_);
      }
    }
  }

  Sizes sizes_;
  Acc scale_;
  std::int64_t padded_value_;
  Heads<T> q_, k_, v_, context_;
  Acc* lse_;
};

}  // namespace primus::ops::attention
