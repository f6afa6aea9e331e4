#pragma once
// Ways of choosing experts that look at all tokens of the micro-batch at once. On the CPU.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <vector>

namespace primus::ops::router {

/// A logit as the scores see it.
template <typename T>
T capped(T logit, T cap) {
  return cap == T(0) ? logit : cap * std::tanh(logit / cap);
}

/// Sinkhorn's normalisation of exp(logits): rows and columns are scaled in turn until a step changes the columns'
/// scales by less than Megatron's bound. Every routed token then has weight 1/T and every expert 1/E. fp64 [T, E], rows
/// of filling zero; a logit that is no number is left to the caller, who names it. `softcap` 0: none.
template <typename T>
std::vector<double> sinkhorn(const T* logits, const bool* is_routed, std::int64_t tokens, std::int64_t experts,
                             double softcap) {
  constexpr double kTolerance = 1e-4;
  constexpr double kEpsilon = 1e-8;
  constexpr int kMaxRounds = 1000;  // Megatron's loop has no end where the scales oscillate
  std::vector<double> cost(static_cast<std::size_t>(tokens * experts), 0.0);
  std::int64_t routed = 0;
  for (std::int64_t t = 0; t < tokens; ++t) {
    if (is_routed != nullptr && !is_routed[t]) continue;
    ++routed;
    for (std::int64_t e = 0; e < experts; ++e) {
      const auto at = static_cast<std::size_t>(t * experts + e);
      cost[at] = std::exp(capped(static_cast<double>(logits[at]), softcap));
    }
  }
  if (routed == 0) return cost;
  std::vector<double> row(static_cast<std::size_t>(tokens), 1.0);
  std::vector<double> column(static_cast<std::size_t>(experts), 1.0);
  double change = 2.0 * kTolerance;
  for (int round = 0; change > kTolerance && round < kMaxRounds; ++round) {
    std::vector<double> column_sum(static_cast<std::size_t>(experts), 0.0);
    for (std::int64_t t = 0; t < tokens; ++t) {
      const double* of_token = cost.data() + t * experts;
      double sum = 0.0;
      for (std::int64_t e = 0; e < experts; ++e) sum += column[static_cast<std::size_t>(e)] * of_token[e];
      const double scale = 1.0 / (static_cast<double>(routed) * (sum + kEpsilon));
      row[static_cast<std::size_t>(t)] = scale;
      for (std::int64_t e = 0; e < experts; ++e) column_sum[static_cast<std::size_t>(e)] += scale * of_token[e];
    }
    change = 0.0;
    for (std::size_t e = 0; e < column.size(); ++e) {
      const double next = 1.0 / (static_cast<double>(experts) * (column_sum[e] + kEpsilon));
      change += std::abs(next - column[e]) / static_cast<double>(experts);
      column[e] = next;
    }
  }
  for (std::int64_t t = 0; t < tokens; ++t) {
    for (std::int64_t e = 0; e < experts; ++e) {
      cost[static_cast<std::size_t>(t * experts + e)] *=
          row[static_cast<std::size_t>(t)] * column[static_cast<std::size_t>(e)];
    }
  }
  return cost;
}

/// quantile_E[e]: the bias with which expert e would win n·K/E (rounded down) of the n routed tokens, if everything
/// else stayed: the value of that rank of logit − threshold over the tokens, where a token's threshold is what a choice
/// had to beat (its (K+1)-th value). 0 without tokens.
template <typename T>
void balancing_quantiles(const T* logits, const bool* is_routed, const T* threshold, std::int64_t tokens,
                         std::int64_t experts, std::int64_t top_k, double softcap, T* quantile_E) {
  std::vector<T> column;
  for (std::int64_t e = 0; e < experts; ++e) {
    column.clear();
    for (std::int64_t t = 0; t < tokens; ++t) {
      if (is_routed == nullptr || is_routed[t])
        column.push_back(capped(logits[t * experts + e], static_cast<T>(softcap)) - threshold[t]);
    }
    const auto n = static_cast<std::int64_t>(column.size());
    if (n == 0) {
      quantile_E[e] = T(0);
      continue;
    }
    const std::int64_t rank = std::min(n * top_k / experts, n - 1);
    std::nth_element(column.begin(), column.begin() + rank, column.end(), std::greater<T>());
    quantile_E[e] = column[static_cast<std::size_t>(rank)];
  }
}

}  // namespace primus::ops::router
