#pragma once
// Sizes that the CPU's ops cut their work by: the ops allocate by them, op_scratch.hpp declares by them.
#include <algorithm>
#include <cstdint>

namespace primus::model {

inline std::int64_t divide_up(std::int64_t value, std::int64_t divisor) {
  return (value + divisor - 1) / divisor;
}
inline std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return divide_up(value, multiple) * multiple;
}

/// Blocks of a product whose operands must first be widened to fp32: 16 MiB a panel, whatever the matrices' sizes.
inline constexpr std::int64_t kPanelRows = 1024;
inline constexpr std::int64_t kPanelDepth = 4096;
/// Columns of a panel that the AVX-512 product packs.
inline constexpr std::int64_t kPackedColumns = 32;

/// Gradients of a norm's weights are summed in at most this many fixed parts, so that their bits do not depend on the
/// threads.
inline constexpr std::int64_t kNormGradientParts = 16;
inline constexpr std::int64_t kNormElementsPerTask = 16384;
inline std::int64_t norm_rows_per_task(std::int64_t width) {
  return std::max<std::int64_t>(1, kNormElementsPerTask / std::max<std::int64_t>(width, 1));
}
inline std::int64_t norm_part_rows(std::int64_t rows, std::int64_t width) {
  return std::max(norm_rows_per_task(width), divide_up(rows, kNormGradientParts));
}

/// Sizes of one attention.
struct AttentionSizes {
  std::int64_t batch, sequence, heads, groups, query_size, value_size;
  std::int64_t pairs() const { return batch * groups; }
  std::int64_t heads_per_group() const { return heads / groups; }
};

/// Tiles by measurement (bench/ops/ops_bench attention). Forward: the query block and the score tile share the L2
/// cache. Backward: two tiles of scores share it with the operands.
struct AttentionCuts {
  static constexpr std::int64_t kForwardQueries = 192;
  static constexpr std::int64_t kForwardKeys = 512;
  static constexpr std::int64_t kBackwardKeys = 240;
  static constexpr std::int64_t kBackwardQueries = 240;
  /// The keys of a pair are split among slices until the pairs give this many units of work. It is a number of the
  /// shape alone, and so is the order in which the slices' dQ are added: bits do not depend on the threads.
  static constexpr std::int64_t kBackwardUnits = 16;
  /// Rows of a score tile are not a multiple of 4 KiB apart, which would put them in the same cache sets.
  static constexpr std::int64_t kTilePadding = 16;
  /// Packed operands are held for as many pairs at a time as fit in this: below the size from which malloc returns
  /// memory to the system at once, and within a usual L3 cache.
  static constexpr std::int64_t kPackedBytes = std::int64_t{12} << 20;
  /// Columns of a packed panel of elements of a size: two vectors of 32 bytes.
  static constexpr std::int64_t panel(std::int64_t element_bytes) { return 64 / element_bytes; }

  AttentionSizes sizes;
  std::int64_t element_bytes;  // of sums

  std::int64_t padded_query() const { return round_up(sizes.query_size, panel(element_bytes)); }
  std::int64_t padded_value() const { return round_up(sizes.value_size, panel(element_bytes)); }
  std::int64_t padded_sequence() const { return round_up(sizes.sequence, panel(element_bytes)); }

  /// Elements: a pair's packed keys, with its values behind them; what a thread has besides.
  std::int64_t forward_keys() const { return padded_sequence() * sizes.query_size; }
  std::int64_t forward_pair() const { return forward_keys() + sizes.sequence * padded_value(); }
  std::int64_t forward_worker() const {
    return kForwardQueries * (kForwardKeys + kTilePadding + padded_value() + sizes.query_size + 2);
  }

  std::int64_t backward_pair() const {
    return sizes.sequence * (3 * padded_query() + 2 * padded_value() + sizes.query_size + sizes.value_size + 1) +
           padded_sequence() * (sizes.query_size + sizes.value_size);
  }
  std::int64_t backward_part() const { return sizes.sequence * padded_query(); }
  static constexpr std::int64_t kBackwardTiles = 2 * kBackwardKeys * (kBackwardQueries + kTilePadding);
  std::int64_t backward_slices() const {
    return std::min(divide_up(sizes.sequence, kBackwardKeys), divide_up(kBackwardUnits, sizes.pairs()));
  }

  /// With pairs for every thread, each takes whole pairs: their operands stay in its own cache, and nobody waits.
  bool takes_whole_pairs(std::int64_t num_threads) const { return sizes.pairs() >= 2 * num_threads; }
  /// Else, pairs whose packed operands are held at the same time: waves of nearly equal size.
  std::int64_t wave(std::int64_t pair_elements) const {
    const std::int64_t pair_bytes = std::max<std::int64_t>(pair_elements * element_bytes, 1);
    const std::int64_t most = std::max<std::int64_t>(1, kPackedBytes / pair_bytes);
    return divide_up(sizes.pairs(), divide_up(sizes.pairs(), most));
  }
};

/// Tokens whose share of the decays' gradients is one partial sum, and heads whose share of a gated norm's weight is.
inline constexpr std::int64_t kDecayTokensOfASum = 128;
inline constexpr std::int64_t kGatedHeadsOfASum = 512;

/// Sizes of one gated delta rule.
struct DeltaSizes {
  std::int64_t batch, sequence, key_heads, value_heads, key_size, value_size;
  std::int64_t decay_width = 1;  // numbers by which a head's state forgets: one, or one a row of the state
  std::int64_t chunk_size = 64;  // tokens
  /// Key heads of the sequences: what one thread takes at a time.
  std::int64_t num_units() const { return batch * key_heads; }
  std::int64_t heads_of_key() const { return value_heads / key_heads; }
  std::int64_t chunk_rows() const { return std::min(chunk_size, sequence); }
  std::int64_t state() const { return key_size * value_size; }
};

