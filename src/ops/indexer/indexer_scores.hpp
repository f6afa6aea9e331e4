#pragma once
// Scores of a block of queries: what the choice of keys and the loss share. Legend as in indexer.hpp.
#include "ops/attention/visible_keys.hpp"
#include "ops/indexer/indexer.hpp"

namespace primus::ops::indexer {

using attention::Heads;
using attention::Sizes;

using Cuts = model::IndexerCuts;
constexpr std::int64_t kQueries = Cuts::kQueries;

inline Sizes indexer_sizes(const IndexerInput& in) {
  PRIMUS_CHECK(in.q_BSID.dim() == 4 && in.k_BND.dim() == 3 && in.weight_BSI.dim() == 3,
               "indexer: axes of q, k and weights");
  const Sizes sizes{in.q_BSID.size(0), in.q_BSID.size(1), in.q_BSID.size(2), 1, in.q_BSID.size(3), in.q_BSID.size(3)};
  PRIMUS_CHECK(in.weight_BSI.is_contiguous() && in.weight_BSI.numel() == sizes.batch * sizes.sequence * sizes.heads &&
                   in.weight_BSI.scalar_type() == in.q_BSID.scalar_type(),
               "indexer: shape or type of the weights");
  return sizes;
}

/// The keys that each query sees, first … end − 1: tokens up to itself, or entries. Neither falls along the sequence.
class Sight {
 public:
  Sight(const Sizes& sizes, const IndexerOptions& options, const AttentionOptions& attention)
      : num_keys_(sizes.sequence) {
    if (options.entries) {
      entries_.emplace(*options.entries, sizes.batch, sizes.sequence);
      num_keys_ = entries_->capacity();
    } else {
      tokens_.emplace(sizes, attention);
    }
  }

  /// Of a sequence.
  std::int64_t num_keys() const { return num_keys_; }
  std::int64_t first(std::int64_t batch, std::int64_t query) const {
    return entries_ ? entries_->begin(batch, query) : tokens_->first_key(batch, query);
  }
  std::int64_t end(std::int64_t batch, std::int64_t query) const {
    return entries_ ? entries_->end(batch, query) : query + 1;
  }

 private:
  std::int64_t num_keys_;
  std::optional<attention::VisibleKeys> tokens_;
  std::optional<Windows> entries_;
};

/// A block of queries of one sequence and the keys that they see, begin … end; begin starts a panel.
struct Block {
  std::int64_t batch, first_query, rows, begin, end;
  std::int64_t columns() const { return end - begin; }
};

template <typename T>
class Scores {
 public:
  using Acc = acc_t<T>;
  static constexpr std::int64_t kPanel = tile::kPanel<Acc>;

  Scores(const IndexerInput& in, const IndexerOptions& options, const AttentionOptions& attention)
      : sizes_(indexer_sizes(in)),
        sight_(sizes_, options, attention),
        cuts_{sizes_, sizeof(Acc), sight_.num_keys()},
        scale_(static_cast<Acc>(options.scale)),
        is_rectified_(options.scoring == IndexerOptions::Scoring::kRelu),
        q_(attention::as_heads<T>(in.q_BSID, sizes_, sizes_.heads, sizes_.query_size, "the indexer's q")),
        k_(attention::as_heads<T>(in.k_BND.unsqueeze(2), key_sizes(), 1, sizes_.query_size, "the indexer's k")),
        weight_(in.weight_BSI.const_data_ptr<T>()),
        stride_(cuts_.stride()) {}

  const Sizes& sizes() const { return sizes_; }
  const Cuts& cuts() const { return cuts_; }
  std::int64_t num_keys() const { return sight_.num_keys(); }
  /// Sizes of a tensor of keys.
  Sizes key_sizes() const {
    Sizes sizes = sizes_;
    sizes.sequence = num_keys();
    return sizes;
  }
  const Heads<T>& q() const { return q_; }
  const Heads<T>& k() const { return k_; }
  Acc scale() const { return scale_; }
  bool is_rectified() const { return is_rectified_; }
  /// Elements between rows of a block's scores.
  std::int64_t stride() const { return stride_; }
  std::int64_t blocks() const { return cuts_.blocks(); }

