#include "ops/attention/selected_keys.hpp"
#include "ops/compressed_attention/compressed_attention.hpp"
#include "ops/not_on_gpu.hpp"
#include "ops/row_math.hpp"
#include "ops/zone.hpp"

namespace primus::ops {
namespace {

using attention::Heads;
using attention::Sizes;
using Cuts = model::CompressedAttentionCuts;

Sizes sizes_of(const Tensor& q_BSAD, const Tensor& lse_BAS) {
  PRIMUS_CHECK(q_BSAD.dim() == 4, "compressed attention: q has four axes");
  const Sizes sizes{q_BSAD.size(0), q_BSAD.size(1), q_BSAD.size(2), 1, q_BSAD.size(3), q_BSAD.size(3)};
  PRIMUS_CHECK(lse_BAS.is_contiguous() && lse_BAS.numel() == sizes.batch * sizes.heads * sizes.sequence &&
                   lse_BAS.scalar_type() == accumulator_type(q_BSAD.scalar_type()),
               "compressed attention: shape or type of lse");
  return sizes;
}

/// A block of queries of one sequence and the entries that they see, begin … end; begin starts a panel.
struct Block {
  std::int64_t batch, first_query, rows, begin, end;
  std::int64_t columns() const { return end - begin; }
};

template <typename T>
class Entries {
 public:
  using Acc = acc_t<T>;
  static constexpr std::int64_t kPanel = tile::kPanel<Acc>;

  Entries(const Sizes& sizes, const Tensor& q, const Tensor& entry, const CompressedAttentionOptions& options)
      : sizes_(sizes),
        windows_(options.windowing, sizes.batch, sizes.sequence),
        capacity_(windows_.capacity()),
        selected_(sizes, options.selected_BSW, capacity_),
        cuts_{sizes, capacity_, sizeof(Acc)},
        scale_(static_cast<Acc>(options.scale)),
        padded_(cuts_.padded_size()),
        q_(attention::as_heads<T>(q, sizes, sizes.heads, sizes.query_size, "q")),
        entry_(entry.data_ptr<T>()),
        entry_batch_stride_(entry.stride(0)),
        entry_stride_(entry.stride(1)) {
    PRIMUS_CHECK(entry.dim() == 3 && entry.size(0) == sizes.batch && entry.size(1) == capacity_ &&
                     entry.size(2) == sizes.query_size && (entry.stride(2) == 1 || sizes.query_size <= 1),
                 "compressed attention: shape of the entries");
  }

  std::int64_t blocks() const { return cuts_.blocks(); }
  std::int64_t capacity() const { return capacity_; }
  const Cuts& cuts() const { return cuts_; }
  Acc scale() const { return scale_; }

  /// A sequence's entries in both orders.
  struct Packed {
    Acc *transposed, *columns;
  };
  Packed packed_of(const Tensor& packed, std::int64_t batch) const {
    Acc* const own = packed.data_ptr<Acc>() + batch * packed.size(1);
    return {own, own + cuts_.transposed()};
  }
  Tensor pack() const {
    const Tensor packed = attention::scratch<Acc>(sizes_.batch, cuts_.packed());
    for_each_unit(sizes_.batch, [&](std::int64_t, std::int64_t batch) {
      const Packed own = packed_of(packed, batch);
      const T* source = entry_ + batch * entry_batch_stride_;
      tile::pack_transposed(source, entry_stride_, capacity_, sizes_.query_size, Acc{1}, own.transposed);
      tile::pack_columns(source, entry_stride_, capacity_, sizes_.query_size, own.columns);
    });
    return packed;
  }

  Block block(std::int64_t batch, std::int64_t index) const {
    Block block{batch, index * Cuts::kQueries, 0, 0, 0};
    block.rows = std::min(Cuts::kQueries, sizes_.sequence - block.first_query);
    block.begin = windows_.begin(batch, block.first_query) / kPanel * kPanel;
    block.end = std::max(block.begin, windows_.end(batch, block.first_query + block.rows - 1));
    return block;
  }

