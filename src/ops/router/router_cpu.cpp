#include <atomic>
#include <limits>

#include "ops/cuda_ops.hpp"
#include "ops/router/router.hpp"
#include "ops/simd_math.hpp"
#include "ops/zone.hpp"

namespace primus::ops {
namespace {

// Tokens of one unit of work and of one partial sum of probabilities: part of the auxiliary loss's definition, so that
// its bits do not depend on the number of threads.
constexpr std::int64_t kTokensPerUnit = 128;
constexpr std::int64_t kElementsPerTask = 8192;  // logits: some 10 µs of work, well above the cost of waking a thread

struct Shape {
  std::int64_t tokens, experts, top_k;
  std::int64_t groups;            // that the auxiliary loss takes means over: sequences, or the micro-batch as one
  std::int64_t tokens_per_group;  // n of the formula
  std::int64_t units_per_group;

  std::int64_t units() const { return groups * units_per_group; }
};

struct Unit {
  std::int64_t group, first, last;  // tokens [first, last)
};

Shape checked_shape(const Tensor& logits_TE, const Tensor& index_TK, const Tensor& prob_TK,
                    const RouterOptions& options) {
  PRIMUS_CHECK(logits_TE.dim() == 2 && logits_TE.is_contiguous(), "router: logits must be [T, E], contiguous");
  PRIMUS_CHECK(logits_TE.scalar_type() == at::kFloat || logits_TE.scalar_type() == at::kDouble,
               "router: logits must be fp32 or fp64, not {}", c10::toString(logits_TE.scalar_type()));
  Shape shape{};
  shape.tokens = logits_TE.size(0);
  shape.experts = logits_TE.size(1);
  shape.top_k = options.top_k;
  PRIMUS_CHECK(shape.top_k >= 1 && shape.top_k <= shape.experts, "router: top {} of {} experts", shape.top_k,
               shape.experts);
  PRIMUS_CHECK(
      index_TK.scalar_type() == at::kInt && index_TK.is_contiguous() && index_TK.numel() == shape.tokens * shape.top_k,
      "router: index must be int32 [T, K], contiguous");
  PRIMUS_CHECK(prob_TK.scalar_type() == logits_TE.scalar_type() && prob_TK.is_contiguous() &&
                   prob_TK.numel() == shape.tokens * shape.top_k,
               "router: prob must be [T, K] of the logits' type, contiguous");
  shape.groups = options.aux_loss == AuxLossKind::kSeqAux ? options.num_sequences : 1;
  PRIMUS_CHECK(shape.groups >= 1 && shape.tokens % shape.groups == 0, "router: {} tokens are not {} equal sequences",
               shape.tokens, shape.groups);
  shape.tokens_per_group = shape.tokens / shape.groups;
  shape.units_per_group = (shape.tokens_per_group + kTokensPerUnit - 1) / kTokensPerUnit;
  return shape;
}

/// Run `body(unit index, Unit)` over all units, in parallel.
template <typename Body>
void for_each_unit(const Shape& shape, const Body& body) {
  const std::int64_t unit_elements = std::min(kTokensPerUnit, shape.tokens_per_group) * shape.experts;
  const std::int64_t units_per_task = 1 + kElementsPerTask / (1 + unit_elements);
  at::parallel_for(0, shape.units(), units_per_task, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t u = begin; u < end; ++u) {
      const std::int64_t group = u / shape.units_per_group;
      const std::int64_t within = (u % shape.units_per_group) * kTokensPerUnit;
      const std::int64_t first = group * shape.tokens_per_group + within;
      const std::int64_t last =
          group * shape.tokens_per_group + std::min(shape.tokens_per_group, within + kTokensPerUnit);
      body(u, Unit{group, first, last});
    }
  });
}

/// Largest of a row; NaN when the row has no softmax: a NaN in it, +inf, or nothing but −inf.
template <typename T>
T row_maximum(const T* row, std::int64_t n) {
  T largest = -std::numeric_limits<T>::infinity();
  int nans = 0;
#pragma omp simd reduction(max : largest) reduction(+ : nans)
  for (std::int64_t e = 0; e < n; ++e) {
    nans += row[e] != row[e] ? 1 : 0;
    largest = row[e] > largest ? row[e] : largest;
  }
  return nans == 0 && std::isfinite(largest) ? largest : std::numeric_limits<T>::quiet_NaN();
}

