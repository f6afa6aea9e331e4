#include "base/philox.hpp"

#include <gtest/gtest.h>

#include <cmath>

namespace primus {
namespace {

using Words = std::array<std::uint32_t, 4>;

// The published vectors of Philox4x32-10: counter words 0 and 1 are the block, 2 and 3 the stream.
TEST(Philox, MatchesPublishedVectors) {
  EXPECT_EQ(Philox(0, std::uint64_t{0}).words(0), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(Philox(~0ULL, ~0ULL).words(~0ULL), (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox(0x299f31d0a4093822ULL, 0x0370734413198a2eULL).words(0x85a308d3243f6a88ULL),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, IsUsableAtCompileTime) {
  static_assert(Philox(0, std::uint64_t{0}).words(0)[0] == 0x6627e8d5);
  static_assert(stream_id("") == 0xcbf29ce484222325ULL);
  static_assert(stream_id("a") == 0xaf63dc4c8601ec8cULL);  // FNV-1a's own vector
}

TEST(Philox, StreamsAndSeedsDiffer) {
  EXPECT_NE(Philox(1, "a").words(0), Philox(1, "b").words(0));
  EXPECT_NE(Philox(1, "a").words(0), Philox(2, "a").words(0));
  EXPECT_NE(Philox(1, "a").words(0), Philox(1, "a").words(1));
}

TEST(Philox, UniformStaysInsideAndFillsTheInterval) {
  const Philox random(7, "uniform");
  constexpr int kNumDraws = 200000;
  std::array<int, 20> bins{};
  for (int i = 0; i < kNumDraws; ++i) {
    const double value = random.uniform(static_cast<std::uint64_t>(i));
    ASSERT_GT(value, 0.0);
    ASSERT_LT(value, 1.0);
    ++bins[static_cast<std::size_t>(value * 20.0)];
  }
  double chi_square = 0.0;
  for (const int count : bins) chi_square += std::pow(count - kNumDraws / 20.0, 2) / (kNumDraws / 20.0);
  EXPECT_LT(chi_square, 43.8);  // 99.9 % of 19 degrees of freedom
}

TEST(Philox, NormalHasTheMomentsAndTailsOfANormal) {
  const Philox random(7, "normal");
  constexpr int kNumDraws = 400000;
  double sum = 0.0, squares = 0.0, cubes = 0.0, fourths = 0.0, neighbours = 0.0, previous = 0.0;
  int num_beyond_two = 0;
  for (int i = 0; i < kNumDraws; ++i) {
    const double x = random.normal(static_cast<std::uint64_t>(i));
    sum += x;
    squares += x * x;
    cubes += x * x * x;
    fourths += x * x * x * x;
    neighbours += x * previous;
    previous = x;
    num_beyond_two += std::abs(x) > 2.0 ? 1 : 0;
  }
  // Five standard errors each.
  const double root = std::sqrt(static_cast<double>(kNumDraws));
  EXPECT_NEAR(sum / kNumDraws, 0.0, 5.0 / root);
  EXPECT_NEAR(squares / kNumDraws, 1.0, 5.0 * std::sqrt(2.0) / root);
  EXPECT_NEAR(cubes / kNumDraws, 0.0, 5.0 * std::sqrt(15.0) / root);
  EXPECT_NEAR(fourths / kNumDraws, 3.0, 5.0 * std::sqrt(96.0) / root);
  EXPECT_NEAR(neighbours / kNumDraws, 0.0, 5.0 / root);
  EXPECT_NEAR(num_beyond_two / static_cast<double>(kNumDraws), 0.0455003, 5.0 * 0.21 / root);
}

TEST(Philox, ValuesDoNotDependOnWhoDraws) {
  const Philox whole(3, "w"), part(3, "w");
  for (std::uint64_t i = 0; i < 64; ++i) {
    EXPECT_EQ(whole.normal(i), part.normal(i));
    EXPECT_TRUE(std::isfinite(whole.normal(~0ULL - i)));
  }
}

}  // namespace
}  // namespace primus
