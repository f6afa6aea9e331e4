#include "data/batch_loader.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <random>

#include "data/temporary_folder.hpp"

namespace primus::data {
namespace {

class BatchLoaderTest : public testing::Test {
 protected:
  BatchLoaderTest() {
    write_counting(folder_ / "a", {500, 310, 770, 200, 640});
    DataOptions options;
    options.data_path = {folder_ / "a"};
    options.split = "1,0,0";
    options.seq_length = 16;
    options.vocab_size = 10000;
    options.requested.train = 200;
    source_ = std::make_shared<const DataSource>(options);
  }

  static void expect_equal(const std::vector<GptBatch>& a, const std::vector<GptBatch>& b) {
    ASSERT_EQ(a.size(), b.size());
    for (std::size_t i = 0; i < a.size(); ++i) {
      EXPECT_EQ(a[i].tokens, b[i].tokens);
      EXPECT_EQ(a[i].labels, b[i].labels);
      EXPECT_EQ(a[i].loss_mask, b[i].loss_mask);
    }
  }

  TemporaryFolder folder_;
  std::shared_ptr<const DataSource> source_;
};

TEST_F(BatchLoaderTest, PrefetchChangesNothing) {
  BatchLoader plain(source_, Split::kTrain, {2, {1, 2}}, Prefetch::kOff);
  BatchLoader ahead(source_, Split::kTrain, {2, {1, 2}}, Prefetch::kOn);
  for (std::int64_t consumed = 0; consumed + 12 <= 200; consumed += 12) {
    expect_equal(plain.step({consumed, 3}), ahead.step({consumed, 3}));
  }
}

TEST_F(BatchLoaderTest, AWrongGuessChangesNothing) {
  BatchLoader plain(source_, Split::kTrain, {2, {}}, Prefetch::kOff);
  BatchLoader ahead(source_, Split::kTrain, {2, {}}, Prefetch::kOn);
  std::mt19937 random(4);
  StepPosition position{0, 2};
  for (int i = 0; i < 500; ++i) {
    expect_equal(plain.step(position), ahead.step(position));
    switch (random() % 4) {
      case 0:
        position = {static_cast<std::int64_t>(random() % 100), 1 + static_cast<std::int64_t>(random() % 4)};
        break;
      case 1:
        position.num_micro_batches = 1 + static_cast<std::int64_t>(random() % 4);
        break;
      default:
        position.consumed_samples = (position.consumed_samples + 2 * position.num_micro_batches) % 180;
        break;
    }
  }
}

TEST_F(BatchLoaderTest, EndsCleanlyWhileReading) {
  for (int i = 0; i < 50; ++i) {
    BatchLoader loader(source_, Split::kTrain, {8, {}}, Prefetch::kOn);
    if (i % 2 == 0) loader.step({0, 8});
  }
}

TEST_F(BatchLoaderTest, AnErrorAheadIsThrownOnlyWhenAskedFor) {
  const std::int64_t size = source_->num_samples(Split::kTrain);
  BatchLoader loader(source_, Split::kTrain, {1, {}}, Prefetch::kOn);
  loader.step({size - 1, 1});  // the step after it does not exist
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_THAT(user_error([&] { loader.step({size, 1}); }), testing::HasSubstr("the training data ends after"));
  EXPECT_THAT(user_error([&] { loader.step({size, 1}); }), testing::HasSubstr("the training data ends after"));
  EXPECT_EQ(loader.step({0, 1}).size(), 1U);
}

}  // namespace
}  // namespace primus::data
