#include "data/ngram.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "data/temporary_folder.hpp"

namespace primus::data {
namespace {

void write(const std::string& prefix, const std::vector<std::vector<std::int64_t>>& documents) {
  IndexedWriter writer(prefix, TokenType::kUint16);
  for (const auto& document : documents) {
    writer.add_sequence(document);
    writer.end_document();
  }
  writer.finish();
}

TEST(Ngram, AgreesWithCountingByHand) {
  const TemporaryFolder folder;
  write(folder / "train", {{0, 1, 0, 1}, {2}});  // 1, 0, 1, 2 follow something
  write(folder / "test", {{0, 1}, {0}});         // 1 after 0, 0 after 1
  const NgramBaseline baseline = ngram_baseline(folder / "train", folder / "test", 4);
  EXPECT_EQ(baseline.num_train_tokens, 5);
  EXPECT_EQ(baseline.num_scored_tokens, 2);
  EXPECT_NEAR(baseline.unigram_nats, -(std::log(3.0 / 8.0) + std::log(2.0 / 8.0)) / 2.0, 1e-12);
  EXPECT_NEAR(baseline.bigram_nats, -(std::log(3.0 / 6.0) + std::log(2.0 / 6.0)) / 2.0, 1e-12);
}

TEST(Ngram, UnseenPairsCostALaplaceShare) {
  const TemporaryFolder folder;
  write(folder / "train", {{0, 0}});
  write(folder / "test", {{3, 3}});
  const NgramBaseline baseline = ngram_baseline(folder / "train", folder / "test", 4);
  EXPECT_NEAR(baseline.unigram_nats, std::log(5.0), 1e-12);
  EXPECT_NEAR(baseline.bigram_nats, std::log(4.0), 1e-12);
}

TEST(Ngram, RefusesWhatItCannotScore) {
  const TemporaryFolder folder;
  write(folder / "train", {{0, 9}});
  write(folder / "test", {{3}});
  EXPECT_NE(user_error([&] { ngram_baseline(folder / "train", folder / "test", 4); }).find("token 9"),
            std::string::npos);
  EXPECT_NE(user_error([&] { ngram_baseline(folder / "test", folder / "test", 4); }).find("fewer than two"),
            std::string::npos);
}

}  // namespace
}  // namespace primus::data
