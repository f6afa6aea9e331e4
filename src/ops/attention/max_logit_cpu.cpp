#include "ops/attention/max_logit.hpp"

#include "ops/attention/selected_keys.hpp"
#include "ops/attention/visible_keys.hpp"
#include "ops/not_on_gpu.hpp"
#include "ops/zone.hpp"

namespace primus::ops {
namespace {

/// Largest logit of one head of one sequence.
template <typename T>
acc_t<T> largest(const attention::Heads<T>& q, const attention::Heads<T>& k, const attention::Sizes& sizes,
                 const attention::VisibleKeys& visible, const attention::SelectedKeys& selected, std::int64_t batch,
                 std::int64_t head, acc_t<T> scale) {
  using Acc = acc_t<T>;
  const std::int64_t group = head / sizes.heads_per_group();
  Acc highest = -std::numeric_limits<Acc>::infinity();
  for (std::int64_t s = 0; s < sizes.sequence; ++s) {
    const T* query = q.at(batch, head) + s * q.stride;
    for (std::int64_t t = visible.first_key(batch, s); t <= s; ++t) {
      if (selected.is_on() && !selected.has(batch, s, t)) continue;
      const T* key = k.at(batch, group) + t * k.stride;
      Acc dot = 0;
#pragma omp simd reduction(+ : dot)
      for (std::int64_t d = 0; d < sizes.query_size; ++d) dot += static_cast<Acc>(query[d]) * static_cast<Acc>(key[d]);
      highest = std::max(highest, scale * dot);
    }
  }
  return highest;
}

}  // namespace

void attention_max_logit(const Tensor& q_BSAD, const Tensor& k_BSGD, const AttentionOptions& options, Tensor& max_A) {
  const ZoneScope zone(Zone::kAttentionForward);
  const attention::Sizes sizes{q_BSAD.size(0), q_BSAD.size(1), q_BSAD.size(2),
                               k_BSGD.size(2), q_BSAD.size(3), q_BSAD.size(3)};
  PRIMUS_CHECK(max_A.numel() == sizes.heads && max_A.is_contiguous() &&
                   max_A.scalar_type() == accumulator_type(q_BSAD.scalar_type()),
               "attention: shape or type of the largest logits");
  if (q_BSAD.is_cuda()) throw_not_on_gpu("qk_clip");
  const attention::VisibleKeys visible(sizes, options);
  const attention::SelectedKeys selected(sizes, options.selected_BSW);
  dispatch_floating(q_BSAD.scalar_type(), "attention_max_logit", [&](auto tag) {
    using T = typename decltype(tag)::type;
    using Acc = acc_t<T>;
    const auto q = attention::as_heads<T>(q_BSAD, sizes, sizes.heads, sizes.query_size, "q");
    const auto k = attention::as_heads<T>(k_BSGD, sizes, sizes.groups, sizes.query_size, "k");
    std::vector<Acc> found(static_cast<std::size_t>(sizes.batch * sizes.heads));
    at::parallel_for(0, sizes.batch * sizes.heads, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t unit = begin; unit < end; ++unit) {
        found[static_cast<std::size_t>(unit)] = largest<T>(q, k, sizes, visible, selected, unit / sizes.heads,
                                                           unit % sizes.heads, static_cast<Acc>(options.scale));
      }
    });
    Acc* highest = max_A.data_ptr<Acc>();
    for (std::size_t unit = 0; unit < found.size(); ++unit) {
      Acc& own = highest[static_cast<std::int64_t>(unit) % sizes.heads];
      own = std::max(own, found[unit]);
    }
  });
}

}  // namespace primus::ops
