#include "data/blended_dataset.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <random>
#include <set>

#include "base/error.hpp"
#include "data/golden_file.hpp"
#include "data/temporary_folder.hpp"

namespace primus::data {
namespace {

using testing::ElementsAre;

constexpr std::int64_t kPlenty = 1000000;

std::vector<int> picks(const std::vector<double>& weights, std::int64_t size) {
  std::vector<int> result;
  for (const BlendEntry& entry : build_blend(weights, std::vector<std::int64_t>(weights.size(), kPlenty), size)) {
    result.push_back(entry.dataset);
  }
  return result;
}

TEST(Blend, MatchesPublishedVectors) {
  EXPECT_THAT(picks({.3, .3, .4}, 12), ElementsAre(2, 0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 2));
  EXPECT_THAT(picks({.5, .25, .25}, 12), ElementsAre(0, 1, 2, 0, 0, 1, 2, 0, 0, 1, 2, 0));
  EXPECT_THAT(picks({.1, .9}, 12), ElementsAre(1, 0, 1, 1, 1, 1, 1, 1, 1, 1, 0, 1));
  EXPECT_THAT(picks({.999, .001}, 8), ElementsAre(0, 1, 0, 0, 0, 0, 0, 0));
}

TEST(Blend, EqualsTheIndependentVersion) {
  for (const GoldenCase& golden : golden_cases("data_order.txt", "blend")) {
    std::vector<double> weights;
    for (const std::string& word : golden.words("weights")) weights.push_back(std::strtod(word.c_str(), nullptr));
    std::vector<std::int64_t> limits(weights.size(), kPlenty);
    if (golden.has("limits")) limits = golden.integers("limits");
    std::vector<std::int64_t> datasets, samples, targets, surplus;
    for (const BlendEntry& entry : build_blend(weights, limits, golden.integer("size"))) {
      datasets.push_back(entry.dataset);
      samples.push_back(entry.sample);
    }
    golden.expect_array("datasets", datasets);
    golden.expect_array("samples", samples);
    for (const double weight : weights) {
      targets.push_back(blend_target(golden.integer("size"), weight));
      surplus.push_back(blend_surplus(targets.back()));
    }
    golden.expect_array("targets", targets);
    golden.expect_array("surplus", surplus);
  }
}

/// Counts how often each sample is read.
class CountedSet final : public SampleSet {
 public:
  explicit CountedSet(std::int64_t size) : size_(size) {}
  const std::string& name() const override { return name_; }
  std::int64_t num_samples() const override { return size_; }
  void read(std::int64_t sample, std::span<std::int64_t> out) const override {
    ASSERT_GE(sample, 0);
    ASSERT_LT(sample, size_);
    out[0] = sample;
  }

