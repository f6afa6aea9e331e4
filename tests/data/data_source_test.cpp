#include "data/data_source.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "data/golden_file.hpp"
#include "data/temporary_folder.hpp"

namespace primus::data {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr std::int64_t kSeq = 8;

class DataSourceTest : public testing::Test {
 protected:
  DataSourceTest() {
    write_counting(folder_ / "a", {50, 31, 77, 20, 64, 90, 12, 45, 33, 71});
    write_counting(folder_ / "b", {40, 60, 80}, 100000);
  }

  DataOptions options(std::vector<std::string> data_path) const {
    DataOptions result;
    result.data_path = std::move(data_path);
    result.split = "80,20,0";
    result.seq_length = kSeq;
    result.vocab_size = 1000000;
    result.eod = 999999;
    result.requested = {100, 10, 0};
    return result;
  }

  static std::vector<std::int64_t> first_tokens(const GptBatch& batch) {
    std::vector<std::int64_t> result;
    for (std::int64_t row = 0; row < batch.batch_size; ++row) {
      result.push_back(batch.tokens[static_cast<std::size_t>(row * batch.seq_length)]);
    }
    return result;
  }

  TemporaryFolder folder_;
};

TEST_F(DataSourceTest, LabelsAreTheNextTokens) {
  const DataSource source(options({folder_ / "a"}));
  const GptBatch batch = source.read(Split::kTrain, {0, 0, 5, {}});
  EXPECT_EQ(batch.batch_size, 5);
  EXPECT_EQ(batch.seq_length, kSeq);
  ASSERT_EQ(batch.tokens.size(), 40U);
  EXPECT_EQ(batch.num_valid, 40);
  EXPECT_THAT(batch.loss_mask, Each(1.0F));
  for (std::size_t i = 0; i < 40; ++i) {
    if (i % kSeq != kSeq - 1) {
      EXPECT_EQ(batch.labels[i], batch.tokens[i + 1]);
    }
  }
}

// A token's document begins behind the last end of document before it; the end belongs to what it ends.
TEST_F(DataSourceTest, DocumentsBeginBehindTheirEnds) {
  DataOptions with = options({folder_ / "a"});
  std::set<std::size_t> num_documents;
  for (const std::int64_t eod : {0, 3, 2005, 2007, 999999}) {
    with.eod = eod;
    with.reset_position_ids = with.reset_attention_mask = true;
    const DataSource source(with);
    for (std::int64_t sample = 0; sample < 40; sample += 4) {
      const GptBatch batch = source.read(Split::kTrain, {sample, 0, 4, {}});
      ASSERT_EQ(batch.positions.size(), 32U);
      ASSERT_EQ(batch.first_keys.size(), 32U);
      std::set<std::int64_t> starts;
      for (std::int64_t row = 0; row < 4; ++row) {
        for (std::int64_t column = 0; column < kSeq; ++column) {
          const auto token = [&](std::int64_t c) { return batch.tokens[static_cast<std::size_t>(row * kSeq + c)]; };
          std::int64_t start = column;
          while (start > 0 && token(start - 1) != eod) --start;
          const auto i = static_cast<std::size_t>(row * kSeq + column);
          EXPECT_EQ(batch.first_keys[i], start);
          EXPECT_EQ(batch.positions[i], column - start);
          starts.insert(row * kSeq + start);
        }
      }
      num_documents.insert(starts.size());
    }
  }
  EXPECT_GT(num_documents.size(), 1U) << "the test meets an end of document";
}

TEST_F(DataSourceTest, BatchesSayNothingOfDocumentsUnlessAsked) {
  DataOptions with = options({folder_ / "a"});
  const GptBatch plain = DataSource(with).read(Split::kTrain, {0, 0, 2, {}});
  EXPECT_TRUE(plain.positions.empty());
  EXPECT_TRUE(plain.first_keys.empty());
  with.reset_position_ids = true;
  const GptBatch batch = DataSource(with).read(Split::kTrain, {0, 0, 2, {}});
  EXPECT_EQ(batch.positions.size(), 16U);
  EXPECT_TRUE(batch.first_keys.empty());
  EXPECT_EQ(batch.tokens, plain.tokens);
}

TEST_F(DataSourceTest, TrainAndValidationShareNoDocument) {
  const DataSource source(options({folder_ / "a"}));
  std::set<std::int64_t> train, valid;
  for (std::int64_t i = 0; i < source.num_samples(Split::kTrain); ++i) {
    for (const std::int64_t token : source.read(Split::kTrain, {i, 0, 1, {}}).labels) train.insert(token / 1000);
  }
  for (std::int64_t i = 0; i < source.num_samples(Split::kValid); ++i) {
    for (const std::int64_t token : source.read(Split::kValid, {i, 0, 1, {}}).labels) valid.insert(token / 1000);
  }
  EXPECT_THAT(train, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  EXPECT_THAT(valid, ElementsAre(8, 9));
  EXPECT_EQ(source.num_samples(Split::kTest), 0);
  EXPECT_THAT(user_error([&] { source.read(Split::kTest, {}); }), HasSubstr("the test split has no samples"));
}

// The global batch is the same set of samples, in the same order, however it is divided.
TEST_F(DataSourceTest, LayoutsOfAGlobalBatchAgree) {
  for (const DataloaderType type : {DataloaderType::kSingle, DataloaderType::kCyclic}) {
    DataOptions given = options({folder_ / "a"});
    given.dataloader_type = type;
    const DataSource source(given);
    const std::vector<std::int64_t> whole = first_tokens(source.read(Split::kTrain, {16, 0, 8, {}}));
    for (const auto& [micro, ranks] :
         std::vector<std::pair<std::int64_t, std::int64_t>>{{1, 1}, {2, 2}, {1, 4}, {4, 2}}) {
      std::vector<std::int64_t> joined;
      for (std::int64_t k = 0; k < 8 / (micro * ranks); ++k) {
        for (std::int64_t rank = 0; rank < ranks; ++rank) {
          const auto part = first_tokens(source.read(Split::kTrain, {16, k, micro, {rank, ranks}}));
          joined.insert(joined.end(), part.begin(), part.end());
        }
      }
      EXPECT_EQ(joined, whole) << micro << " " << ranks;
    }
  }
}

TEST_F(DataSourceTest, ARestartSeesWhatTheFirstRunSaw) {
  for (const DataloaderType type : {DataloaderType::kSingle, DataloaderType::kCyclic}) {
    DataOptions given = options({"0.3", folder_ / "a", "0.7", folder_ / "b"});
    given.split = "100,0,0";
    given.dataloader_type = type;
    const DataSource first(given), second(given);
    std::vector<GptBatch> seen;
    for (std::int64_t step = 0; step < 20; ++step) seen.push_back(first.read(Split::kTrain, {step * 4, 0, 4, {}}));
    for (std::int64_t step = 19; step >= 7; --step) {
      const GptBatch batch = second.read(Split::kTrain, {step * 4, 0, 4, {}});
      EXPECT_EQ(batch.tokens, seen[static_cast<std::size_t>(step)].tokens);
      EXPECT_EQ(batch.labels, seen[static_cast<std::size_t>(step)].labels);
    }
    given.seed = 5;
    EXPECT_NE(DataSource(given).read(Split::kTrain, {0, 0, 8, {}}).tokens,
              first.read(Split::kTrain, {0, 0, 8, {}}).tokens);
  }
}

TEST_F(DataSourceTest, SingleEndsCyclicGoesOn) {
  DataOptions given = options({folder_ / "a"});
  const DataSource single(given);
  const std::int64_t size = single.num_samples(Split::kTrain);
  EXPECT_GE(size, 100);
  single.read(Split::kTrain, {size - 2, 0, 2, {}});
  EXPECT_THAT(user_error([&] {
                single.read(Split::kTrain, {size - 1, 0, 2, {}});
              }),
              HasSubstr(fmt::format("the training data ends after {} samples", size)));
  given.dataloader_type = DataloaderType::kCyclic;
  const DataSource cyclic(given);
  std::multiset<std::vector<std::int64_t>> once, twice;
  for (std::int64_t i = 0; i < size; ++i) {
    once.insert(single.read(Split::kTrain, {i, 0, 1, {}}).tokens);
    twice.insert(cyclic.read(Split::kTrain, {size + i, 0, 1, {}}).tokens);
  }
  EXPECT_EQ(once, twice);
}

TEST_F(DataSourceTest, EndOfDocumentMaskAndPadding) {
  IndexedWriter writer(folder_ / "short", TokenType::kInt32);
  for (int document = 0; document < 2; ++document) {
    const std::vector<std::int64_t> tokens = {1, 2, 3, 9};
    writer.add_sequence(tokens);
    writer.end_document();
  }
  writer.finish();
  DataOptions given = options({});
  given.data_path.clear();
  given.valid_data_path = {folder_ / "short"};
  given.eod = 9;
  given.requested = {};
  EXPECT_EQ(DataSource(given).num_samples(Split::kValid), 0);  // 8 tokens fill no sample of 8 + 1
  given.drop_last_partial_validation_sequence = false;
  given.eod_mask_loss = true;
  const DataSource source(given);
  ASSERT_EQ(source.num_samples(Split::kValid), 1);
  const GptBatch batch = source.read(Split::kValid, {});
  EXPECT_THAT(batch.tokens, ElementsAre(1, 2, 3, 9, 1, 2, 3, 9));
  EXPECT_THAT(batch.labels, ElementsAre(2, 3, 9, 1, 2, 3, 9, 0));
  EXPECT_THAT(batch.loss_mask, ElementsAre(1, 1, 1, 0, 1, 1, 1, 0));
  EXPECT_EQ(batch.num_valid, 6);
}

TEST_F(DataSourceTest, BlendsAndOwnLists) {
  DataOptions given = options({folder_ / "a", folder_ / "b"});
  given.split = "100,0,0";
  given.requested = {1000, 0, 0};
  const DataSource exhaustive(given);
  EXPECT_EQ(exhaustive.num_samples(Split::kTrain), 492 / kSeq + 179 / kSeq);  // (493 - 1) and (180 - 1) tokens
  DataOptions own = options({});
  own.train_data_path = {folder_ / "a"};
  own.valid_data_path = {"1", folder_ / "b"};
  const DataSource source(own);
  EXPECT_LT(source.read(Split::kTrain, {}).tokens.front(), 100000);
  EXPECT_GE(source.read(Split::kValid, {}).tokens.front(), 100000);
  EXPECT_EQ(source.num_samples(Split::kTest), 0);
}

TEST_F(DataSourceTest, RareDataSetsAtAnySize) {
  for (std::int64_t size = 1; size < 60; ++size) {
    DataOptions given = options({".001", folder_ / "a", ".999", folder_ / "b"});
    given.split = "100,0,0";
    given.requested = {size, 0, 0};
    const DataSource source(given);
    EXPECT_GE(source.num_samples(Split::kTrain), size);
    source.read(Split::kTrain, {0, 0, source.num_samples(Split::kTrain), {}});
  }
}

TEST_F(DataSourceTest, MockDataNeedsNoFiles) {
  DataOptions given = options({});
  given.mock_data = true;
  given.seq_length = 1024;
  given.vocab_size = 5000;
  given.eod = 4999;
  const DataSource source(given);
  const GptBatch batch = source.read(Split::kTrain, {0, 0, 4, {}});
  EXPECT_EQ(batch.num_valid, 4 * 1024);
  EXPECT_GT(source.num_samples(Split::kTest), 0);
  for (std::size_t i = 0; i < batch.tokens.size(); ++i) {
    EXPECT_TRUE(batch.labels[i] == batch.tokens[i] + 1 || batch.labels[i] == 4999 || batch.tokens[i] == 4999);
  }
}

TEST_F(DataSourceTest, NamesEveryFaultOfItsOptions) {
  DataOptions given;
  given.seed = -1;
  try {
    DataSource source(given);
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.problems().size(), 4U) << error.what();
    for (const char* key : {"data_path", "seq_length", "seed", "vocab_size"}) EXPECT_THAT(error.what(), HasSubstr(key));
  }
  DataOptions both = options({folder_ / "a"});
  both.mock_data = true;
  EXPECT_THAT(user_error([&] { DataSource source(both); }), HasSubstr("mock_data"));
  both.mock_data = false;
  both.train_data_path = {folder_ / "b"};
  EXPECT_THAT(user_error([&] { DataSource source(both); }), HasSubstr("train_data_path"));
  EXPECT_THAT(user_error([&] { DataSource source(options({folder_ / "none"})); }),
              HasSubstr("none.idx: does not exist"));
}

TEST_F(DataSourceTest, TokensOutsideTheVocabularyAreNamed) {
  DataOptions given = options({folder_ / "a"});
  given.vocab_size = 60;
  const DataSource source(given);
  const std::string message = user_error([&] { source.read(Split::kTrain, {0, 0, 20, {}}); });
  EXPECT_THAT(message, HasSubstr((folder_ / "a") + ": holds token"));
  EXPECT_THAT(message, HasSubstr("vocabulary of 60 ids"));
}

TEST(RequestedSamples, AreMegatrons) {
  RunLength run;
  run.train_iters = 105;
  run.global_batch_size = 16;
  run.eval_interval = 10;
  run.eval_iters = 3;
  const RequestedSamples requested = requested_samples(run);
  EXPECT_EQ(requested.train, 1680);
  EXPECT_EQ(requested.valid, 11 * 3 * 16);
  EXPECT_EQ(requested.test, 48);
  run.train_samples = 99;
  EXPECT_EQ(requested_samples(run).train, 99);
  run.eval_interval = 0;
  EXPECT_EQ(requested_samples(run).valid, 0);
}

/// The prefixes of a golden case, with their weights if it has some.
std::vector<std::string> golden_paths(const GoldenCase& golden, const TemporaryFolder& folder) {
  std::vector<std::string> words = golden.words("path");
  const std::size_t step = golden.integer("weighted") != 0 ? 2 : 1;
  for (std::size_t i = step - 1; i < words.size(); i += step) words[i] = folder / words[i];
  return words;
}

DataOptions golden_options(const GoldenCase& golden, const TemporaryFolder& folder) {
  DataOptions options;
  const std::vector<std::string> paths = golden_paths(golden, folder);
  if (golden.integer("own_lists") != 0) {
    options.train_data_path = options.valid_data_path = options.test_data_path = paths;
  } else {
    options.data_path = paths;
    options.split = golden.words("split").front();
  }
  options.seq_length = golden.integer("seq_length");
  options.seed = golden.integer("seed");
  options.vocab_size = 4000000;
  const std::vector<std::int64_t> counts = golden.integers("requested");
  const auto wanted = [&](std::size_t i) { return counts[i] < 0 ? std::nullopt : std::optional(counts[i]); };
  options.requested = {wanted(0), wanted(1), wanted(2)};
  return options;
}

// Files, splits, blends, epochs, the last epoch and the shuffles together, for sizes drawn at random.
TEST(WholeSources, EqualTheIndependentVersion) {
  for (const GoldenCase& golden : golden_cases("data_order.txt", "source")) {
    SCOPED_TRACE(golden.name);
    const TemporaryFolder folder;
    for (std::size_t file = 0; file < golden.lines("file").size(); ++file) {
      std::vector<std::int64_t> lengths;
      for (const std::string& word : golden.lines("file")[file]) lengths.push_back(std::stoll(word));
      write_counting(folder / std::to_string(file), lengths, static_cast<std::int64_t>(file) * 1000000);
    }
    const DataSource source(golden_options(golden, folder));
    for (const Split split : {Split::kTrain, Split::kValid, Split::kTest}) {
      const std::string name = split == Split::kTrain ? "train" : split == Split::kValid ? "valid" : "test";
      ASSERT_EQ(source.num_samples(split), golden.integer(name + "_count")) << name;
      if (source.num_samples(split) == 0) continue;
      std::vector<std::int64_t> tokens;
      for (std::int64_t sample = 0; sample < source.num_samples(split); ++sample) {
        const GptBatch batch = source.read(split, {sample, 0, 1, {}});
        tokens.insert(tokens.end(), batch.tokens.begin(), batch.tokens.end());
        tokens.push_back(batch.labels.back());
      }
      golden.expect_array(name + "_tokens", tokens);
    }
  }
}

}  // namespace
}  // namespace primus::data
