#include "data/numpy_random.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "data/golden_file.hpp"
#include "data/mock_dataset.hpp"

namespace primus::data {
namespace {

using testing::ElementsAre;

TEST(NumpyRandomState, ShufflesAsPublished) {
  NumpyRandomState random(1234);
  std::vector<int> values(10);
  std::iota(values.begin(), values.end(), 0);
  random.shuffle(std::span(values));
  EXPECT_THAT(values, ElementsAre(7, 2, 9, 1, 0, 8, 4, 5, 6, 3));
  std::iota(values.begin(), values.end(), 0);
  random.shuffle(std::span(values));
  EXPECT_THAT(values, ElementsAre(7, 3, 5, 1, 4, 8, 0, 2, 6, 9));
}

TEST(NumpyRandomState, FirstWords) {
  NumpyRandomState random(1234);
  EXPECT_EQ(random.interval(0xffffffffULL), 822569775U);
  EXPECT_EQ(random.interval(0xffffffffULL), 2137449171U);
  EXPECT_EQ(random.interval(0xffffffffULL), 2671936806U);
}

TEST(NumpyRandomState, ShufflesAsNumPy) {
  for (const GoldenCase& golden : golden_cases("data_order.txt", "shuffle")) {
    NumpyRandomState random(static_cast<std::uint32_t>(golden.integer("seed")));
    for (const char* key : {"first", "second"}) {
      std::vector<std::int64_t> values(static_cast<std::size_t>(golden.integer("size")));
      std::iota(values.begin(), values.end(), 0);
      random.shuffle(std::span(values));
      golden.expect_array(key, values);
    }
  }
}

TEST(NumpyRandomState, WideIntervalsStayInside) {
  NumpyRandomState random(5);
  for (const std::uint64_t max :
       {std::uint64_t{0}, std::uint64_t{1}, (std::uint64_t{1} << 33) + 5, ~std::uint64_t{0}}) {
    for (int i = 0; i < 100; ++i) EXPECT_LE(random.interval(max), max);
  }
}

TEST(NumpyGenerator, DrawsAsNumPy) {
  for (const GoldenCase& golden : golden_cases("data_order.txt", "generator")) {
    const auto seed = static_cast<std::uint64_t>(golden.integer("seed"));
    NumpyGenerator raw(seed);
    for (const std::string& word : golden.words("raw")) EXPECT_EQ(std::to_string(raw.next64()), word) << golden.name;
    NumpyGenerator random(seed);
    for (const std::int64_t value : golden.integers("small")) EXPECT_EQ(random.integer32(1, 7), value) << golden.name;
    for (const std::int64_t value : golden.integers("wide")) {
      EXPECT_EQ(random.integer32(-2147483647 - 1, 2147483647), value) << golden.name;
    }
  }
}

TEST(MockDataset, HasMegatronsLengths) {
  const MockDataset mock(131072, 131071);
  std::vector<std::int64_t> lengths;
  for (std::int64_t i = 0; i < mock.num_sequences(); ++i) lengths.push_back(mock.length(i));
  EXPECT_THAT(std::vector(lengths.begin(), lengths.begin() + 8),
              ElementsAre(3484, 2609, 2094, 1105, 1261, 168, 309, 68));
  EXPECT_EQ(std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0}), 204637097);
  golden_cases("data_order.txt", "mock").front().expect_array("lengths", lengths);
}

TEST(MockDataset, CountsAndEndsEachDocument) {
  const MockDataset mock(50, 49);
  std::vector<std::int64_t> tokens(68);
  mock.read(7, 0, tokens);
  for (std::int64_t i = 0; i < 67; ++i) EXPECT_EQ(tokens[static_cast<std::size_t>(i)], (i + 1) % 50);
  EXPECT_EQ(tokens.back(), 49);
  std::vector<std::int64_t> part(3);
  mock.read(7, 65, part);
  EXPECT_THAT(part, ElementsAre(16, 17, 49));
}

}  // namespace
}  // namespace primus::data