  Block block(std::int64_t batch, std::int64_t index) const {
    Block block{batch, index * kQueries, 0, 0, 0};
    block.rows = std::min(kQueries, sizes_.sequence - block.first_query);
    block.begin = sight_.first(batch, block.first_query) / kPanel * kPanel;
    block.end = std::max(block.begin, sight_.end(batch, block.first_query + block.rows - 1));
    return block;
  }

  /// A query's keys, counted from the block's first column: first … end − 1.
  std::int64_t first_column(const Block& block, std::int64_t row) const {
    return sight_.first(block.batch, block.first_query + row) - block.begin;
  }
  std::int64_t end_column(const Block& block, std::int64_t row) const {
    return sight_.end(block.batch, block.first_query + row) - block.begin;
  }

  Acc weight(const Block& block, std::int64_t row, std::int64_t head) const {
    return static_cast<Acc>(weight_[(block.batch * sizes_.sequence + block.first_query + row) * sizes_.heads + head]);
  }

  /// A sequence's keys times scale, in panels.
  void pack_keys(std::int64_t batch, Acc* panels) const {
    tile::pack_transposed(k_.at(batch, 0), k_.stride, num_keys(), sizes_.query_size, scale_, panels);
  }

  /// products[row · stride() + column] = rows' queries · keys of the panels; `queries` is scratch of the block's size.
  static void products(const Block& block, const T* source, std::int64_t source_stride, std::int64_t width,
                       const Acc* panels, std::int64_t stride, Acc* queries, Acc* target) {
    attention::copy_rows(source, source_stride, block.rows, width, queries);
    for (std::int64_t column = 0; column < block.columns(); column += kPanel) {
      for (std::int64_t row = 0; row < block.rows; row += tile::kGroup) {
        tile::multiply_group<Acc, Write::kOverwrite>(
            std::min(tile::kGroup, block.rows - row), {queries + row * width, width},
            panels + (block.begin + column) * width, width, target + row * stride + column, stride);
      }
    }
  }

  /// The products of one head's queries with the keys.
  void head_products(const Block& block, std::int64_t head, const Acc* panels, Acc* queries, Acc* target) const {
    products(block, q_.at(block.batch, head) + block.first_query * q_.stride, q_.stride, sizes_.query_size, panels,
             stride_, queries, target);
  }

  /// Scores of the keys that each query sees; other columns are of no meaning. `product` is scratch of their size.
  void scores(const Block& block, const Acc* panels, Acc* queries, Acc* product, Acc* scores) const {
    for (std::int64_t row = 0; row < block.rows; ++row) std::fill_n(scores + row * stride_, block.columns(), Acc{0});
    for (std::int64_t head = 0; head < sizes_.heads; ++head) {
      head_products(block, head, panels, queries, product);
      for (std::int64_t row = 0; row < block.rows; ++row) {
        const Acc weight_of_head = weight(block, row, head);
        add(product + row * stride_, weight_of_head, block.columns(), scores + row * stride_);
      }
    }
  }

  Acc rectified(Acc value) const { return is_rectified_ && value < 0 ? Acc{0} : value; }

 private:
  void add(const Acc* product, Acc factor, std::int64_t count, Acc* sum) const {
    if (is_rectified_) {
#pragma omp simd
      for (std::int64_t i = 0; i < count; ++i) sum[i] += factor * (product[i] < 0 ? Acc{0} : product[i]);
    } else {
#pragma omp simd
      for (std::int64_t i = 0; i < count; ++i) sum[i] += factor * product[i];
    }
  }

  Sizes sizes_;
  Sight sight_;
  Cuts cuts_;
  Acc scale_;
  bool is_rectified_;
  Heads<T> q_, k_;
  const T* weight_;
  std::int64_t stride_;
};

}  // namespace primus::ops::indexer
