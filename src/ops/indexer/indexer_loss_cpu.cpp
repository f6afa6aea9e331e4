// The loss that teaches the indexer, block of queries by block: attention's weights and the scores are made again, and
// the scores' gradients are products of tiles.
#include "ops/attention/selected_keys.hpp"
#include "ops/indexer/indexer_scores.hpp"
#include "ops/not_on_gpu.hpp"
#include "ops/row_math.hpp"
#include "ops/zone.hpp"

namespace primus::ops {
namespace {

/// What attention's weights are made of.
template <typename T>
struct Target {
  Target(const Tensor& q_BSAQ, const Tensor& k_BNGQ, const AttentionOptions& attention, std::int64_t num_keys,
         const Tensor& lse_BAS)
      : sizes{q_BSAQ.size(0), q_BSAQ.size(1), q_BSAQ.size(2), k_BNGQ.size(2), q_BSAQ.size(3), q_BSAQ.size(3)},
        q(attention::as_heads<T>(q_BSAQ, sizes, sizes.heads, sizes.query_size, "q")),
        k(attention::as_heads<T>(k_BNGQ, with_sequence(sizes, num_keys), sizes.groups, sizes.query_size, "k")),
        selected(sizes, attention.selected_BSW, num_keys),
        lse(lse_data(sizes, lse_BAS)),
        sinks(attention::sink_data<acc_t<T>>(sizes, attention.sink_A)),
        scale(static_cast<acc_t<T>>(attention.scale)),
        softcap(static_cast<acc_t<T>>(attention.softcap)) {}

  static attention::Sizes with_sequence(attention::Sizes sizes, std::int64_t sequence) {
    sizes.sequence = sequence;
    return sizes;
  }
  static const acc_t<T>* lse_data(const attention::Sizes& sizes, const Tensor& lse_BAS) {
    if (!lse_BAS.defined()) return nullptr;
    PRIMUS_CHECK(lse_BAS.is_contiguous() && lse_BAS.numel() == sizes.batch * sizes.heads * sizes.sequence &&
                     lse_BAS.scalar_type() == c10::CppTypeToScalarType<acc_t<T>>::value,
                 "indexer: shape or type of lse");
    return lse_BAS.const_data_ptr<acc_t<T>>();
  }

  attention::Sizes sizes;
  attention::Heads<T> q, k;
  attention::SelectedKeys selected;
  const acc_t<T>* lse;
  const acc_t<T>* sinks;
  acc_t<T> scale, softcap;
};

template <typename Acc>
void add_scaled(const Acc* values, std::int64_t count, Acc factor, Acc* sum) {
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) sum[i] += factor * values[i];
}

/// Scores of a row become factor · (softmax(scores) − target); the KL divergence. Keys that the row has not selected
/// have score −inf and target 0.
template <typename Acc>
Acc row_gradient(const Acc* target, std::int64_t count, Acc factor, Acc* scores) {
  Acc mass = 0;
  for (std::int64_t i = 0; i < count; ++i) mass += target[i];
  if (mass == 0) {  // attention looks at none of these keys, and there is nothing to learn from it
    std::fill_n(scores, count, Acc{0});
    return 0;
  }
  const Acc inverse = Acc{1} / mass;
  const Acc highest = *std::max_element(scores, scores + count);
  Acc sum = 0;
  for (std::int64_t i = 0; i < count; ++i) sum += std::exp(scores[i] - highest);
  const Acc lse = highest + std::log(sum);
  Acc divergence = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const Acc wanted = target[i] * inverse;
    if (wanted > 0) divergence += wanted * (std::log(wanted) - (scores[i] - lse));
    scores[i] = factor * (std::exp(scores[i] - lse) - wanted);
  }
  return divergence;
}

template <typename T>
class Loss {
 public:
  using Acc = acc_t<T>;
  static constexpr std::int64_t kPanel = tile::kPanel<Acc>;

