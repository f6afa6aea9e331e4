#include "data/near_duplicates.hpp"

#include <gtest/gtest.h>

#include <random>

namespace primus::data {
namespace {

std::vector<std::string> random_words(int num_words, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::string> words;
  for (int i = 0; i < num_words; ++i) words.push_back(std::to_string(random() % 5000));
  return words;
}

std::string joined(const std::vector<std::string>& words, const std::string& separator = " ") {
  std::string text;
  for (const std::string& word : words) text += word + separator;
  return text;
}

using Verdict = CopyFinder::Verdict;

TEST(CopyFinder, FindsCopies) {
  const std::vector<std::string> words = random_words(3000, 1);
  CopyFinder finder;
  EXPECT_EQ(finder.take(joined(words)), Verdict::kNew);
  EXPECT_EQ(finder.take(joined(words)), Verdict::kCopy);
  EXPECT_EQ(finder.take(joined(words, ",\n  ")), Verdict::kCopy);  // another layout of the same words
  EXPECT_EQ(finder.take(joined(random_words(3000, 2))), Verdict::kNew);
}

TEST(CopyFinder, FindsNearCopiesAndLetsRelativesPass) {
  std::vector<std::string> words = random_words(3000, 1);
  CopyFinder finder;
  EXPECT_EQ(finder.take(joined(words)), Verdict::kNew);
  std::vector<std::string> edited = words;
  for (std::size_t i = 0; i < edited.size(); i += 150) edited[i] = "changed";  // 20 places, about 3 % of the runs
  EXPECT_EQ(finder.take(joined(edited)), Verdict::kCopy);
  std::vector<std::string> half(words.begin(), words.begin() + 1500);
  const std::vector<std::string> other = random_words(1500, 3);
  half.insert(half.end(), other.begin(), other.end());
  EXPECT_EQ(finder.take(joined(half)), Verdict::kNew);
}

TEST(CopyFinder, HandlesShortTexts) {
  CopyFinder finder;
  EXPECT_EQ(finder.take("one two"), Verdict::kNew);
  EXPECT_EQ(finder.take("One, two!"), Verdict::kCopy);
  EXPECT_EQ(finder.take("two one"), Verdict::kNew);
  EXPECT_EQ(finder.take("----"), Verdict::kNew);
  EXPECT_EQ(finder.take("===="), Verdict::kNew);
  EXPECT_EQ(finder.take("----"), Verdict::kCopy);
}

TEST(HeldOutText, FindsATellTalePart) {
  const std::vector<std::string> held_out = random_words(500, 7);
  HeldOutText finder;
  EXPECT_FALSE(finder.is_repeated_in(joined(held_out)));
  finder.add(joined(held_out));
  std::vector<std::string> carrier = random_words(20000, 8);
  EXPECT_FALSE(finder.is_repeated_in(joined(carrier)));
  carrier.insert(carrier.begin() + 9000, held_out.begin(), held_out.begin() + 20);  // 16 of 496 runs
  EXPECT_FALSE(finder.is_repeated_in(joined(carrier)));
  carrier.insert(carrier.begin() + 3000, held_out.begin() + 100, held_out.begin() + 200);
  EXPECT_TRUE(finder.is_repeated_in(joined(carrier)));
}

}  // namespace
}  // namespace primus::data