  /// A query's entries, counted from the block's first column: first … end − 1.
  struct Span {
    std::int64_t first, end;
    std::int64_t count() const { return end - first; }
  };
  Span span(const Block& block, std::int64_t row) const {
    const std::int64_t query = block.first_query + row;
    return {windows_.begin(block.batch, query) - block.begin, windows_.end(block.batch, query) - block.begin};
  }
  void hide(const Block& block, std::int64_t row, Span span, Acc* scores) const {
    if (!selected_.is_on()) return;
    selected_.hide(block.batch, block.first_query + row, block.begin + span.first, span.count(), scores + span.first);
  }

  /// rows[row · size + d] of a head's queries, or of anything of their shape.
  void copy(const Block& block, const Heads<T>& x, std::int64_t head, Acc* rows) const {
    attention::copy_rows(x.at(block.batch, head) + block.first_query * x.stride, x.stride, block.rows,
                         sizes_.query_size, rows);
  }
  const Heads<T>& q() const { return q_; }

  /// target[row · stride + column] = rows · entries.
  void products(const Block& block, const Acc* rows, Packed packed, Acc* target) const {
    const std::int64_t width = sizes_.query_size;
    for (std::int64_t column = 0; column < block.columns(); column += kPanel) {
      for (std::int64_t row = 0; row < block.rows; row += tile::kGroup) {
        tile::multiply_group<Acc, Write::kOverwrite>(std::min(tile::kGroup, block.rows - row),
                                                     {rows + row * width, width},
                                                     packed.transposed + (block.begin + column) * width, width,
                                                     target + row * cuts_.stride() + column, cuts_.stride());
      }
    }
  }

  /// sum[row · padded + d] = Σ_column values[row · stride + column] · entry[column].
  void weighted(const Block& block, const Acc* values, Packed packed, Acc* sum) const {
    for (std::int64_t column = 0; column < padded_; column += kPanel) {
      const Acc* panel = packed.columns + column * capacity_ + block.begin * kPanel;
      for (std::int64_t row = 0; row < block.rows; row += tile::kGroup) {
        tile::multiply_group<Acc, Write::kOverwrite>(std::min(tile::kGroup, block.rows - row),
                                                     {values + row * cuts_.stride(), cuts_.stride()}, panel,
                                                     block.columns(), sum + row * padded_ + column, padded_);
      }
    }
  }

  /// sum[column · padded + d] += Σ_row values[row · stride + column] · rows[row]; `columns`: scratch for the rows.
  void add_transposed(const Block& block, const Acc* values, const Acc* rows, Acc* columns, Acc* sum) const {
    tile::pack_columns(rows, sizes_.query_size, block.rows, sizes_.query_size, columns);
    for (std::int64_t column = 0; column < padded_; column += kPanel) {
      const Acc* panel = columns + column * block.rows;
      for (std::int64_t key = 0; key < block.columns(); key += tile::kGroup) {
        tile::multiply_group<Acc, Write::kAccumulate>(std::min(tile::kGroup, block.columns() - key),
                                                      {values + key, 1, cuts_.stride()}, panel, block.rows,
                                                      sum + (block.begin + key) * padded_ + column, padded_);
      }
    }
  }

 private:
  Sizes sizes_;
  Windows windows_;
  std::int64_t capacity_;
  attention::SelectedKeys selected_;
  Cuts cuts_;
  Acc scale_;
  std::int64_t padded_;
  Heads<T> q_;
  const T* entry_;
  std::int64_t entry_batch_stride_, entry_stride_;
};

template <typename T>
class Forward {
 public:
  using Acc = acc_t<T>;

  Forward(const Sizes& sizes, const Entries<T>& entries, Tensor& context, Tensor& lse)
      : sizes_(sizes),
        entries_(entries),
        context_(attention::as_heads<T>(context, sizes, sizes.heads, sizes.query_size, "context")),
        lse_(lse.data_ptr<Acc>()) {}

