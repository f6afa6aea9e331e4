// The file of kernel choices: what was written is found again, by its owner alone, whatever else stands in the file.
#include "ops/gemm/gemm_choices.hpp"

#include <gtest/gtest.h>

#include <fstream>

#include "base/error.hpp"
#include "base/files.hpp"
#include "config/test_folder.hpp"

namespace primus::ops {
namespace {

using Product = std::vector<std::int64_t>;

AlgorithmWords words_of(std::uint64_t first) {
  return {first, 0, ~0ULL, 1ULL << 63U, 5, 6, 7, first * 3};
}

class GemmChoicesTest : public ::testing::Test {
 protected:
  std::filesystem::path file() const { return folder_.path() / "choices.txt"; }
  test::TestFolder folder_;
};

TEST_F(GemmChoicesTest, WhatWasWrittenIsFoundAgain) {
  const Product first = {0, 16384, 2048, 1408, -3};
  const Product second = {1};
  {
    GemmChoices choices(file(), "H200 13.0");
    EXPECT_FALSE(choices.find(first));
    choices.add(first, words_of(1));
    choices.add(second, words_of(2));
    choices.add(first, words_of(3));
    EXPECT_EQ(choices.find(first), words_of(3));
  }
  const GemmChoices again(file(), "H200 13.0");
  EXPECT_EQ(again.find(first), words_of(3)) << "the last one counts";
  EXPECT_EQ(again.find(second), words_of(2));
  EXPECT_FALSE(again.find({16384}));
  EXPECT_EQ(again.num_unread(), 0);
}

TEST_F(GemmChoicesTest, OtherDevicesAndReleasesAreLeftAlone) {
  GemmChoices(file(), "H200 13.0").add({1, 2}, words_of(1));
  GemmChoices(file(), "A100 13.0").add({1, 2}, words_of(2));
  EXPECT_EQ(GemmChoices(file(), "H200 13.0").find({1, 2}), words_of(1));
  EXPECT_EQ(GemmChoices(file(), "A100 13.0").find({1, 2}), words_of(2));
  EXPECT_FALSE(GemmChoices(file(), "H200 13.1").find({1, 2}));
}

TEST_F(GemmChoicesTest, LinesThatAreNoChoiceAreCountedAndLeft) {
  GemmChoices(file(), "H200").add({1, 2}, words_of(1));
  const std::string whole = read_file(file().string());
  for (std::size_t cut = 1; cut + 1 < whole.size(); ++cut) {
    std::ofstream(file()) << whole.substr(0, cut);
    GemmChoices half(file(), "H200");
    half.add({3}, words_of(9));
    const GemmChoices again(file(), "H200");
    EXPECT_EQ(again.find({3}), words_of(9)) << cut;
    EXPECT_LE(again.num_unread(), 1) << cut;
  }
  for (const char* bad : {"H200 | 1 2", "H200 | | 1", "H200 | x | 1 2 3 4 5 6 7 8", "H200 | 1 | 1 2 3 4 5 6 7 8 9",
                          "H200 | 99999999999999999999 | 1 2 3 4 5 6 7 8", "\x01\x02", "H200 | 1 | g 2 3 4 5 6 7 8"}) {
    std::ofstream(file()) << bad << "\n";
    EXPECT_EQ(GemmChoices(file(), "H200").num_unread(), 1) << bad;
  }
}

TEST_F(GemmChoicesTest, AFileThatCannotBeIsAnError) {
  for (const std::filesystem::path& where : {folder_.path() / "none" / "choices.txt", folder_.path()}) {
    try {
      const GemmChoices choices(where, "H200");
      FAIL() << where;
    } catch (const UserError& error) {
      EXPECT_NE(std::string(error.what()).find("PRIMUS_GEMM_CHOICES: " + where.string()), std::string::npos);
    }
  }
}

}  // namespace
}  // namespace primus::ops
