#include "data/sampler.hpp"

#include <gtest/gtest.h>

#include <set>
#include <thread>

#include "base/error.hpp"
#include "data/golden_file.hpp"

namespace primus::data {
namespace {

TEST(Sampler, CyclicEqualsTheIndependentVersion) {
  for (const GoldenCase& golden : golden_cases("data_order.txt", "cyclic")) {
    golden.expect_array("order", cyclic_order(static_cast<std::uint64_t>(golden.integer("seed")),
                                              golden.integer("epoch"), golden.integer("size")));
  }
}

TEST(Sampler, CyclicTakesEverySampleOnceAnEpoch) {
  const Sampler sampler(DataloaderType::kCyclic, 9, 37);
  for (std::int64_t epoch = 0; epoch < 5; ++epoch) {
    std::set<std::int64_t> seen;
    for (std::int64_t i = 0; i < 37; ++i) seen.insert(sampler.at(epoch * 37 + i));
    EXPECT_EQ(seen.size(), 37U);
    EXPECT_EQ(*seen.begin(), 0);
    EXPECT_EQ(*seen.rbegin(), 36);
  }
  EXPECT_NE(cyclic_order(9, 0, 37), cyclic_order(9, 1, 37));
  EXPECT_NE(cyclic_order(9, 0, 37), cyclic_order(10, 0, 37));
}

TEST(Sampler, PlacesDoNotDependOnTheOrderOfAsking) {
  const Sampler forward(DataloaderType::kCyclic, 1, 11), backward(DataloaderType::kCyclic, 1, 11);
  std::vector<std::int64_t> a(100), b(100);
  for (int i = 0; i < 100; ++i) a[static_cast<std::size_t>(i)] = forward.at(i);
  std::thread other([&] {
    for (int i = 0; i < 100; ++i) backward.at(i);
  });
  for (int i = 99; i >= 0; --i) b[static_cast<std::size_t>(i)] = backward.at(i);
  other.join();
  EXPECT_EQ(a, b);
}

TEST(Sampler, SingleIsTheDataSetsOwnOrder) {
  const Sampler sampler(DataloaderType::kSingle, 1, 3);
  EXPECT_EQ(sampler.at(0), 0);
  EXPECT_EQ(sampler.at(2), 2);
  EXPECT_THROW(sampler.at(3), InternalError);
}

}  // namespace
}  // namespace primus::data
