#include "diag/op_timing.hpp"

#include <gtest/gtest.h>

namespace primus::diag {
namespace {

TEST(OpTiming, MedianAndItsDeviation) {
  const Timing timing = timing_of({5.0, 1.0, 100.0, 4.0, 7.0});
  EXPECT_EQ(timing.median_us, 5.0);
  EXPECT_EQ(timing.deviation_us, 2.0);  // of 0, 4, 95, 1, 2
  EXPECT_EQ(timing.best_us, 1.0);
}

TEST(OpTiming, CallsAreNumberedAndTheFirstTwoDoNotCount) {
  std::vector<int> numbers;
  const Timing timing = measure_on_cpu([&](int i) { numbers.push_back(i); }, 0.0);
  ASSERT_EQ(numbers.size(), 9U);
  for (int i = 0; i < 9; ++i) EXPECT_EQ(numbers[static_cast<std::size_t>(i)], i);
  EXPECT_LE(timing.best_us, timing.median_us);
}

TEST(OpTiming, TimeIsMeasured) {
  const Timing timing = measure_on_cpu(
      [](int) {
        const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(2);
        while (std::chrono::steady_clock::now() < end) {
        }
      },
      0.0);
  EXPECT_GE(timing.best_us, 2000.0);
}

}  // namespace
}  // namespace primus::diag
