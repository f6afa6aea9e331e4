#include "data/tokenizers/utf8.hpp"

#include <gtest/gtest.h>

#include "base/text.hpp"
#include "data/tokenizers/newer_characters.hpp"

namespace primus::data {
namespace {

std::string repaired(std::string_view text) {
  std::string storage;
  return std::string(well_formed(text, storage, nullptr));
}

// Expected values from Python 3.11: bytes.decode("utf-8", "replace").
TEST(WellFormed, ReplacesEveryMaximalPart) {
  EXPECT_EQ(repaired("plain"), "plain");
  EXPECT_EQ(repaired("\xC3\xA9\xF0\x9F\x91\x8D"), "\xC3\xA9\xF0\x9F\x91\x8D");
  EXPECT_EQ(repaired("a\xFFz"), "a\uFFFDz");
  EXPECT_EQ(repaired("\xC0\x80"), "\uFFFD\uFFFD");
  EXPECT_EQ(repaired("\xE4\xB8"), "\uFFFD");
  EXPECT_EQ(repaired("\xE4\xB8x"), "\uFFFDx");
  EXPECT_EQ(repaired("\xF0\x9F\x91\xE4\xB8\xAD"), "\uFFFD中");
  EXPECT_EQ(repaired("\xED\xA0\x80"), "\uFFFD\uFFFD\uFFFD");  // a surrogate
  EXPECT_EQ(repaired("\xF4\x90\x80\x80"), "\uFFFD\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(repaired("\x80\xBF"), "\uFFFD\uFFFD");
  EXPECT_EQ(repaired("\xE0\x80\xAF"), "\uFFFD\uFFFD\uFFFD");
}

TEST(WellFormed, SaysWhereBytesComeFrom) {
  std::string storage;
  std::vector<TextRange> origins;
  EXPECT_EQ(well_formed("a\xE4\xB8é", storage, &origins), "a\uFFFDé");
  const std::vector<TextRange> expected = {{0, 1}, {1, 3}, {1, 3}, {1, 3}, {3, 5}, {3, 5}};
  EXPECT_EQ(origins, expected);
}

TEST(Characters, RoundTrip) {
  for (char32_t character = 0; character < 0x110000; character += 61) {
    if (character >= 0xD800 && character < 0xE000) continue;
    std::string text = "x";
    append_character(character, text);
    std::size_t at = 1;
    EXPECT_EQ(next_character(text, at), character);
    EXPECT_EQ(at, text.size());
    EXPECT_EQ(last_character(text), character);
    EXPECT_TRUE(is_utf8(text));
  }
}

TEST(OlderCharacters, KeepTheirSizeAndLeaveTheRest) {
  std::string storage;
  const std::string old = "text 中 \U0001F44D é";
  EXPECT_EQ(with_older_characters(old, storage).data(), old.data());
  for (char32_t character = 0; character < 0x110000; ++character) {
    if (character >= 0xD800 && character < 0xE000) continue;
    const char32_t older = older_character(character);
    if (older == character) continue;
    std::string a, b;
    append_character(character, a);
    append_character(older, b);
    ASSERT_EQ(a.size(), b.size()) << std::hex << static_cast<std::uint32_t>(character);
    EXPECT_EQ(older_character(older), older);
  }
  EXPECT_EQ(with_older_characters("a\U00031350z", storage), "a\U00020000z");  // Han of Unicode 15
}

}  // namespace
}  // namespace primus::data