/// What each thread of a delta rule works in.
struct DeltaCuts {
  DeltaSizes sizes;
  std::int64_t element_bytes;  // of sums

  /// Elements: scaled rows of the products of queries and keys under their decays.
  std::int64_t products() const { return 4 * sizes.chunk_rows() * sizes.key_size + sizes.key_size; }
  /// One chunk of one head, its gradients included. The sums of the decays are fp64.
  std::int64_t chunk_bytes() const {
    const std::int64_t rows = sizes.chunk_rows();
    const std::int64_t elements = products() + rows * (11 * sizes.key_size + 4 * rows + 3 * sizes.value_size + 1);
    return elements * element_bytes + rows * sizes.key_size * std::int64_t{sizeof(double)};
  }
  /// The same with the head's rows, and the states of the value heads of a key head.
  std::int64_t worker_bytes() const {
    const std::int64_t rows = sizes.chunk_rows();
    const std::int64_t elements = rows * (2 * sizes.key_size + 2 * sizes.value_size + sizes.decay_width + 3) +
                                  sizes.heads_of_key() * sizes.state();
    return chunk_bytes() + elements * element_bytes;
  }
  /// States before chunks that go on from another one, whose number is most where one document fills a sequence.
  std::int64_t carried_states() const { return divide_up(sizes.sequence, sizes.chunk_rows()) - 1; }
  /// What backward has besides: gradients of queries and keys, the states' gradients, the states that were carried.
  std::int64_t backward_bytes() const {
    const std::int64_t states = (1 + carried_states()) * sizes.heads_of_key() * sizes.state();
    return (2 * sizes.chunk_rows() * sizes.key_size + states) * element_bytes;
  }
};

/// What the indexer of sparse attention cuts its work by; elements of sums, as above.
struct IndexerCuts {
  /// Queries of a block: rows of scores over a whole sequence are held for so many at a time.
  static constexpr std::int64_t kQueries = 48;
  /// The loss deals the blocks of a sequence among slices until the sequences give this many units of work. It is a
  /// number of the shape alone, and so is the order in which the slices' gradients of the keys are added.
  static constexpr std::int64_t kUnits = 16;

  AttentionSizes sizes;  // the indexer's heads, all with the same keys
  std::int64_t element_bytes;

  std::int64_t padded_sequence() const { return round_up(sizes.sequence, AttentionCuts::panel(element_bytes)); }
  std::int64_t padded_query() const { return round_up(sizes.query_size, AttentionCuts::panel(element_bytes)); }
  /// Between rows of a block's scores.
  std::int64_t stride() const { return padded_sequence() + AttentionCuts::kTilePadding; }
  std::int64_t blocks() const { return divide_up(sizes.sequence, kQueries); }
  std::int64_t slices() const { return std::min(blocks(), divide_up(kUnits, sizes.batch)); }

  /// The choice: a sequence's packed keys; what a thread has besides.
  std::int64_t keys() const { return padded_sequence() * sizes.query_size; }
  std::int64_t choice_worker() const { return kQueries * (2 * stride() + sizes.query_size); }
  /// The loss: a sequence's keys in both orders; a slice's gradient of them; what a thread has, where attention's
  /// queries are `width` wide.
  std::int64_t loss_keys() const { return keys() + loss_slice(); }
  std::int64_t loss_slice() const { return sizes.sequence * padded_query(); }
  std::int64_t loss_worker(std::int64_t width) const {
    return kQueries * (3 * stride() + std::max(sizes.query_size, width) + 2 * padded_query()) +
           padded_sequence() * width;
  }
};

/// What hyper-connections cut their work by; elements of sums, of each thread.
struct HyperCuts {
  /// Tokens of a block, whose small matrices are worked on side by side.
  static constexpr std::int64_t kTokens = 16;
  /// Elements of a token's streams that are widened at a time.
  static constexpr std::int64_t kColumns = 128;
  /// Tokens after which a column's share of the weight's gradient is added to the sum.
  static constexpr std::int64_t kTokensOfASum = 256;

  std::int64_t streams, logits;
  std::int64_t steps;  // of Sinkhorn's iteration

  /// Columns first, and rows and columns for each further iteration.
  static constexpr std::int64_t sinkhorn_steps(std::int64_t iterations) {
    return iterations == 0 ? 0 : 2 * iterations - 1;
  }
  static constexpr std::int64_t num_logits(std::int64_t streams) { return streams * (2 + streams); }

  bool writes() const { return logits > streams; }
  std::int64_t weights() const { return logits * kTokens; }
  /// Matrices between Sinkhorn's steps, and the reciprocal sums of each step.
  std::int64_t trace() const { return writes() ? (steps + 1) * streams * streams * kTokens : 0; }
  std::int64_t inverse() const { return writes() ? steps * streams * kTokens : 0; }

  std::int64_t read_worker() const { return streams * kTokens; }
  std::int64_t write_worker() const { return weights() + trace() + inverse() + streams * kColumns; }
  std::int64_t write_backward_worker() const { return weights() + trace() + inverse() + (2 * streams + 1) * kColumns; }
  std::int64_t read_backward_worker() const { return std::max(2 * weights() + trace() + inverse(), logits * kColumns); }
};

}  // namespace primus::model