  Loss(const indexer::Scores<T>& scorer, const Target<T>& target, double factor, Tensor& loss_BS,
       IndexerInput& gradient)
      : scorer_(scorer),
        sizes_(scorer.sizes()),
        target_(target),
        factor_(static_cast<Acc>(factor)),
        padded_(scorer.cuts().padded_query()),
        slices_(scorer.cuts().slices()),
        loss_(loss_BS.data_ptr<Acc>()),
        dq_(attention::as_heads<T>(gradient.q_BSID, sizes_, sizes_.heads, sizes_.query_size, "the indexer's dq")),
        dk_(attention::as_heads<T>(gradient.k_BND.unsqueeze(2), scorer.key_sizes(), 1, sizes_.query_size,
                                   "the indexer's dk")),
        dweight_(gradient.weight_BSI.data_ptr<T>()) {}

  void run() {
    const std::int64_t panel_elements = scorer_.cuts().loss_keys();
    const Tensor packed = attention::scratch<Acc>(sizes_.batch, panel_elements);
    const Tensor parts = attention::scratch<Acc>(sizes_.batch * slices_, scorer_.cuts().loss_slice());
    const Tensor buffers =
        attention::scratch<Acc>(at::get_num_threads(), scorer_.cuts().loss_worker(target_.sizes.query_size));
    const auto keys_of = [&](std::int64_t batch) {
      Acc* const panels = packed.data_ptr<Acc>() + batch * panel_elements;
      return Keys{panels, panels + scorer_.cuts().keys()};
    };
    for_each_unit(sizes_.batch, [&](std::int64_t, std::int64_t batch) { pack(batch, keys_of(batch)); });
    for_each_unit(sizes_.batch * slices_, [&](std::int64_t worker, std::int64_t unit) {
      Acc* const part = parts.data_ptr<Acc>() + unit * parts.size(1);
      std::fill_n(part, parts.size(1), Acc{0});
      slice(unit / slices_, unit % slices_, keys_of(unit / slices_), buffers.data_ptr<Acc>() + worker * buffers.size(1),
            part);
    });
    for_each_unit(sizes_.batch, [&](std::int64_t, std::int64_t batch) {
      store_keys(batch, parts.data_ptr<Acc>() + batch * slices_ * parts.size(1));
    });
  }

 private:
  struct Keys {
    Acc *transposed, *columns;
  };
  struct Buffers {
    Acc *scores, *target, *product, *queries, *columns, *dq, *attention_keys;
  };

  Buffers buffers_of(Acc* buffer) const {
    const std::int64_t rows = indexer::kQueries;
    Buffers b{};
    b.scores = buffer;
    b.target = b.scores + rows * scorer_.stride();
    b.product = b.target + rows * scorer_.stride();
    b.queries = b.product + rows * scorer_.stride();
    b.columns = b.queries + rows * std::max(sizes_.query_size, target_.sizes.query_size);
    b.dq = b.columns + rows * padded_;
    b.attention_keys = b.dq + rows * padded_;
    return b;
  }

  void pack(std::int64_t batch, Keys keys) const {
    scorer_.pack_keys(batch, keys.transposed);
    tile::pack_columns(scorer_.k().at(batch, 0), scorer_.k().stride, scorer_.num_keys(), sizes_.query_size,
                       keys.columns);
  }

  /// Later blocks see more keys: dealt there and back, the slices get about the same work.
  void slice(std::int64_t batch, std::int64_t index, Keys keys, Acc* buffer, Acc* dk) const {
    for (std::int64_t i = 0; i < scorer_.blocks(); ++i) {
      const std::int64_t place = i % (2 * slices_);
      if (std::min(place, 2 * slices_ - 1 - place) != index) continue;
      query_block(scorer_.block(batch, i), keys, buffers_of(buffer), dk);
    }
  }

  void query_block(const indexer::Block& block, Keys keys, const Buffers& b, Acc* dk) const {
    scorer_.scores(block, keys.transposed, b.queries, b.product, b.scores);
    fill_target(block, b);
    Acc* const loss = loss_ + block.batch * sizes_.sequence + block.first_query;
    for (std::int64_t row = 0; row < block.rows; ++row) {
      const std::int64_t first = scorer_.first_column(block, row);
      const std::int64_t count = scorer_.end_column(block, row) - first;
      loss[row] = 0;
      if (count == 0) continue;
      Acc* scores = b.scores + row * scorer_.stride();
      hide(block, row, first, count, scores + first);
      loss[row] = row_gradient(b.target + row * scorer_.stride() + first, count, factor_, scores + first);
    }
    for (std::int64_t head = 0; head < sizes_.heads; ++head) head_gradient(block, head, keys, b, dk);
  }

