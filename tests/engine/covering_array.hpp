#pragma once
// Pairwise covering arrays: few rows in which every two options of different dimensions stand together at least once.
#include <random>
#include <set>
#include <tuple>
#include <vector>

namespace primus::test {

/// One row: the index of the option chosen in each dimension.
using Row = std::vector<int>;
/// (dimension, option, later dimension, option).
using Pair = std::tuple<int, int, int, int>;

inline std::set<Pair> pairs_of(const Row& row) {
  std::set<Pair> pairs;
  for (int a = 0; a < std::ssize(row); ++a) {
    for (int b = a + 1; b < std::ssize(row); ++b) {
      pairs.insert({a, row[static_cast<std::size_t>(a)], b, row[static_cast<std::size_t>(b)]});
    }
  }
  return pairs;
}

inline std::set<Pair> all_pairs(const std::vector<int>& sizes) {
  std::set<Pair> pairs;
  for (int a = 0; a < std::ssize(sizes); ++a) {
    for (int b = a + 1; b < std::ssize(sizes); ++b) {
      for (int i = 0; i < sizes[static_cast<std::size_t>(a)]; ++i) {
        for (int j = 0; j < sizes[static_cast<std::size_t>(b)]; ++j) pairs.insert({a, i, b, j});
      }
    }
  }
  return pairs;
}

/// Greedy: each row is the best of many random ones, begun from a pair that is still missing.
inline std::vector<Row> covering_array(const std::vector<int>& sizes, std::uint64_t seed) {
  constexpr int kCandidates = 60;
  std::mt19937_64 generator(seed);
  std::set<Pair> missing = all_pairs(sizes);
  std::vector<Row> rows;
  while (!missing.empty()) {
    Row best;
    int most = -1;
    for (int candidate = 0; candidate < kCandidates; ++candidate) {
      Row row;
      for (const int size : sizes) row.push_back(static_cast<int>(generator() % static_cast<std::uint64_t>(size)));
      const auto [a, i, b, j] = *missing.begin();
      row[static_cast<std::size_t>(a)] = i;
      row[static_cast<std::size_t>(b)] = j;
      int covered = 0;
      for (const Pair& pair : pairs_of(row)) covered += static_cast<int>(missing.count(pair));
      if (covered > most) {
        most = covered;
        best = row;
      }
    }
    for (const Pair& pair : pairs_of(best)) missing.erase(pair);
    rows.push_back(best);
  }
  return rows;
}

}  // namespace primus::test