/// out[e] = exp(row[e] − shift); gives their sum.
template <typename T>
T exponentials(const T* row, T shift, std::int64_t n, T* out) {
  T sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t e = 0; e < n; ++e) {
    out[e] = fast_exp(row[e] - shift);
    sum += out[e];
  }
  return sum;
}

/// The k largest of a row by falling value, lower index first among equals, kept sorted in the outputs themselves: a
/// value that does not beat the last one kept costs one comparison. Measured at 16 experts, top 4: 48 ns a token; k
/// vectorised scans for the maximum take 128 ns, because each waits for the one before it.
template <typename T>
void select_top_k(const T* row, std::int64_t n, std::int64_t k, T* value, std::int32_t* index) {
  const auto insert = [&](std::int64_t filled, T candidate, std::int64_t e) {
    std::int64_t place = filled;
    for (; place > 0 && candidate > value[place - 1]; --place) {
      value[place] = value[place - 1];
      index[place] = index[place - 1];
    }
    value[place] = candidate;
    index[place] = static_cast<std::int32_t>(e);
  };
  for (std::int64_t e = 0; e < k; ++e) insert(e, row[e], e);
  for (std::int64_t e = k; e < n; ++e) {
    if (row[e] > value[k - 1]) insert(k - 1, row[e], e);
  }
}

/// The choices of token t under forced balance; gives the largest of their logits.
template <typename T>
T select_in_turn(const T* row, std::int64_t n, std::int64_t k, std::int64_t t, T* value, std::int32_t* index) {
  T largest = -std::numeric_limits<T>::infinity();
  for (std::int64_t i = 0; i < k; ++i) {
    index[i] = static_cast<std::int32_t>((t * k + i) % n);
    value[i] = row[index[i]];
    largest = std::max(largest, value[i]);
  }
  return largest;
}

/// Of one group.
double auxiliary_factor(const Shape& shape, const RouterOptions& options) {
  return ops::auxiliary_factor(options, shape.experts, shape.tokens_per_group, shape.groups);
}

/// Tokens of each expert in each group, [groups, E].
std::vector<std::int64_t> group_counts(const Shape& shape, const std::int32_t* index) {
  std::vector<std::int64_t> count(static_cast<std::size_t>(shape.groups * shape.experts), 0);
  const std::int64_t slots_per_group = shape.tokens_per_group * shape.top_k;
  for (std::int64_t group = 0; group < shape.groups; ++group) {
    std::int64_t* of_group = count.data() + group * shape.experts;
    const std::int32_t* chosen = index + group * slots_per_group;
    for (std::int64_t i = 0; i < slots_per_group; ++i) ++of_group[chosen[i]];
  }
  return count;
}

/// prob (chosen logits on entry) <- routing probabilities. `maximum`, `sum`: of the whole row's exponentials.
template <typename T>
void chosen_probabilities(const RouterOptions& options, T maximum, T sum, T* prob) {
  const std::int64_t k = options.top_k;
  T denominator = sum;
  if (options.softmax_order == SoftmaxOrder::kPost) denominator = T(0);
  for (std::int64_t i = 0; i < k; ++i) {
    prob[i] = fast_exp(prob[i] - maximum);
    if (options.softmax_order == SoftmaxOrder::kPost) denominator += prob[i];
  }
  const T factor = static_cast<T>(options.scaling_factor) / denominator;
  for (std::int64_t i = 0; i < k; ++i) prob[i] *= factor;
}