  void run() const {
    const Tensor packed = entries_.pack();
    const Tensor buffers = attention::scratch<Acc>(at::get_num_threads(), entries_.cuts().forward_worker());
    const std::int64_t blocks = entries_.blocks();
    // The last blocks of queries see the most entries: they go first.
    for_each_unit(sizes_.batch * sizes_.heads * blocks, [&](std::int64_t worker, std::int64_t unit) {
      const std::int64_t pair = unit % (sizes_.batch * sizes_.heads);
      const std::int64_t batch = pair / sizes_.heads;
      head(entries_.block(batch, blocks - 1 - unit / (sizes_.batch * sizes_.heads)), pair % sizes_.heads,
           entries_.packed_of(packed, batch), buffers.data_ptr<Acc>() + worker * buffers.size(1));
    });
  }

 private:
  void head(const Block& block, std::int64_t head, typename Entries<T>::Packed packed, Acc* buffer) const {
    if (block.columns() == 0) return;
    const Cuts& cuts = entries_.cuts();
    Acc* const scores = buffer;
    Acc* const rows = scores + Cuts::kQueries * cuts.stride();
    Acc* const sum = rows + Cuts::kQueries * sizes_.query_size;
    entries_.copy(block, entries_.q(), head, rows);
    entries_.products(block, rows, packed, scores);
    Acc kept[Cuts::kQueries];
    Acc* lse = lse_ + (block.batch * sizes_.heads + head) * sizes_.sequence + block.first_query;
    for (std::int64_t row = 0; row < block.rows; ++row) {
      kept[row] = weights(block, row, scores + row * cuts.stride(), lse[row]);
    }
    entries_.weighted(block, scores, packed, sum);
    T* context = context_.at(block.batch, head) + block.first_query * context_.stride;
    for (std::int64_t row = 0; row < block.rows; ++row, context += context_.stride) {
      const Acc* own = sum + row * cuts.padded_size();
#pragma omp simd
      for (std::int64_t d = 0; d < sizes_.query_size; ++d) {
        context[d] = to_storage<T>(kept[row] * static_cast<Acc>(context[d]) + own[d]);
      }
    }
  }

  /// A row's scores become weights under the softmax over all keys; lse becomes that one's. Returns the factor of what
  /// the other keys gave.
  Acc weights(const Block& block, std::int64_t row, Acc* scores, Acc& lse) const {
    const auto span = entries_.span(block, row);
    std::fill_n(scores, span.first, Acc{0});
    std::fill(scores + span.end, scores + block.columns(), Acc{0});
    if (span.count() == 0) return Acc{1};
    Acc* own = scores + span.first;
    for (std::int64_t i = 0; i < span.count(); ++i) own[i] *= entries_.scale();
    entries_.hide(block, row, span, scores);
    const Acc highest = std::max(lse, *std::max_element(own, own + span.count()));
    const Acc others = std::exp(lse - highest);
    const Acc inverse = Acc{1} / (others + exponentials(own, highest, span.count(), own));
    for (std::int64_t i = 0; i < span.count(); ++i) own[i] *= inverse;
    lse = highest - std::log(inverse);
    return others * inverse;
  }

  Sizes sizes_;
  const Entries<T>& entries_;
  Heads<T> context_;
  Acc* lse_;
};

template <typename T>
class Backward {
 public:
  using Acc = acc_t<T>;

  Backward(const Sizes& sizes, const Entries<T>& entries, const Tensor& dcontext, const Tensor& context,
           const Tensor& lse, Tensor& dq, Tensor& dentry)
      : sizes_(sizes),
        entries_(entries),
        slices_(entries.cuts().slices()),
        dcontext_(attention::as_heads<T>(dcontext, sizes, sizes.heads, sizes.query_size, "dcontext")),
        context_(attention::as_heads<T>(context, sizes, sizes.heads, sizes.query_size, "context")),
        dq_(attention::as_heads<T>(dq, sizes, sizes.heads, sizes.query_size, "dq")),
        lse_(lse.const_data_ptr<Acc>()),
        dentry_(dentry) {}