 private:
  std::string name_ = "counted";
  std::int64_t size_;
};

std::vector<std::unique_ptr<SampleSet>> sets_of(const std::vector<std::int64_t>& sizes) {
  std::vector<std::unique_ptr<SampleSet>> sets;
  for (const std::int64_t size : sizes) sets.push_back(std::make_unique<CountedSet>(size));
  return sets;
}

// Tiny weights once asked for samples that were never built.
TEST(Blend, NoPlacePointsOutside) {
  for (const std::vector<double>& weights :
       std::vector<std::vector<double>>{{.001, .999}, {.999, .001}, {1e-9, 1.0}, {.5, .5}, {.001, .001, .998}}) {
    const std::vector<double> shares = normalized(weights);
    for (std::int64_t size = 1; size < 400; ++size) {
      std::vector<std::int64_t> built;
      for (const double share : shares) built.push_back(blend_surplus(blend_target(size, share)));
      const BlendedDataset blend(sets_of(built), weights, size);
      ASSERT_GE(blend.num_samples(), size);
      std::vector<std::int64_t> counts(weights.size(), 0);
      for (const BlendEntry& entry : blend.entries()) {
        ASSERT_EQ(entry.sample, counts[static_cast<std::size_t>(entry.dataset)]++);
        ASSERT_LT(entry.sample, built[static_cast<std::size_t>(entry.dataset)]);
      }
    }
  }
}

TEST(Blend, StaysNearItsWeights) {
  std::mt19937 random(1);
  for (int round = 0; round < 30; ++round) {
    std::vector<double> weights(2 + random() % 6);
    for (double& weight : weights) weight = 1 + static_cast<double>(random() % 1000);
    const std::vector<double> shares = normalized(weights);
    std::vector<double> counts(weights.size(), 0.0);
    double place = 0.0;
    for (const BlendEntry& entry : build_blend(shares, std::vector<std::int64_t>(weights.size(), kPlenty), 3000)) {
      counts[static_cast<std::size_t>(entry.dataset)] += 1.0;
      place += 1.0;
      for (std::size_t i = 0; i < shares.size(); ++i) {
        ASSERT_LT(std::abs(counts[i] - shares[i] * place), static_cast<double>(weights.size()));
      }
    }
  }
}

TEST(Blend, WithoutWeightsUsesEverySampleOnce) {
  const std::vector<std::int64_t> sizes = {7, 1, 0, 40, 13};
  const BlendedDataset blend(sets_of(sizes), std::nullopt, std::nullopt);
  EXPECT_EQ(blend.num_samples(), 61);
  std::set<std::pair<int, std::int64_t>> seen;
  for (const BlendEntry& entry : blend.entries()) {
    EXPECT_LT(entry.sample, sizes[static_cast<std::size_t>(entry.dataset)]);
    EXPECT_TRUE(seen.emplace(entry.dataset, entry.sample).second);
  }
  EXPECT_EQ(BlendedDataset(sets_of(sizes), std::nullopt, 10).num_samples(), 10);
  EXPECT_EQ(BlendedDataset(sets_of(sizes), std::nullopt, 100).num_samples(), 61);
  EXPECT_EQ(BlendedDataset(sets_of({0, 0}), std::nullopt, 100).num_samples(), 0);
}

TEST(Blend, ZeroWeightMeansNever) {
  const BlendedDataset blend(sets_of({100, 100}), std::vector<double>{0.0, 1.0}, 50);
  for (const BlendEntry& entry : blend.entries()) EXPECT_EQ(entry.dataset, 1);
}

TEST(Blend, AWeightedSetWithoutSamplesIsNamed) {
  const std::string message = user_error([] { BlendedDataset(sets_of({0, 100}), std::vector<double>{.5, .5}, 50); });
  EXPECT_THAT(message, testing::HasSubstr("counted: has no sample"));
}

TEST(ParseBlend, ReadsEveryForm) {
  const auto parse = [](const std::vector<std::string>& list) { return parse_blend(list, "data_path"); };
  EXPECT_THAT(parse({"a"}).prefixes, ElementsAre("a"));
  EXPECT_FALSE(parse({"a"}).weights);
  EXPECT_THAT(parse({"a", "b"}).prefixes, ElementsAre("a", "b"));
  EXPECT_FALSE(parse({"a", "b"}).weights);
  EXPECT_THAT(parse({" 0.3 ", "a", "7e-1", "b"}).prefixes, ElementsAre("a", "b"));
  EXPECT_THAT(*parse({"0.3", "a", "7e-1", "b"}).weights, ElementsAre(.3, .7));
  EXPECT_THAT(parse({"30 a  70 b"}).prefixes, ElementsAre("a", "b"));
  EXPECT_THAT(*parse({"30 a  70 b"}).weights, ElementsAre(30, 70));
  EXPECT_THAT(parse({"1", "2", "3"}).prefixes, ElementsAre("1", "2", "3"));  // an odd list has no weights
}

TEST(ParseBlend, RefusesWithTheKey) {
  for (const std::vector<std::string>& list : std::vector<std::vector<std::string>>{{},
                                                                                    {" "},
                                                                                    {"0.5", "a", "b", "c"},
                                                                                    {"0.5", "a", "b"},
                                                                                    {"0.5 a b"},
                                                                                    {"-1", "a", "2", "b"},
                                                                                    {"0", "a", "0", "b"},
                                                                                    {"nan", "a"},
                                                                                    {"inf", "a"}}) {
    const std::string message = user_error([&] { parse_blend(list, "train_data_path"); });
    EXPECT_THAT(message, testing::HasSubstr("train_data_path")) << testing::PrintToString(list);
  }
}

}  // namespace
}  // namespace primus::data