template <typename T>
void forward(const Tensor& logits_TE, const RouterOptions& options, const Shape& shape, Tensor& index_TK,
             Tensor& prob_TK, Tensor& count_E, Tensor& aux_loss_1) {
  const T* logits = logits_TE.data_ptr<T>();
  auto* index = index_TK.data_ptr<std::int32_t>();
  T* prob = prob_TK.data_ptr<T>();
  const std::int64_t num_experts = shape.experts;
  const bool with_aux = options.aux_loss != AuxLossKind::kNone;
  // Σ_t P_te of each unit, added up in the units' order afterwards.
  std::vector<double> unit_probability(with_aux ? static_cast<std::size_t>(shape.units() * num_experts) : 0, 0.0);
  std::atomic<std::int64_t> first_bad{shape.tokens};
  for_each_unit(shape, [&](std::int64_t u, const Unit& unit) {
    std::vector<T> exponential(static_cast<std::size_t>(num_experts));
    for (std::int64_t t = unit.first; t < unit.last; ++t) {
      const T* row = logits + t * num_experts;
      const T maximum = row_maximum(row, num_experts);
      if (std::isnan(maximum)) {
        std::int64_t earliest = first_bad.load();
        while (t < earliest && !first_bad.compare_exchange_weak(earliest, t)) {
        }
        return;
      }
      T* chosen = prob + t * shape.top_k;
      T chosen_maximum = maximum;
      if (options.selection == Selection::kForcedBalance) {
        chosen_maximum = select_in_turn(row, num_experts, shape.top_k, t, chosen, index + t * shape.top_k);
      } else {
        select_top_k(row, num_experts, shape.top_k, chosen, index + t * shape.top_k);
      }
      const T sum = with_aux || options.softmax_order == SoftmaxOrder::kPre
                        ? exponentials(row, maximum, num_experts, exponential.data())
                        : T(1);
      // A softmax over the chosen alone is taken from their own maximum, or it could vanish.
      chosen_probabilities(options, options.softmax_order == SoftmaxOrder::kPost ? chosen_maximum : maximum, sum,
                           chosen);
      if (with_aux) {
        double* total = unit_probability.data() + u * num_experts;
        const T inverse = T(1) / sum;
        for (std::int64_t e = 0; e < num_experts; ++e) total[e] += static_cast<double>(exponential[e] * inverse);
      }
    }
  });
  if (first_bad.load() < shape.tokens) {
    throw NonFiniteError(
        fmt::format("router: token {} of the micro-batch has logits that are NaN or infinite: the run has "
                    "diverged, or its input is broken",
                    first_bad.load()));
  }

  const std::vector<std::int64_t> count = group_counts(shape, index);
  auto* total_count = count_E.data_ptr<std::int32_t>();
  double loss = 0.0;
  for (std::int64_t e = 0; e < num_experts; ++e) {
    std::int64_t of_expert = 0;
    for (std::int64_t group = 0; group < shape.groups; ++group) {
      const std::int64_t of_group = count[static_cast<std::size_t>(group * num_experts + e)];
      of_expert += of_group;
      if (!with_aux) continue;
      double probability = 0.0;
      for (std::int64_t u = group * shape.units_per_group; u < (group + 1) * shape.units_per_group; ++u) {
        probability += unit_probability[static_cast<std::size_t>(u * num_experts + e)];
      }
      loss += probability * static_cast<double>(of_group);
    }
    total_count[e] = static_cast<std::int32_t>(of_expert);
  }
  const bool has_loss = with_aux && shape.tokens > 0;
  *aux_loss_1.data_ptr<T>() = static_cast<T>(has_loss ? loss * auxiliary_factor(shape, options) : 0.0);
}