  void run() {
    const Cuts& cuts = entries_.cuts();
    const Tensor packed = entries_.pack();
    const Tensor parts = attention::scratch<Acc>(sizes_.batch * slices_, cuts.slice());
    const Tensor buffers = attention::scratch<Acc>(at::get_num_threads(), cuts.backward_worker());
    for_each_unit(sizes_.batch * slices_, [&](std::int64_t worker, std::int64_t unit) {
      Acc* const part = parts.data_ptr<Acc>() + unit * parts.size(1);
      std::fill_n(part, parts.size(1), Acc{0});
      slice(unit / slices_, unit % slices_, entries_.packed_of(packed, unit / slices_),
            buffers.data_ptr<Acc>() + worker * buffers.size(1), part);
    });
    for_each_unit(sizes_.batch, [&](std::int64_t, std::int64_t batch) {
      store(batch, parts.data_ptr<Acc>() + batch * slices_ * parts.size(1));
    });
  }

 private:
  struct Buffers {
    Acc *weights, *gradient, *queries, *doutput, *columns, *dq;
  };

  Buffers buffers_of(Acc* buffer) const {
    const Cuts& cuts = entries_.cuts();
    Buffers b{};
    b.weights = buffer;
    b.gradient = b.weights + Cuts::kQueries * cuts.stride();
    b.queries = b.gradient + Cuts::kQueries * cuts.stride();
    b.doutput = b.queries + Cuts::kQueries * sizes_.query_size;
    b.columns = b.doutput + Cuts::kQueries * sizes_.query_size;
    b.dq = b.columns + Cuts::kQueries * cuts.padded_size();
    return b;
  }

  /// Later blocks see more entries: dealt there and back, the slices get about the same work.
  void slice(std::int64_t batch, std::int64_t index, typename Entries<T>::Packed packed, Acc* buffer, Acc* part) const {
    for (std::int64_t i = 0; i < entries_.blocks(); ++i) {
      const std::int64_t place = i % (2 * slices_);
      if (std::min(place, 2 * slices_ - 1 - place) != index) continue;
      const Block block = entries_.block(batch, i);
      if (block.columns() == 0) continue;
      for (std::int64_t head = 0; head < sizes_.heads; ++head)
        this->head(block, head, packed, buffers_of(buffer), part);
    }
  }

  void head(const Block& block, std::int64_t head, typename Entries<T>::Packed packed, const Buffers& b,
            Acc* part) const {
    const Cuts& cuts = entries_.cuts();
    entries_.copy(block, entries_.q(), head, b.queries);
    entries_.copy(block, dcontext_, head, b.doutput);
    entries_.products(block, b.queries, packed, b.weights);
    entries_.products(block, b.doutput, packed, b.gradient);
    const Acc* lse = lse_ + (block.batch * sizes_.heads + head) * sizes_.sequence + block.first_query;
    const T* context = context_.at(block.batch, head) + block.first_query * context_.stride;
    for (std::int64_t row = 0; row < block.rows; ++row, context += context_.stride) {
      Acc delta = 0;
      const Acc* doutput = b.doutput + row * sizes_.query_size;
#pragma omp simd reduction(+ : delta)
      for (std::int64_t d = 0; d < sizes_.query_size; ++d) delta += doutput[d] * static_cast<Acc>(context[d]);
      gradients(block, row, lse[row], delta, b.weights + row * cuts.stride(), b.gradient + row * cuts.stride());
    }
    entries_.add_transposed(block, b.weights, b.doutput, b.columns, part);
    entries_.add_transposed(block, b.gradient, b.queries, b.columns, part);
    entries_.weighted(block, b.gradient, packed, b.dq);
    T* dq = dq_.at(block.batch, head) + block.first_query * dq_.stride;
    for (std::int64_t row = 0; row < block.rows; ++row, dq += dq_.stride) {
      const Acc* own = b.dq + row * cuts.padded_size();
#pragma omp simd
      for (std::int64_t d = 0; d < sizes_.query_size; ++d) {
        dq[d] = to_storage<T>(static_cast<Acc>(dq[d]) + own[d]);
      }
    }
  }