  void hide(const indexer::Block& block, std::int64_t row, std::int64_t first, std::int64_t count, Acc* values) const {
    if (!target_.selected.is_on()) return;
    target_.selected.hide(block.batch, block.first_query + row, block.begin + first, count, values);
  }

  /// The heads' attention weights, added up.
  void fill_target(const indexer::Block& block, const Buffers& b) const {
    const std::int64_t stride = scorer_.stride();
    for (std::int64_t row = 0; row < block.rows; ++row) std::fill_n(b.target + row * stride, block.columns(), Acc{0});
    for (std::int64_t head = 0; head < target_.sizes.heads; ++head) {
      const std::int64_t group = head / target_.sizes.heads_per_group();
      const std::int64_t width = target_.sizes.query_size;
      tile::pack_transposed(target_.k.at(block.batch, group) + block.begin * target_.k.stride, target_.k.stride,
                            block.columns(), width, target_.scale, b.attention_keys + block.begin * width);
      scorer_.products(block, target_.q.at(block.batch, head) + block.first_query * target_.q.stride, target_.q.stride,
                       width, b.attention_keys, stride, b.queries, b.product);
      for (std::int64_t row = 0; row < block.rows; ++row) {
        const std::int64_t first = scorer_.first_column(block, row);
        const std::int64_t count = scorer_.end_column(block, row) - first;
        if (count > 0) add_weights(block, row, head, first, count, b);
      }
    }
  }

  void add_weights(const indexer::Block& block, std::int64_t row, std::int64_t head, std::int64_t first,
                   std::int64_t count, const Buffers& b) const {
    Acc* logits = b.product + row * scorer_.stride() + first;
    if (target_.softcap > 0) softcap(logits, count, target_.softcap);
    hide(block, row, first, count, logits);
    if (target_.lse != nullptr) {
      const std::int64_t query = block.first_query + row;
      const Acc lse = target_.lse[(block.batch * target_.sizes.heads + head) * sizes_.sequence + query];
      exponentials(logits, lse, count, logits);
      return add_scaled(logits, count, Acc{1}, b.target + row * scorer_.stride() + first);
    }
    Acc highest = *std::max_element(logits, logits + count);
    if (target_.sinks != nullptr) highest = std::max(highest, target_.sinks[head]);
    Acc sum = exponentials(logits, highest, count, logits);
    if (target_.sinks != nullptr) sum += std::exp(target_.sinks[head] - highest);
    add_scaled(logits, count, Acc{1} / sum, b.target + row * scorer_.stride() + first);
  }

  /// The shares of one head; its products become their own gradients.
  void head_gradient(const indexer::Block& block, std::int64_t head, Keys keys, const Buffers& b, Acc* dk) const {
    scorer_.head_products(block, head, keys.transposed, b.queries, b.product);
    for (std::int64_t row = 0; row < block.rows; ++row) {
      const Acc share = product_gradient(block, row, head, b);
      dweight_[(block.batch * sizes_.sequence + block.first_query + row) * sizes_.heads + head] = to_storage<T>(share);
    }
    query_gradient(block, head, keys, b);
    tile::pack_columns(b.queries, sizes_.query_size, block.rows, sizes_.query_size, b.columns);
    key_gradient(block, b, dk);
  }

  /// Gradient of the row's weight; products outside the row's keys become 0.
  Acc product_gradient(const indexer::Block& block, std::int64_t row, std::int64_t head, const Buffers& b) const {
    Acc* product = b.product + row * scorer_.stride();
    const Acc* dscore = b.scores + row * scorer_.stride();
    const std::int64_t first = scorer_.first_column(block, row);
    const std::int64_t end = scorer_.end_column(block, row);
    const Acc weight = scorer_.weight(block, row, head);
    std::fill_n(product, first, Acc{0});
    std::fill(product + end, product + block.columns(), Acc{0});
    Acc share = 0;
    for (std::int64_t i = first; i < end; ++i) {
      share += dscore[i] * scorer_.rectified(product[i]);
      const bool is_flat = scorer_.is_rectified() && product[i] <= 0;
      product[i] = is_flat ? Acc{0} : weight * dscore[i];
    }
    return share;
  }

