#pragma once
// Random legal sizes of a rank grid.
#include <random>

#include "layout/rank_grid.hpp"
#include "support/soak.hpp"

namespace primus::test {

/// How many random cases a property test runs: 10,000 in the long tier.
inline int num_random_cases(int in_short_tier) {
  return rounds(in_short_tier, 10'000);
}

inline std::int64_t one_of(std::mt19937_64& generator, std::initializer_list<std::int64_t> values) {
  return values.begin()[generator() % values.size()];
}

/// Both foldings divide the ranks of a stage; up to some thousand ranks.
inline layout::GridSizes random_grid_sizes(std::mt19937_64& generator) {
  layout::GridSizes sizes{.tensor = one_of(generator, {1, 1, 2, 3, 4}),
                          .context = one_of(generator, {1, 1, 2, 4}),
                          .pipeline = one_of(generator, {1, 2, 3, 4, 6}),
                          .expert = one_of(generator, {1, 2, 4, 6}),
                          .expert_tensor = one_of(generator, {1, 1, 2})};
  const std::int64_t stage =
      std::lcm(sizes.tensor * sizes.context, sizes.expert * sizes.expert_tensor) * one_of(generator, {1, 1, 2, 3});
  sizes.world = stage * sizes.pipeline;
  return sizes;
}

}  // namespace primus::test
