#pragma once
// What the CPU router does to one token's row of experts. n: experts of the row.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "ops/router/router_options.hpp"
#include "ops/row_math.hpp"

namespace primus::ops::router {

constexpr double kSumEpsilon = 1e-20;  // Megatron's, under a sum of scores

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

/// out[e] = the score of row[e]; gives their sum.
template <typename T>
T sigmoid_scores(const T* row, std::int64_t n, T* out) {
  T sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t e = 0; e < n; ++e) {
    out[e] = fast_sigmoid(row[e]);
    sum += out[e];
  }
  return sum;
}
template <typename T>
T sqrt_softplus_scores(const T* row, std::int64_t n, T* out) {
  T sum = 0;
  for (std::int64_t e = 0; e < n; ++e) {
    // ln(1 + e^l) without overflow, and without losing e^l beside the 1.
    out[e] = std::sqrt(std::max(row[e], T(0)) + std::log1p(std::exp(-std::abs(row[e]))));
    sum += out[e];
  }
  return sum;
}
template <typename T>
T scores(ScoreFunction function, const T* row, std::int64_t n, T* out) {
  return function == ScoreFunction::kSigmoid ? sigmoid_scores(row, n, out) : sqrt_softplus_scores(row, n, out);
}

/// gradient[e] (of the scores) times d score / d logit.
template <typename T>
void through_scores(ScoreFunction function, const T* row, const T* score, std::int64_t n, T* gradient) {
  if (function == ScoreFunction::kSigmoid) {
    // σ(−l) is 1 − σ(l) without cancellation.
#pragma omp simd
    for (std::int64_t e = 0; e < n; ++e) gradient[e] *= score[e] * fast_sigmoid(-row[e]);
  } else {
    for (std::int64_t e = 0; e < n; ++e) {
      gradient[e] *= score[e] > T(0) ? fast_sigmoid(row[e]) / (T(2) * score[e]) : T(0);
    }
  }
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

/// Room for one row, reused from token to token.
template <typename T>
struct RowBuffers {
  explicit RowBuffers(std::int64_t n, std::int64_t k, std::int64_t groups)
      : logits(size(n)),
        score(size(n)),
        exponential(size(n)),
        choice(size(n)),
        value(size(std::max({k + 1, groups, n / groups}))),
        index(size(std::max({k + 1, groups, n / groups}))),
        group(size(groups)) {}

  std::vector<T> logits, score, exponential, choice, value;
  std::vector<std::int32_t> index;
  std::vector<T> group;

 private:
  static std::size_t size(std::int64_t n) { return static_cast<std::size_t>(n); }
};

/// choice[e] = −inf for every expert outside the token's groups: not 0, which would beat negative values.
template <typename T>
void keep_best_groups(const RouterOptions& options, std::int64_t n, RowBuffers<T>& buffers, T* choice) {
  const std::int64_t size = n / options.num_groups;
  const std::int64_t best =
      options.group_score == GroupScore::kMax ? 1 : std::max<std::int64_t>(1, options.top_k / options.group_top_k);
  for (std::int64_t g = 0; g < options.num_groups; ++g) {
    select_top_k(choice + g * size, size, std::min(best, size), buffers.value.data(), buffers.index.data());
    T sum = 0;
    for (std::int64_t i = 0; i < std::min(best, size); ++i) sum += buffers.value[static_cast<std::size_t>(i)];
    buffers.group[static_cast<std::size_t>(g)] = sum;
  }
  select_top_k(buffers.group.data(), options.num_groups, options.group_top_k, buffers.value.data(),
               buffers.index.data());
  std::sort(buffers.index.begin(), buffers.index.begin() + options.group_top_k);
  std::int64_t kept = 0;
  for (std::int64_t g = 0; g < options.num_groups; ++g) {
    if (kept < options.group_top_k && buffers.index[static_cast<std::size_t>(kept)] == g) {
      ++kept;
    } else {
      std::fill_n(choice + g * size, size, -std::numeric_limits<T>::infinity());
    }
  }
}

/// The choices of token t under forced balance.
inline void select_in_turn(std::int64_t n, std::int64_t k, std::int64_t t, std::int32_t* index) {
  for (std::int64_t i = 0; i < k; ++i) index[i] = static_cast<std::int32_t>((t * k + i) % n);
}

/// prob (logits of the chosen on entry) <- routing probabilities of the softmax. `maximum`, `sum`: of the whole row's
/// exponentials. A softmax over the chosen alone is taken from their own maximum, or it could vanish.
template <typename T>
void softmax_probabilities(const RouterOptions& options, T maximum, T sum, T* prob) {
  const std::int64_t k = options.top_k;
  const bool is_post = options.softmax_order == SoftmaxOrder::kPost;
  if (is_post) maximum = *std::max_element(prob, prob + k);
  T denominator = is_post ? T(0) : sum;
  for (std::int64_t i = 0; i < k; ++i) {
    prob[i] = fast_exp(prob[i] - maximum);
    if (is_post) denominator += prob[i];
  }
  const T factor = static_cast<T>(options.scaling_factor) / denominator;
  for (std::int64_t i = 0; i < k; ++i) prob[i] *= factor;
}

/// What the probabilities of the chosen are divided by: their sum, or with one choice nothing (it would always be 1).
template <typename T>
T chosen_denominator(const RouterOptions& options, const T* chosen_score) {
  if (options.top_k == 1) return T(1);
  T sum = 0;
  for (std::int64_t i = 0; i < options.top_k; ++i) sum += chosen_score[i];
  return sum + static_cast<T>(kSumEpsilon);
}

}  // namespace primus::ops::router