  void query_gradient(const indexer::Block& block, std::int64_t head, Keys keys, const Buffers& b) const {
    for (std::int64_t column = 0; column < padded_; column += kPanel) {
      const Acc* panel = keys.columns + column * scorer_.num_keys() + block.begin * kPanel;
      for (std::int64_t row = 0; row < block.rows; row += tile::kGroup) {
        tile::multiply_group<Acc, Write::kOverwrite>(std::min(tile::kGroup, block.rows - row),
                                                     {b.product + row * scorer_.stride(), scorer_.stride()}, panel,
                                                     block.columns(), b.dq + row * padded_ + column, padded_);
      }
    }
    T* target = dq_.at(block.batch, head) + block.first_query * dq_.stride;
    for (std::int64_t row = 0; row < block.rows; ++row) {
      attention::store_row(b.dq + row * padded_, scorer_.scale(), sizes_.query_size, target + row * dq_.stride);
    }
  }

  /// dk[keys] += productsᵀ · queries, without the scale.
  void key_gradient(const indexer::Block& block, const Buffers& b, Acc* dk) const {
    for (std::int64_t column = 0; column < padded_; column += kPanel) {
      const Acc* panel = b.columns + column * block.rows;
      for (std::int64_t key = 0; key < block.columns(); key += tile::kGroup) {
        tile::multiply_group<Acc, Write::kAccumulate>(std::min(tile::kGroup, block.columns() - key),
                                                      {b.product + key, 1, scorer_.stride()}, panel, block.rows,
                                                      dk + (block.begin + key) * padded_ + column, padded_);
      }
    }
  }

  void store_keys(std::int64_t batch, Acc* parts) const {
    const std::int64_t part_elements = scorer_.num_keys() * padded_;
    for (std::int64_t s = 0; s < scorer_.num_keys(); ++s) {
      Acc* sum = parts + s * padded_;
      for (std::int64_t index = 1; index < slices_; ++index) {
        add_scaled(sum + index * part_elements, sizes_.query_size, Acc{1}, sum);
      }
      attention::store_row(sum, scorer_.scale(), sizes_.query_size, dk_.at(batch, 0) + s * dk_.stride);
    }
  }

  const indexer::Scores<T>& scorer_;
  attention::Sizes sizes_;
  const Target<T>& target_;
  Acc factor_;
  std::int64_t padded_, slices_;
  Acc* loss_;
  attention::Heads<T> dq_, dk_;
  T* dweight_;
};

}  // namespace

void indexer_loss(const IndexerInput& in, const IndexerOptions& options, const Tensor& q_BSAQ, const Tensor& k_BNGQ,
                  const AttentionOptions& attention, double factor, Tensor& loss_BS, IndexerInput& gradient,
                  const Tensor& lse_BAS) {
  const ZoneScope zone(Zone::kAttentionBackward);
  if (in.q_BSID.is_cuda()) throw_not_on_gpu(options.entries ? "compress_ratios" : "experimental_attention_variant");
  const attention::Sizes gradient_sizes = indexer::indexer_sizes(gradient);
  PRIMUS_CHECK(gradient_sizes.heads == in.q_BSID.size(2) && loss_BS.is_contiguous() &&
                   loss_BS.numel() == in.q_BSID.size(0) * in.q_BSID.size(1) &&
                   loss_BS.scalar_type() == accumulator_type(in.q_BSID.scalar_type()),
               "indexer: shape or type of the loss or the gradients");
  dispatch_floating(in.q_BSID.scalar_type(), "indexer_loss", [&](auto tag) {
    using T = typename decltype(tag)::type;
    const indexer::Scores<T> scorer(in, options, attention);
    const Target<T> target(q_BSAQ, k_BNGQ, attention, scorer.num_keys(), lse_BAS);
    if (in.q_BSID.numel() > 0) Loss<T>(scorer, target, factor, loss_BS, gradient).run();
  });
}

}  // namespace primus::ops
