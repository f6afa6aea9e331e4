#include "base/text.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>

namespace primus {
namespace {

using testing::ElementsAre;

TEST(Text, Counted) {
  EXPECT_EQ(counted(0, "rank"), "0 ranks");
  EXPECT_EQ(counted(1, "micro-batch"), "1 micro-batch");
  EXPECT_EQ(counted(2000, "micro-batch"), "2,000 micro-batches");
}

TEST(Text, FieldsOfCommaSeparatedValues) {
  EXPECT_EQ(csv_field("plain text"), "plain text");
  EXPECT_EQ(csv_field("a,b"), "\"a,b\"");
  EXPECT_EQ(csv_field("two\nlines"), "\"two\nlines\"");
  EXPECT_EQ(csv_field("say \"so\""), "\"say \"\"so\"\"\"");
  EXPECT_EQ(csv_quoted("a"), "\"a\"");
}

TEST(Text, Bytes) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1024), "1.00 KiB");
  EXPECT_EQ(format_bytes(1536), "1.50 KiB");
  EXPECT_EQ(format_bytes(std::int64_t{12} << 30), "12.0 GiB");
  EXPECT_EQ(format_bytes(std::int64_t{123} << 40), "123 TiB");
}

TEST(Text, Counts) {
  EXPECT_EQ(format_count(0), "0");
  EXPECT_EQ(format_count(999), "999");
  EXPECT_EQ(format_count(1000), "1,000");
  EXPECT_EQ(format_count(-1000), "-1,000");
  EXPECT_EQ(format_count(-100), "-100");
  EXPECT_EQ(format_count(15706484224), "15,706,484,224");
  EXPECT_EQ(format_short_count(15706484224.0), "15.7 B");
  EXPECT_EQ(format_short_count(999.0), "999");
  EXPECT_EQ(format_short_count(1500.0), "1.50 K");
}

TEST(Text, Utf8) {
  for (const char* good : {"", "plain", "\u00e4\u20ac\U0001F600", "\xED\x9F\xBF", "\xF4\x8F\xBF\xBF"})
    EXPECT_TRUE(is_utf8(good)) << good;
  // A lone continuation, a cut sequence, an overlong slash, a surrogate, past U+10FFFF, bytes that no text has.
  for (const char* bad : {"\x80", "a\xC3", "\xE2\x82", "\xC0\xAF", "\xE0\x80\xAF", "\xED\xA0\x80", "\xF4\x90\x80\x80",
                          "\xF8\x88\x80\x80\x80", "\xFF", "\xC3(", "ok\xFE"})
    EXPECT_FALSE(is_utf8(bad)) << bad;
}

TEST(Text, Durations) {
  EXPECT_EQ(format_duration(3720.0), "1 h 02 min");
  EXPECT_EQ(format_duration(185.0), "3 min 05 s");
  EXPECT_EQ(format_duration(12.34), "12.3 s");
  EXPECT_EQ(format_duration(0.00456), "4.56 ms");
  EXPECT_EQ(format_duration(7.8e-6), "7.80 µs");
}

TEST(Text, EditDistance) {
  EXPECT_EQ(edit_distance("", ""), 0U);
  EXPECT_EQ(edit_distance("abc", ""), 3U);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3U);
  EXPECT_EQ(edit_distance("seq_lenght", "seq_length"), 1U);  // neighbours in the wrong order: one slip
  EXPECT_EQ(edit_distance("SEQ-length", "seq_length"), 0U);
}

TEST(Text, NearestName) {
  constexpr std::array<std::string_view, 3> kNames = {"micro_batch_size", "global_batch_size", "lr"};
  EXPECT_EQ(nearest_name("micro_batchsize", kNames), "micro_batch_size");
  EXPECT_EQ(nearest_name("globl_batch_size", kNames), "global_batch_size");
  EXPECT_EQ(nearest_name("rl", kNames), "lr");
  EXPECT_EQ(nearest_name("weight_decay", kNames), std::nullopt);
  EXPECT_EQ(nearest_name("x", {}), std::nullopt);
}

// The search stops early where a candidate cannot win; it must find what a look at every distance finds.
TEST(Text, NearestNameIsTheNearest) {
  std::mt19937 random(20240229);
  const auto word = [&] {
    std::string text;
    for (std::size_t i = 1 + random() % 9; i > 0; --i) text += "ab_-C"[random() % 5];
    return text;
  };
  for (int i = 0; i < 2'000; ++i) {
    std::vector<std::string> words;
    for (int j = 0; j < 12; ++j) words.push_back(word());
    const std::string name = word();
    const std::vector<std::string_view> candidates(words.begin(), words.end());
    std::optional<std::string> expected;
    std::size_t best = std::max<std::size_t>(1, name.size() / 3) + 1;
    for (const std::string& candidate : words) {
      const std::size_t distance = edit_distance(name, candidate);
      if (distance < best) expected = candidate;
      best = std::min(best, distance);
    }
    EXPECT_EQ(nearest_name(name, candidates), expected) << name << ": " << testing::PrintToString(words);
  }
}

TEST(Text, SplitTrimLower) {
  EXPECT_THAT(split("a,b,,c", ','), ElementsAre("a", "b", "", "c"));
  EXPECT_THAT(split("", ','), ElementsAre(""));
  EXPECT_THAT(split(",", ','), ElementsAre("", ""));
  EXPECT_EQ(trim(" \t a b \r\n"), "a b");
  EXPECT_EQ(trim(" \n"), "");
  EXPECT_EQ(lower("AbC-9"), "abc-9");
}

}  // namespace
}  // namespace primus
