#include <atomic>
#include <numeric>

#include "ops/cuda_ops.hpp"
#include "ops/router/router.hpp"
#include "ops/router/router_global.hpp"
#include "ops/router/router_rows.hpp"
#include "ops/zone.hpp"

namespace primus::ops {
namespace {

using namespace router;

// Tokens of one unit of work and of one partial sum of probabilities: part of the auxiliary loss's definition, so that
// its bits do not depend on the number of threads.
constexpr std::int64_t kTokensPerUnit = 128;
constexpr std::int64_t kElementsPerTask = 8192;  // logits: some 10 µs of work, well above the cost of waking a thread

struct Shape {
  std::int64_t tokens, experts, top_k;
  std::int64_t groups;            // that the balancing losses take means over: sequences, or the micro-batch as one
  std::int64_t tokens_per_group;  // n of the formula
  std::int64_t units_per_group;

  std::int64_t units() const { return groups * units_per_group; }
};

struct Unit {
  std::int64_t group, first, last;  // tokens [first, last)
};

Shape checked_shape(const RouterInput& input, const RouterOutput& output, const RouterOptions& options) {
  const Tensor& logits = input.logits_TE;
  PRIMUS_CHECK(logits.dim() == 2 && logits.is_contiguous(), "router: logits must be [T, E], contiguous");
  PRIMUS_CHECK(logits.scalar_type() == at::kFloat || logits.scalar_type() == at::kDouble,
               "router: logits must be fp32 or fp64, not {}", c10::toString(logits.scalar_type()));
  Shape shape{};
  shape.tokens = logits.size(0);
  shape.experts = logits.size(1);
  shape.top_k = options.top_k;
  PRIMUS_CHECK(shape.top_k >= 1 && shape.top_k <= shape.experts, "router: top {} of {} experts", shape.top_k,
               shape.experts);
  PRIMUS_CHECK(options.num_groups >= 1 && shape.experts % options.num_groups == 0 && options.group_top_k >= 1 &&
                   options.group_top_k <= options.num_groups &&
                   shape.experts / options.num_groups * options.group_top_k >= shape.top_k,
               "router: {} of {} groups of {} experts for the top {}", options.group_top_k, options.num_groups,
               shape.experts, shape.top_k);
  const std::int64_t choices = shape.tokens * shape.top_k;
  const auto is_int32 = [](const Tensor& x, std::int64_t numel) {
    return x.scalar_type() == at::kInt && x.is_contiguous() && x.numel() == numel;
  };
  const auto is_like_logits = [&](const Tensor& x, std::int64_t numel) {
    return x.defined() && x.scalar_type() == logits.scalar_type() && x.is_contiguous() && x.numel() == numel;
  };
  PRIMUS_CHECK(is_int32(output.index_TK, choices), "router: index must be int32 [T, K], contiguous");
  PRIMUS_CHECK(is_like_logits(output.prob_TK, choices), "router: prob must be [T, K] of the logits' type, contiguous");
  PRIMUS_CHECK(!input.bias_E.defined() || is_like_logits(input.bias_E, shape.experts),
               "router: bias must be [E] of the logits' type, contiguous");
  shape.groups = options.num_slopes();
  PRIMUS_CHECK(shape.groups >= 1 && shape.tokens % shape.groups == 0, "router: {} tokens are not {} equal sequences",
               shape.tokens, shape.groups);
  PRIMUS_CHECK(!options.has_balance_loss() || is_like_logits(output.slope_GE, shape.groups * shape.experts),
               "router: slope must be [{}, E] of the logits' type, contiguous", shape.groups);
  shape.tokens_per_group = shape.tokens / shape.groups;
  shape.units_per_group = (shape.tokens_per_group + kTokensPerUnit - 1) / kTokensPerUnit;
  return shape;
}

void check_forward(const RouterInput& input, const RouterOutput& output, const RouterOptions& options,
                   const Shape& shape) {
  const auto is_count = [&](const Tensor& x) {
    return x.defined() && x.scalar_type() == at::kInt && x.is_contiguous() && x.numel() == shape.experts;
  };
  const at::ScalarType dtype = input.logits_TE.scalar_type();
  PRIMUS_CHECK(is_count(output.num_tokens_E), "router: num_tokens must be int32 [E]");
  PRIMUS_CHECK(output.loss_4.scalar_type() == dtype && output.loss_4.numel() == RouterLoss::kNum,
               "router: loss must be four elements of the logits' type");
  PRIMUS_CHECK(options.global_aux_loss == 0.0 ||
                   (is_count(output.num_balance_E) && input.num_earlier_E.defined() &&
                    input.num_earlier_E.scalar_type() == at::kLong && input.num_earlier_E.numel() == shape.experts),
               "router: a global loss needs num_balance (int32 [E]) and num_earlier (int64 [E])");
  PRIMUS_CHECK(
      !input.is_routed_T.defined() || (input.is_routed_T.scalar_type() == at::kBool &&
                                       input.is_routed_T.is_contiguous() && input.is_routed_T.numel() == shape.tokens),
      "router: is_routed must be bool [T]");
  PRIMUS_CHECK((options.selection == Selection::kGiven) == input.chosen_TK.defined() &&
                   (!input.chosen_TK.defined() ||
                    (input.chosen_TK.scalar_type() == at::kInt && input.chosen_TK.is_contiguous() &&
                     input.chosen_TK.numel() == shape.tokens * shape.top_k)),
               "router: given choices must be int32 [T, K], contiguous");
  PRIMUS_CHECK(options.selection != Selection::kQuantile ||
                   (output.quantile_E.defined() && output.quantile_E.scalar_type() == dtype && input.bias_E.defined()),
               "router: quantile balancing needs a bias, and room for its quantile");
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

/// Tokens of each expert in each group, [groups, E]; −1 counts nowhere.
std::vector<std::int64_t> group_counts(const Shape& shape, const std::int32_t* index) {
  std::vector<std::int64_t> count(static_cast<std::size_t>(shape.groups * shape.experts), 0);
  const std::int64_t slots_per_group = shape.tokens_per_group * shape.top_k;
  for (std::int64_t group = 0; group < shape.groups; ++group) {
    std::int64_t* of_group = count.data() + group * shape.experts;
    const std::int32_t* chosen = index + group * slots_per_group;
    for (std::int64_t i = 0; i < slots_per_group; ++i) {
      if (chosen[i] >= 0) ++of_group[chosen[i]];
    }
  }
  return count;
}

/// The logits as the scores see them.
template <typename T>
const T* capped_row(const RouterOptions& options, const T* row, std::int64_t n, T* buffer) {
  if (options.logit_softcap == 0.0) return row;
  for (std::int64_t e = 0; e < n; ++e) buffer[e] = capped(row[e], static_cast<T>(options.logit_softcap));
  return buffer;
}

/// Sums of one unit, added up in the units' order afterwards.
struct UnitSums {
  std::vector<double> probability_E;  // Σ_t P_te; empty without a balancing loss
  double square_lse = 0.0;            // Σ_t logsumexp²
};

/// What forward's row function reads and writes beside the row.
template <typename T>
struct Forward {
  const RouterOptions& options;
  std::int64_t experts;
  const T* bias;                  // nullptr: none
  const double* normalised_TE;    // Sinkhorn's; nullptr without
  const std::int32_t* chosen_TK;  // kGiven's; nullptr without
  T* threshold_T;                 // kQuantile: the value that a choice had to beat
  std::int32_t* balance_TK;       // plain top k of the scores; nullptr: the choices are it
  bool has_balance;
};

/// The row that the experts are chosen by, largest first.
template <typename T>
const T* choice_row(const Forward<T>& f, std::int64_t t, const T* row, const T* score, const T* exponential,
                    RowBuffers<T>& buffers) {
  const std::int64_t n = f.experts;
  T* out = buffers.choice.data();
  if (f.options.selection == Selection::kSinkhorn) {
    for (std::int64_t e = 0; e < n; ++e) out[e] = static_cast<T>(f.normalised_TE[t * n + e]);
    return out;
  }
  if (f.options.selection == Selection::kQuantile) {
    for (std::int64_t e = 0; e < n; ++e) out[e] = row[e] - f.bias[e];
    return out;
  }
  const bool has_groups = f.options.num_groups > 1;
  if (f.bias == nullptr && !has_groups) return score;
  // Sums of probabilities rank groups in another way than sums of logits.
  const bool is_pre = f.options.score_function == ScoreFunction::kSoftmax &&
                      f.options.softmax_order == SoftmaxOrder::kPre && has_groups;
  const T* from = is_pre ? exponential : score;
  for (std::int64_t e = 0; e < n; ++e) out[e] = from[e] + (f.bias != nullptr ? f.bias[e] : T(0));
  if (has_groups) keep_best_groups(f.options, n, buffers, out);
  return out;
}

void copy_choices(const std::int32_t* chosen, std::int64_t experts, std::int64_t k, std::int32_t* index) {
  for (std::int64_t i = 0; i < k; ++i) {
    PRIMUS_CHECK(chosen[i] >= 0 && chosen[i] < experts, "router: the given expert {} of {}", chosen[i], experts);
    index[i] = chosen[i];
  }
}

template <typename T>
void choose(const Forward<T>& f, std::int64_t t, const T* choice, RowBuffers<T>& buffers, std::int32_t* index) {
  const std::int64_t n = f.experts;
  const std::int64_t k = f.options.top_k;
  if (f.options.selection == Selection::kForcedBalance) return select_in_turn(n, k, t, index);
  if (f.options.selection == Selection::kGiven) return copy_choices(f.chosen_TK + t * k, n, k, index);
  const std::int64_t taken = f.options.selection == Selection::kQuantile ? std::min(k + 1, n) : k;
  select_top_k(choice, n, taken, buffers.value.data(), buffers.index.data());
  std::copy_n(buffers.index.begin(), k, index);
  if (f.threshold_T != nullptr) f.threshold_T[t] = buffers.value[static_cast<std::size_t>(taken - 1)];
}

/// Routes one token; false if its logits have no softmax.
template <typename T>
bool route_token(const Forward<T>& f, std::int64_t t, const T* raw, RowBuffers<T>& buffers, std::int32_t* index,
                 T* prob, UnitSums& sums) {
  const std::int64_t n = f.experts;
  const std::int64_t k = f.options.top_k;
  const bool is_softmax = f.options.score_function == ScoreFunction::kSoftmax;
  const bool is_pre = is_softmax && f.options.softmax_order == SoftmaxOrder::kPre;
  const T maximum_raw = row_maximum(raw, n);
  if (std::isnan(maximum_raw)) return false;
  const T* row = capped_row(f.options, raw, n, buffers.logits.data());
  const T maximum = row == raw ? maximum_raw : row_maximum(row, n);
  T* exponential = buffers.exponential.data();
  const bool needs_exponentials = is_pre || (is_softmax && f.has_balance) || f.options.z_loss != 0.0;
  const T sum = needs_exponentials ? exponentials(row, maximum, n, exponential) : T(1);
  if (f.options.z_loss != 0.0) {
    const double lse = static_cast<double>(maximum) + std::log(static_cast<double>(sum));
    sums.square_lse += lse * lse;
  }
  T score_sum = 0;
  if (!is_softmax) score_sum = scores(f.options.score_function, row, n, buffers.score.data());
  const T* score = is_softmax ? row : buffers.score.data();

  choose(f, t, choice_row(f, t, row, score, exponential, buffers), buffers, index);
  for (std::int64_t i = 0; i < k; ++i) prob[i] = score[index[i]];
  if (is_softmax) {
    softmax_probabilities(f.options, maximum, sum, prob);
  } else {
    const T factor = static_cast<T>(f.options.scaling_factor) / chosen_denominator(f.options, prob);
    for (std::int64_t i = 0; i < k; ++i) prob[i] *= factor;
  }
  if (!f.has_balance) return true;
  const T* weight = is_softmax ? exponential : score;
  const T inverse = T(1) / (is_softmax ? sum : score_sum + static_cast<T>(kSumEpsilon));
  double* total = sums.probability_E.data();
  for (std::int64_t e = 0; e < n; ++e) total[e] += static_cast<double>(weight[e] * inverse);
  if (f.balance_TK != nullptr) select_top_k(score, n, k, buffers.value.data(), f.balance_TK + t * k);
  return true;
}

/// Slopes and losses from the counts and probabilities of every group. `num_routed`: tokens of each group.
template <typename T>
void balance_losses(const Shape& shape, const RouterOptions& options, const RouterInput& input,
                    const std::vector<std::int64_t>& count_GE, const std::vector<std::int64_t>& num_routed_G,
                    const std::vector<UnitSums>& units, RouterOutput& output) {
  const std::int64_t num_experts = shape.experts;
  const std::int64_t all = std::accumulate(num_routed_G.begin(), num_routed_G.end(), std::int64_t{0});
  const double whole = balance_factor(num_experts, shape.top_k, all);
  std::vector<double> mean_E(static_cast<std::size_t>(num_experts), 0.0);  // over the step's micro-batches
  if (options.global_aux_loss != 0.0) {
    const auto* earlier = input.num_earlier_E.data_ptr<std::int64_t>();
    auto* own = output.num_balance_E.data_ptr<std::int32_t>();
    for (std::int64_t e = 0; e < num_experts; ++e) {
      std::int64_t sum = 0;
      for (std::int64_t g = 0; g < shape.groups; ++g) sum += count_GE[static_cast<std::size_t>(g * num_experts + e)];
      own[e] = static_cast<std::int32_t>(sum);
      mean_E[static_cast<std::size_t>(e)] =
          static_cast<double>(earlier[e] + sum) / static_cast<double>(input.num_earlier_batches + 1);
    }
  }
  double losses[RouterLoss::kNum] = {};
  T* slope = output.slope_GE.data_ptr<T>();
  for (std::int64_t e = 0; e < num_experts; ++e) {
    std::int64_t count = 0;
    for (std::int64_t g = 0; g < shape.groups; ++g) count += count_GE[static_cast<std::size_t>(g * num_experts + e)];
    const double aux = options.aux_loss * whole * static_cast<double>(count);
    const double global = options.global_aux_loss * whole * mean_E[static_cast<std::size_t>(e)];
    for (std::int64_t g = 0; g < shape.groups; ++g) {
      const double seq = options.seq_aux_loss / static_cast<double>(shape.groups) *
                         balance_factor(num_experts, shape.top_k, num_routed_G[static_cast<std::size_t>(g)]) *
                         static_cast<double>(count_GE[static_cast<std::size_t>(g * num_experts + e)]);
      double probability = 0.0;
      for (std::int64_t u = g * shape.units_per_group; u < (g + 1) * shape.units_per_group; ++u) {
        probability += units[static_cast<std::size_t>(u)].probability_E[static_cast<std::size_t>(e)];
      }
      losses[RouterLoss::kAux] += probability * aux;
      losses[RouterLoss::kSeqAux] += probability * seq;
      losses[RouterLoss::kGlobalAux] += probability * global;
      slope[g * num_experts + e] = static_cast<T>(aux + seq + global);
    }
  }
  for (int i = 0; i < RouterLoss::kZ; ++i) output.loss_4.data_ptr<T>()[i] = static_cast<T>(losses[i]);
}

[[noreturn]] void throw_nonfinite(std::int64_t token) {
  throw NonFiniteError(
      fmt::format("router: token {} of the micro-batch has logits that are NaN or infinite: the run has "
                  "diverged, or its input is broken",
                  token));
}

template <typename T>
void forward(const RouterInput& input, const RouterOptions& options, const Shape& shape, RouterOutput& output) {
  const T* logits = input.logits_TE.data_ptr<T>();
  const bool* is_routed = input.is_routed_T.defined() ? input.is_routed_T.data_ptr<bool>() : nullptr;
  auto* index = output.index_TK.data_ptr<std::int32_t>();
  T* prob = output.prob_TK.data_ptr<T>();
  const std::int64_t num_experts = shape.experts;
  const std::int64_t k = shape.top_k;
  const bool has_balance = options.has_balance_loss();
  std::vector<std::int32_t> balance;
  if (has_balance && !options.counts_choices(input.bias_E.defined())) {
    balance.assign(static_cast<std::size_t>(shape.tokens * k), -1);
  }
  std::vector<double> normalised;
  if (options.selection == Selection::kSinkhorn) {
    normalised = sinkhorn(logits, is_routed, shape.tokens, num_experts, options.logit_softcap);
    if (normalised.empty()) normalised.resize(1);  // nothing is routed; the pointer must not be null
  }
  std::vector<T> threshold(options.selection == Selection::kQuantile ? static_cast<std::size_t>(shape.tokens) : 0);
  const Forward<T> f{options,
                     num_experts,
                     input.bias_E.defined() ? input.bias_E.data_ptr<T>() : nullptr,
                     normalised.data(),
                     input.chosen_TK.defined() ? input.chosen_TK.const_data_ptr<std::int32_t>() : nullptr,
                     threshold.empty() ? nullptr : threshold.data(),
                     balance.empty() ? nullptr : balance.data(),
                     has_balance};
  std::vector<UnitSums> units(static_cast<std::size_t>(shape.units()));
  std::atomic<std::int64_t> first_bad{shape.tokens};
  for_each_unit(shape, [&](std::int64_t u, const Unit& unit) {
    UnitSums& sums = units[static_cast<std::size_t>(u)];
    if (has_balance) sums.probability_E.assign(static_cast<std::size_t>(num_experts), 0.0);
    RowBuffers<T> buffers(num_experts, k, options.num_groups);
    for (std::int64_t t = unit.first; t < unit.last; ++t) {
      if (is_routed != nullptr && !is_routed[t]) {
        std::fill_n(index + t * k, k, -1);
        std::fill_n(prob + t * k, k, T(0));
        continue;
      }
      if (route_token(f, t, logits + t * num_experts, buffers, index + t * k, prob + t * k, sums)) continue;
      std::int64_t earliest = first_bad.load();
      while (t < earliest && !first_bad.compare_exchange_weak(earliest, t)) {
      }
      return;
    }
  });
  if (first_bad.load() < shape.tokens) throw_nonfinite(first_bad.load());

  const std::vector<std::int64_t> chosen_GE = group_counts(shape, index);
  std::vector<std::int64_t> num_routed_G(static_cast<std::size_t>(shape.groups), 0);
  auto* num_tokens = output.num_tokens_E.data_ptr<std::int32_t>();
  std::fill_n(num_tokens, num_experts, 0);
  for (std::int64_t g = 0; g < shape.groups; ++g) {
    std::int64_t choices = 0;
    for (std::int64_t e = 0; e < num_experts; ++e) {
      const std::int64_t count = chosen_GE[static_cast<std::size_t>(g * num_experts + e)];
      num_tokens[e] += static_cast<std::int32_t>(count);
      choices += count;
    }
    num_routed_G[static_cast<std::size_t>(g)] = choices / k;
  }
  output.loss_4.zero_();
  if (has_balance) {
    balance_losses<T>(shape, options, input, balance.empty() ? chosen_GE : group_counts(shape, balance.data()),
                      num_routed_G, units, output);
  }
  const std::int64_t num_routed = std::accumulate(num_routed_G.begin(), num_routed_G.end(), std::int64_t{0});
  if (options.z_loss != 0.0 && num_routed > 0) {
    double square_lse = 0.0;
    for (const UnitSums& sums : units) square_lse += sums.square_lse;
    output.loss_4.data_ptr<T>()[RouterLoss::kZ] =
        static_cast<T>(options.z_loss * square_lse / static_cast<double>(num_routed));
  }
  if (options.selection == Selection::kQuantile) {
    balancing_quantiles(logits, is_routed, threshold.data(), shape.tokens, num_experts, k, options.logit_softcap,
                        output.quantile_E.data_ptr<T>());
  }
}

/// What backward's row function reads beside the row. Losses' gradients include the scale.
template <typename T>
struct Backward {
  const RouterOptions& options;
  std::int64_t experts;
  T loss_scale;
  T z_factor;  // 2 · c / n, scaled; 0: without
};

/// Adds to out_E (zero or P_e·(…) before) the gradient through the softmax: P_e · (g_e − Σ g P), where the pre-softmax
/// order adds its own Σ to the sum; and the z loss's, 2c/n · logsumexp · P_e.
template <typename T>
void softmax_gradient(const Backward<T>& b, const T* row, const T* slope, T dot, T* out) {
  const std::int64_t n = b.experts;
  const T maximum = row_maximum(row, n);
  const T sum = exponentials(row, maximum, n, out);
  const T inverse = T(1) / sum;
  T full_dot = dot;
  if (b.z_factor != T(0)) full_dot -= b.z_factor * (maximum + std::log(sum));
  if (slope == nullptr) {
#pragma omp simd
    for (std::int64_t e = 0; e < n; ++e) out[e] = -(out[e] * inverse * full_dot);
    return;
  }
  T slope_dot = 0;
#pragma omp simd reduction(+ : slope_dot)
  for (std::int64_t e = 0; e < n; ++e) slope_dot += b.loss_scale * slope[e] * (out[e] * inverse);
  full_dot += slope_dot;
#pragma omp simd
  for (std::int64_t e = 0; e < n; ++e) out[e] = out[e] * inverse * (b.loss_scale * slope[e] - full_dot);
}

template <typename T>
void softmax_backward(const Backward<T>& b, const T* row, const std::int32_t* chosen, const T* prob, const T* dprob,
                      const T* slope, T* out) {
  const std::int64_t k = b.options.top_k;
  const bool is_post = b.options.softmax_order == SoftmaxOrder::kPost;
  T dot = 0;  // Σ_k prob · dprob
  for (std::int64_t i = 0; i < k; ++i) dot += prob[i] * dprob[i];
  if (slope != nullptr || !is_post || b.z_factor != T(0)) {
    softmax_gradient(b, row, slope, is_post ? T(0) : dot, out);
  } else {
    std::fill_n(out, b.experts, T(0));
  }
  // Through the chosen: the post-softmax order has its sum over them alone, Σ_k (prob / scaling) · dprob.
  const auto scaling = static_cast<T>(b.options.scaling_factor);
  const T chosen_dot = is_post && scaling != T(0) ? dot / scaling : T(0);
  for (std::int64_t i = 0; i < k; ++i) out[chosen[i]] += prob[i] * (dprob[i] - chosen_dot);
}

/// The scores that look at one expert at a time.
template <typename T>
void score_backward(const Backward<T>& b, const T* row, const std::int32_t* chosen, const T* prob, const T* dprob,
                    const T* slope, RowBuffers<T>& buffers, T* out) {
  const std::int64_t n = b.experts;
  const std::int64_t k = b.options.top_k;
  T* score = buffers.score.data();
  const T inverse = T(1) / (scores(b.options.score_function, row, n, score) + static_cast<T>(kSumEpsilon));
  std::fill_n(out, n, T(0));
  if (slope != nullptr) {
    T dot = 0;
    for (std::int64_t e = 0; e < n; ++e) dot += b.loss_scale * slope[e] * (score[e] * inverse);
    for (std::int64_t e = 0; e < n; ++e) out[e] = (b.loss_scale * slope[e] - dot) * inverse;
  }
  T* chosen_score = buffers.value.data();
  T dot = 0;
  for (std::int64_t i = 0; i < k; ++i) {
    chosen_score[i] = score[chosen[i]];
    if (k > 1) dot += prob[i] * dprob[i];
  }
  const T chosen_inverse = T(1) / chosen_denominator(b.options, chosen_score);
  const auto scaling = static_cast<T>(b.options.scaling_factor);
  for (std::int64_t i = 0; i < k; ++i) out[chosen[i]] += (scaling * dprob[i] - dot) * chosen_inverse;
  through_scores(b.options.score_function, row, score, n, out);
  if (b.z_factor == T(0)) return;
  softmax_gradient<T>(b, row, nullptr, T(0), buffers.exponential.data());
  for (std::int64_t e = 0; e < n; ++e) out[e] += buffers.exponential[static_cast<std::size_t>(e)];
}

template <typename T>
void backward(const RouterInput& input, const RouterOutput& output, const Tensor& dprob_TK,
              const RouterOptions& options, double loss_scale, const Shape& shape, Tensor& dlogits_TE) {
  const T* logits = input.logits_TE.data_ptr<T>();
  const auto* index = output.index_TK.data_ptr<std::int32_t>();
  const T* prob = output.prob_TK.data_ptr<T>();
  const T* dprob = dprob_TK.data_ptr<T>();
  T* dlogits = dlogits_TE.data_ptr<T>();
  const std::int64_t n = shape.experts;
  const std::int64_t k = shape.top_k;
  std::int64_t num_routed = 0;
  for (std::int64_t t = 0; t < shape.tokens; ++t) num_routed += index[t * k] >= 0 ? 1 : 0;
  const double z_factor = num_routed > 0 ? 2.0 * options.z_loss * loss_scale / static_cast<double>(num_routed) : 0.0;
  const Backward<T> b{options, n, static_cast<T>(loss_scale), static_cast<T>(z_factor)};
  const T* slopes = options.has_balance_loss() ? output.slope_GE.data_ptr<T>() : nullptr;
  for_each_unit(shape, [&](std::int64_t, const Unit& unit) {
    RowBuffers<T> buffers(n, k, options.num_groups);
    const T* slope = slopes != nullptr ? slopes + unit.group * n : nullptr;
    for (std::int64_t t = unit.first; t < unit.last; ++t) {
      T* out = dlogits + t * n;
      const std::int32_t* chosen = index + t * k;
      if (chosen[0] < 0) {
        std::fill_n(out, n, T(0));
        continue;
      }
      const T* row = capped_row(options, logits + t * n, n, buffers.logits.data());
      if (options.score_function == ScoreFunction::kSoftmax) {
        softmax_backward(b, row, chosen, prob + t * k, dprob + t * k, slope, out);
      } else {
        score_backward(b, row, chosen, prob + t * k, dprob + t * k, slope, buffers, out);
      }
      if (options.logit_softcap == 0.0) continue;
      const auto cap = static_cast<T>(options.logit_softcap);
      for (std::int64_t e = 0; e < n; ++e) out[e] *= T(1) - (row[e] / cap) * (row[e] / cap);
    }
  });
}

}  // namespace

void router_forward(const RouterInput& input, const RouterOptions& options, RouterOutput& output) {
  const ZoneScope zone(Zone::kRouter);
  const Shape shape = checked_shape(input, output, options);
  check_forward(input, output, options, shape);
  if (input.logits_TE.is_cuda()) return cuda_ops().router_forward(input, options, output);
  if (input.logits_TE.scalar_type() == at::kDouble) {
    forward<double>(input, options, shape, output);
  } else {
    forward<float>(input, options, shape, output);
  }
}

void router_backward(const RouterInput& input, const RouterOutput& output, const Tensor& dprob_TK,
                     const RouterOptions& options, double loss_scale, Tensor& dlogits_TE) {
  const ZoneScope zone(Zone::kRouter);
  const Shape shape = checked_shape(input, output, options);
  const Tensor& logits = input.logits_TE;
  PRIMUS_CHECK(dprob_TK.sizes() == output.prob_TK.sizes() && dprob_TK.scalar_type() == logits.scalar_type() &&
                   dprob_TK.is_contiguous(),
               "router: dprob must be like prob");
  PRIMUS_CHECK(dlogits_TE.sizes() == logits.sizes() && dlogits_TE.scalar_type() == logits.scalar_type() &&
                   dlogits_TE.is_contiguous(),
               "router: dlogits must be like logits");
  if (logits.is_cuda()) {
    return cuda_ops().router_backward(input, output, dprob_TK, options, loss_scale, dlogits_TE);
  }
  if (logits.scalar_type() == at::kDouble) {
    backward<double>(input, output, dprob_TK, options, loss_scale, shape, dlogits_TE);
  } else {
    backward<float>(input, output, dprob_TK, options, loss_scale, shape, dlogits_TE);
  }
}

}  // namespace primus::ops
