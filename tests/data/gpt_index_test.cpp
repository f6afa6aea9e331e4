#include "data/gpt_index.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "base/error.hpp"
#include "data/golden_file.hpp"
#include "data/gpt_dataset.hpp"

namespace primus::data {
namespace {

using testing::ElementsAre;

/// Token p of sequence s is 100000 * s + p.
class CountingStore final : public TokenStore {
 public:
  explicit CountingStore(std::vector<std::int32_t> lengths) : lengths_(std::move(lengths)) {}
  const std::string& name() const override { return name_; }
  std::int64_t num_sequences() const override { return static_cast<std::int64_t>(lengths_.size()); }
  std::int64_t length(std::int64_t sequence) const override { return lengths_[static_cast<std::size_t>(sequence)]; }
  void read(std::int64_t sequence, std::int64_t offset, std::span<std::int64_t> out) const override {
    ASSERT_GE(offset, 0);
    ASSERT_LE(offset + static_cast<std::int64_t>(out.size()), length(sequence));
    for (std::size_t i = 0; i < out.size(); ++i) {
      out[i] = 100000 * sequence + offset + static_cast<std::int64_t>(i);
    }
  }
  const std::vector<std::int32_t>& lengths() const { return lengths_; }

 private:
  std::string name_ = "counting";
  std::vector<std::int32_t> lengths_;
};

std::vector<std::int64_t> sample_of(const GptDataset& dataset, std::int64_t sample, std::int64_t seq_length) {
  std::vector<std::int64_t> tokens(static_cast<std::size_t>(seq_length) + 1, -7);
  dataset.read(sample, tokens);
  return tokens;
}

TEST(GptIndex, EqualsTheIndependentVersion) {
  for (const GoldenCase& golden : golden_cases("data_order.txt", "gpt")) {
    SCOPED_TRACE(golden.name);
    std::vector<std::int32_t> lengths;
    for (const std::int64_t length : golden.integers("lengths")) lengths.push_back(static_cast<std::int32_t>(length));
    GptIndexOptions options;
    options.range = {golden.integers("range")[0], golden.integers("range")[1]};
    options.seq_length = golden.integer("seq_length");
    if (golden.has("num_samples")) options.num_samples = golden.integer("num_samples");
    options.seed = static_cast<std::uint32_t>(golden.integer("seed"));
    if (golden.integer("keep_partial") != 0) options.partial_sample = PartialSample::kKept;

    const GptDataset dataset(std::make_shared<CountingStore>(lengths), options);
    const GptIndex& index = dataset.index();
    EXPECT_EQ(index.epochs.num_epochs, golden.integer("epochs"));
    const bool is_apart = index.epochs.final_epoch == EpochPlan::FinalEpoch::kShuffledApart;
    EXPECT_EQ(is_apart ? index.epochs.num_samples_before_final : -1, golden.integer("before_final"));
    golden.expect_array("documents", index.documents);
    std::vector<std::int64_t> starts;
    for (const SampleStart& start : index.samples) starts.insert(starts.end(), {start.position, start.offset});
    golden.expect_array("samples", starts);
    golden.expect_array("shuffle", index.shuffle);
    if (options.num_samples) {
      EXPECT_GE(dataset.num_samples(), *options.num_samples);
    }
    if (dataset.num_samples() == 0) continue;
    golden.expect_array("first_sample", sample_of(dataset, 0, options.seq_length));
    golden.expect_array("last_sample", sample_of(dataset, dataset.num_samples() - 1, options.seq_length));
  }
}

// The published vectors, typed in here so that a mistake of the script cannot hide.
TEST(GptIndex, MatchesPublishedVectors) {
  const auto store = std::make_shared<CountingStore>(std::vector<std::int32_t>{5, 9, 4, 12, 7, 3});
  GptIndexOptions options;
  options.range = {0, 6};
  options.seq_length = 8;
  options.num_samples = 6;
  const GptDataset six(store, options);
  EXPECT_EQ(six.index().epochs.num_epochs, 2);
  EXPECT_EQ(six.index().epochs.final_epoch, EpochPlan::FinalEpoch::kShuffledApart);
  EXPECT_THAT(six.index().documents, ElementsAre(2, 1, 5, 0, 4, 3, 0, 4, 3, 2, 5, 1));
  using S = SampleStart;
  EXPECT_THAT(six.index().samples,
              ElementsAre(S{0, 0}, S{1, 4}, S{3, 0}, S{4, 3}, S{5, 4}, S{6, 0}, S{7, 3}, S{8, 4}, S{9, 0}, S{11, 1}));
  EXPECT_THAT(six.index().shuffle, ElementsAre(1, 3, 0, 2, 5, 4, 7, 8, 6));
  EXPECT_THAT(sample_of(six, 0, 8), ElementsAre(100004, 100005, 100006, 100007, 100008, 500000, 500001, 500002, 0));

  options.num_samples = 12;
  const GptDataset twelve(store, options);
  EXPECT_EQ(twelve.index().epochs.num_epochs, 3);
  EXPECT_EQ(twelve.index().epochs.final_epoch, EpochPlan::FinalEpoch::kShuffledWithOthers);
  EXPECT_THAT(twelve.index().documents, ElementsAre(5, 3, 5, 4, 1, 2, 0, 2, 4, 1, 1, 3, 2, 4, 0, 5, 0, 3));
  EXPECT_THAT(twelve.index().shuffle, ElementsAre(7, 10, 4, 1, 11, 8, 3, 9, 13, 12, 5, 0, 2, 6));

  options.num_samples = 20;
  const GptDataset twenty(store, options);
  EXPECT_EQ(twenty.index().epochs.num_epochs, 5);
  const auto& documents = twenty.index().documents;
  EXPECT_THAT(std::vector(documents.end() - 6, documents.end()), ElementsAre(5, 1, 4, 3, 0, 2));
  const auto& shuffle = twenty.index().shuffle;
  EXPECT_THAT(std::vector(shuffle.begin(), shuffle.begin() + 5), ElementsAre(10, 5, 8, 17, 15));
  EXPECT_THAT(std::vector(shuffle.end() - 5, shuffle.end()), ElementsAre(20, 21, 19, 23, 22));
}

// Inputs of all samples together are every token as often as there are epochs, but for those after the last sample.
TEST(GptIndex, EveryTokenIsAnInputOnceAnEpoch) {
  std::mt19937 random(3);
  for (int round = 0; round < 60; ++round) {
    std::vector<std::int32_t> lengths(1 + random() % 20);
    for (std::int32_t& length : lengths) length = static_cast<std::int32_t>(random() % 30);
    lengths.front() += 2;
    GptIndexOptions options;
    options.range = {0, static_cast<std::int64_t>(lengths.size())};
    options.seq_length = 1 + random() % 12;
    options.num_samples = random() % 200;
    options.seed = random();
    if (round % 2 == 1) options.partial_sample = PartialSample::kKept;
    const GptDataset dataset(std::make_shared<CountingStore>(lengths), options);

    std::map<std::int64_t, std::int64_t> seen;
    std::int64_t num_inputs = 0;
    for (std::int64_t i = 0; i < dataset.num_samples(); ++i) {
      const std::vector<std::int64_t> tokens = sample_of(dataset, i, options.seq_length);
      for (std::size_t p = 0; p + 1 < tokens.size(); ++p) {
        if (tokens[p + 1] == kNoToken) break;
        ++seen[tokens[p]];
        ++num_inputs;
      }
    }
    const std::int64_t epochs = dataset.index().epochs.num_epochs;
    std::int64_t num_tokens = 0;
    for (const std::int32_t length : lengths) num_tokens += length;
    const std::int64_t num_steps = epochs * num_tokens - 1;
    const std::int64_t expected = options.partial_sample == PartialSample::kKept
                                      ? num_steps
                                      : num_steps / options.seq_length * options.seq_length;
    EXPECT_EQ(num_inputs, expected);
    std::int64_t num_missing = 0;
    for (const auto& [token, count] : seen) {
      EXPECT_LE(count, epochs) << token;
      num_missing += epochs - count;
    }
    num_missing += epochs * (num_tokens - static_cast<std::int64_t>(seen.size()));
    EXPECT_EQ(num_missing, epochs * num_tokens - expected);
  }
}

TEST(GptIndex, NoTokensNoSamples) {
  GptIndexOptions options;
  options.seq_length = 4;
  options.num_samples = 10;
  EXPECT_EQ(build_gpt_index({}, options).num_samples(), 0);
  const std::vector<std::int32_t> empty = {0, 0};
  options.range = {0, 2};
  EXPECT_EQ(build_gpt_index(empty, options).num_samples(), 0);
  options.num_samples.reset();
  const std::vector<std::int32_t> one = {1};
  options.range = {0, 1};
  EXPECT_EQ(build_gpt_index(one, options).num_samples(), 0);  // a token without a successor teaches nothing
}

TEST(Splits, EqualTheIndependentVersion) {
  for (const GoldenCase& golden : golden_cases("data_order.txt", "split")) {
    const auto ranges = split_ranges(golden.words("split").front(), golden.integer("num_sequences"));
    const std::vector<std::int64_t> bounds = golden.integers("bounds");
    for (std::size_t i = 0; i < kNumSplits; ++i) {
      EXPECT_EQ(ranges[i].begin, bounds[i]) << golden.name;
      EXPECT_EQ(ranges[i].end, bounds[i + 1]) << golden.name;
    }
  }
}

TEST(Splits, RefuseWhatIsNoSplit) {
  for (const char* text : {"", "0,0,0", "1,2,3,4", "a,b", "1,-1", "1,,x", "nan", "inf,1"}) {
    EXPECT_THROW(split_ranges(text, 10), ConfigError) << text;
  }
  EXPECT_EQ(split_ranges("90, 10", 10)[1].size(), 1);
}

}  // namespace
}  // namespace primus::data