template <typename T>
void backward(const Tensor& logits_TE, const Tensor& index_TK, const Tensor& prob_TK, const Tensor& dprob_TK,
              const RouterOptions& options, double aux_scale, const Shape& shape, Tensor& dlogits_TE) {
  const T* logits = logits_TE.data_ptr<T>();
  const auto* index = index_TK.data_ptr<std::int32_t>();
  const T* prob = prob_TK.data_ptr<T>();
  const T* dprob = dprob_TK.data_ptr<T>();
  T* dlogits = dlogits_TE.data_ptr<T>();
  const std::int64_t num_experts = shape.experts;
  const std::int64_t k = shape.top_k;
  const bool with_aux = options.aux_loss != AuxLossKind::kNone && shape.tokens > 0;
  const bool is_post = options.softmax_order == SoftmaxOrder::kPost;
  // d aux / d P_te, the same for every token of a group: counts are constants.
  std::vector<T> dprobability;
  if (with_aux) {
    const double factor = aux_scale * auxiliary_factor(shape, options);
    for (const std::int64_t n : group_counts(shape, index)) {
      dprobability.push_back(static_cast<T>(factor * static_cast<double>(n)));
    }
  }
  const auto scaling = static_cast<T>(options.scaling_factor);
  for_each_unit(shape, [&](std::int64_t, const Unit& unit) {
    for (std::int64_t t = unit.first; t < unit.last; ++t) {
      const T* row = logits + t * num_experts;
      T* out = dlogits + t * num_experts;
      const T* p = prob + t * k;
      const T* dp = dprob + t * k;
      const std::int32_t* chosen = index + t * k;
      T dot = 0;  // Σ_k prob · dprob
      for (std::int64_t i = 0; i < k; ++i) dot += p[i] * dp[i];

      // Through the softmax over E: P_e · (g_e − Σ g P), where the pre-softmax order adds its own Σ to the sum.
      T full_dot = is_post ? T(0) : dot;
      if (with_aux || !is_post) {
        const T maximum = row_maximum(row, num_experts);
        const T inverse = T(1) / exponentials(row, maximum, num_experts, out);
        if (with_aux) {
          const T* g = dprobability.data() + unit.group * num_experts;
          T aux_dot = 0;
#pragma omp simd reduction(+ : aux_dot)
          for (std::int64_t e = 0; e < num_experts; ++e) aux_dot += g[e] * (out[e] * inverse);
          full_dot += aux_dot;
#pragma omp simd
          for (std::int64_t e = 0; e < num_experts; ++e) out[e] = out[e] * inverse * (g[e] - full_dot);
        } else {
#pragma omp simd
          for (std::int64_t e = 0; e < num_experts; ++e) out[e] = -(out[e] * inverse * full_dot);
        }
      } else {
        std::fill_n(out, num_experts, T(0));
      }

      // Through the chosen: the post-softmax order has its sum over them alone, Σ_k (prob / scaling) · dprob.
      const T chosen_dot = is_post && scaling != T(0) ? dot / scaling : T(0);
      for (std::int64_t i = 0; i < k; ++i) out[chosen[i]] += p[i] * (dp[i] - chosen_dot);
    }
  });
}

}  // namespace

void router_forward(const Tensor& logits_TE, const RouterOptions& options, Tensor& index_TK, Tensor& prob_TK,
                    Tensor& count_E, Tensor& aux_loss_1) {
  const ZoneScope zone(Zone::kRouter);
  const Shape shape = checked_shape(logits_TE, index_TK, prob_TK, options);
  PRIMUS_CHECK(count_E.scalar_type() == at::kInt && count_E.is_contiguous() && count_E.numel() == shape.experts,
               "router: count must be int32 [E]");
  PRIMUS_CHECK(aux_loss_1.scalar_type() == logits_TE.scalar_type() && aux_loss_1.numel() == 1,
               "router: aux_loss must be one element of the logits' type");
  if (logits_TE.is_cuda()) return cuda_ops().router_forward(logits_TE, options, index_TK, prob_TK, count_E, aux_loss_1);
  if (logits_TE.scalar_type() == at::kDouble) {
    forward<double>(logits_TE, options, shape, index_TK, prob_TK, count_E, aux_loss_1);
  } else {
    forward<float>(logits_TE, options, shape, index_TK, prob_TK, count_E, aux_loss_1);
  }
}

void router_backward(const Tensor& logits_TE, const Tensor& index_TK, const Tensor& prob_TK, const Tensor& dprob_TK,
                     const RouterOptions& options, double aux_scale, Tensor& dlogits_TE) {
  const ZoneScope zone(Zone::kRouter);
  const Shape shape = checked_shape(logits_TE, index_TK, prob_TK, options);
  PRIMUS_CHECK(dprob_TK.sizes() == prob_TK.sizes() && dprob_TK.scalar_type() == logits_TE.scalar_type() &&
                   dprob_TK.is_contiguous(),
               "router: dprob must be like prob");
  PRIMUS_CHECK(dlogits_TE.sizes() == logits_TE.sizes() && dlogits_TE.scalar_type() == logits_TE.scalar_type() &&
                   dlogits_TE.is_contiguous(),
               "router: dlogits must be like logits");
  if (logits_TE.is_cuda()) {
    return cuda_ops().router_backward(logits_TE, index_TK, prob_TK, dprob_TK, options, aux_scale, dlogits_TE);
  }
  if (logits_TE.scalar_type() == at::kDouble) {
    backward<double>(logits_TE, index_TK, prob_TK, dprob_TK, options, aux_scale, shape, dlogits_TE);
  } else {
    backward<float>(logits_TE, index_TK, prob_TK, dprob_TK, options, aux_scale, shape, dlogits_TE);
  }
}

}  // namespace primus::ops
