#include "data/dataset_tools.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "data/temporary_folder.hpp"

namespace primus::data {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

/// Documents as lists of sequences.
using Documents = std::vector<std::vector<std::vector<std::int64_t>>>;

void write_documents(const std::string& prefix, TokenType type, const Documents& documents) {
  IndexedWriter writer(prefix, type);
  for (const auto& document : documents) {
    for (const auto& sequence : document) writer.add_sequence(sequence);
    writer.end_document();
  }
  writer.finish();
}

Documents read_documents(const std::string& prefix) {
  const IndexedDataset dataset(prefix);
  Documents documents;
  for (std::int64_t d = 0; d < dataset.num_documents(); ++d) {
    documents.emplace_back();
    for (std::int64_t i = dataset.document_begin(d); i < dataset.document_begin(d + 1); ++i) {
      documents.back().emplace_back(static_cast<std::size_t>(dataset.length(i)));
      dataset.read(i, 0, documents.back().back());
    }
  }
  return documents;
}

const Documents kFirst = {{{1, 2, 3}, {4}}, {}, {{5, 9}}};
const Documents kSecond = {{{70000}}, {{6, 7}, {}, {9}}};

TEST(MergeDatasets, KeepsDocumentsAndTakesTheWiderType) {
  TemporaryFolder folder;
  write_documents(folder / "a", TokenType::kUint16, kFirst);
  write_documents(folder / "b", TokenType::kInt32, kSecond);
  merge_datasets({folder / "a", folder / "b", folder / "a"}, folder / "out/all", {});
  Documents expected = kFirst;
  expected.insert(expected.end(), kSecond.begin(), kSecond.end());
  expected.insert(expected.end(), kFirst.begin(), kFirst.end());
  EXPECT_EQ(read_documents(folder / "out/all"), expected);
  EXPECT_EQ(IndexedDataset(folder / "out/all").token_type(), TokenType::kInt32);
  merge_datasets({folder / "a"}, folder / "one", {});
  EXPECT_EQ(IndexedDataset(folder / "one").token_type(), TokenType::kUint16);
  EXPECT_EQ(read_file(folder / "one.bin"), read_file(folder / "a.bin"));
  EXPECT_EQ(read_file(folder / "one.idx"), read_file(folder / "a.idx"));
  EXPECT_THAT(user_error([&] {
                merge_datasets({folder / "a", folder / "b"}, folder / "a", {});
              }),
              HasSubstr("read and written at once"));
}

TEST(ShuffleDocuments, IsAPermutationOfTheSeed) {
  TemporaryFolder folder;
  Documents documents;
  for (std::int64_t i = 0; i < 200; ++i) documents.push_back({{i, i + 1}, {i + 2}});
  write_documents(folder / "a", TokenType::kUint16, documents);
  shuffle_documents(folder / "a", folder / "b", 7, {});
  shuffle_documents(folder / "a", folder / "c", 7, {});
  shuffle_documents(folder / "a", folder / "d", 8, {});
  const Documents shuffled = read_documents(folder / "b");
  EXPECT_EQ(shuffled, read_documents(folder / "c"));
  EXPECT_NE(shuffled, read_documents(folder / "d"));
  EXPECT_NE(shuffled, documents);
  EXPECT_TRUE(std::is_permutation(shuffled.begin(), shuffled.end(), documents.begin(), documents.end()));
}

TEST(VerifyTokens, NamesTheFirstWrongToken) {
  TemporaryFolder folder;
  write_documents(folder / "a", TokenType::kInt32, kFirst);
  const IndexedDataset dataset(folder / "a");
  const TokenSummary summary = verify_tokens(dataset, 10, 9, {});
  EXPECT_EQ(summary.smallest, 1);
  EXPECT_EQ(summary.largest, 9);
  EXPECT_EQ(summary.num_eod, 1);
  EXPECT_EQ(summary.num_documents_open, 2);
  EXPECT_THAT(user_error([&] { verify_tokens(dataset, 9, 9, {}); }), HasSubstr("token 1 of sequence 2 is 9"));
  write_documents(folder / "b", TokenType::kInt32, {{{3, -1}}});
  EXPECT_THAT(user_error([&] { verify_tokens(IndexedDataset(folder / "b"), 9, 9, {}); }), HasSubstr("is -1"));
  EXPECT_EQ(verify_tokens(IndexedDataset(folder / "b"), 0, 9, {}).smallest, -1);
}

TEST(SummarizeLengths, CountsByPowersOfTwo) {
  TemporaryFolder folder;
  write_documents(folder / "a", TokenType::kUint16,
                  {{{}, {1}, {1, 2}, {1, 2, 3}}, {std::vector<std::int64_t>(100, 1)}});
  const LengthSummary summary = summarize_lengths(IndexedDataset(folder / "a"));
  EXPECT_EQ(summary.shortest, 0);
  EXPECT_EQ(summary.median, 2);
  EXPECT_EQ(summary.longest, 100);
  EXPECT_EQ(summary.num_empty, 1);
  ASSERT_EQ(summary.bins.size(), 8U);
  EXPECT_EQ(summary.bins[2].from, 2);
  EXPECT_EQ(summary.bins[2].to, 3);
  EXPECT_EQ(summary.bins[2].num_sequences, 2);
  EXPECT_EQ(summary.bins[7].num_tokens, 100);
  write_documents(folder / "none", TokenType::kUint16, {});
  EXPECT_TRUE(summarize_lengths(IndexedDataset(folder / "none")).bins.empty());
}

}  // namespace
}  // namespace primus::data