  /// Scores become weights, the weights' gradients those of the products; both 0 where the query does not look.
  void gradients(const Block& block, std::int64_t row, Acc lse, Acc delta, Acc* scores, Acc* gradient) const {
    const auto span = entries_.span(block, row);
    for (Acc* values : {scores, gradient}) {
      std::fill_n(values, span.first, Acc{0});
      std::fill(values + span.end, values + block.columns(), Acc{0});
    }
    Acc* own = scores + span.first;
    for (std::int64_t i = 0; i < span.count(); ++i) own[i] *= entries_.scale();
    entries_.hide(block, row, span, scores);
    exponentials(own, lse, span.count(), own);
    Acc* dproduct = gradient + span.first;
#pragma omp simd
    for (std::int64_t i = 0; i < span.count(); ++i) dproduct[i] = entries_.scale() * own[i] * (dproduct[i] - delta);
  }

  void store(std::int64_t batch, Acc* parts) const {
    const std::int64_t padded = entries_.cuts().padded_size();
    T* target = dentry_.data_ptr<T>() + batch * dentry_.stride(0);
    for (std::int64_t entry = 0; entry < entries_.capacity(); ++entry, target += dentry_.stride(1)) {
      Acc* sum = parts + entry * padded;
      for (std::int64_t index = 1; index < slices_; ++index) {
        const Acc* part = sum + index * entries_.cuts().slice();
#pragma omp simd
        for (std::int64_t d = 0; d < sizes_.query_size; ++d) sum[d] += part[d];
      }
      attention::store_row(sum, Acc{1}, sizes_.query_size, target);
    }
  }

  Sizes sizes_;
  const Entries<T>& entries_;
  std::int64_t slices_;
  Heads<T> dcontext_, context_, dq_;
  const Acc* lse_;
  Tensor& dentry_;
};

}  // namespace

void compressed_attention_forward(const Tensor& q_BSAD, const Tensor& entry_BCD,
                                  const CompressedAttentionOptions& options, Tensor& context_BSAD, Tensor& lse_BAS) {
  const ZoneScope zone(Zone::kAttentionForward);
  if (q_BSAD.is_cuda()) throw_not_on_gpu("compress_ratios");
  const Sizes sizes = sizes_of(q_BSAD, lse_BAS);
  dispatch_floating(q_BSAD.scalar_type(), "compressed_attention_forward", [&](auto tag) {
    using T = typename decltype(tag)::type;
    const Entries<T> entries(sizes, q_BSAD, entry_BCD, options);
    if (q_BSAD.numel() > 0 && entries.capacity() > 0) Forward<T>(sizes, entries, context_BSAD, lse_BAS).run();
  });
}

void compressed_attention_backward(const Tensor& dcontext_BSAD, const Tensor& q_BSAD, const Tensor& entry_BCD,
                                   const Tensor& context_BSAD, const Tensor& lse_BAS,
                                   const CompressedAttentionOptions& options, Tensor& dq_BSAD, Tensor& dentry_BCD) {
  const ZoneScope zone(Zone::kAttentionBackward);
  const Sizes sizes = sizes_of(q_BSAD, lse_BAS);
  PRIMUS_CHECK(dentry_BCD.sizes() == entry_BCD.sizes() && dentry_BCD.scalar_type() == q_BSAD.scalar_type() &&
                   (dentry_BCD.stride(2) == 1 || dentry_BCD.size(2) <= 1),
               "compressed attention: shape or type of the entries' gradient");
  dispatch_floating(q_BSAD.scalar_type(), "compressed_attention_backward", [&](auto tag) {
    using T = typename decltype(tag)::type;
    const Entries<T> entries(sizes, q_BSAD, entry_BCD, options);
    if (q_BSAD.numel() == 0 || entries.capacity() == 0) return;
    Backward<T>(sizes, entries, dcontext_BSAD, context_BSAD, lse_BAS, dq_BSAD, dentry_BCD).run();
  });
}

}  // namespace primus::ops
