#include "config/parse.hpp"

#include <gtest/gtest.h>

#include <limits>

namespace primus::config {
namespace {

TEST(ParseScalar, NumbersInAnyNotation) {
  EXPECT_EQ(parse_scalar("1e-5"), Value{1e-5});
  EXPECT_EQ(parse_scalar("1.0E-5"), Value{1e-5});
  EXPECT_EQ(parse_scalar("3"), Value{std::int64_t{3}});
  EXPECT_EQ(parse_scalar("-3"), Value{std::int64_t{-3}});
  EXPECT_EQ(parse_scalar("+4"), Value{std::int64_t{4}});
  EXPECT_EQ(parse_scalar("1_000"), Value{std::int64_t{1000}});
  EXPECT_EQ(parse_scalar(".5"), Value{0.5});
  EXPECT_EQ(parse_scalar("5."), Value{5.0});
}

TEST(ParseScalar, WordsForNullAndTruth) {
  for (const char* text : {"null", "None", "~", "", "NULL"}) EXPECT_TRUE(parse_scalar(text).is_null()) << text;
  for (const char* text : {"true", "True", "TRUE"}) EXPECT_EQ(parse_scalar(text), Value{true}) << text;
  EXPECT_EQ(parse_scalar("False"), Value{false});
}

TEST(ParseScalar, WhatOnlyLooksLikeANumberIsText) {
  for (const char* text : {"1__0", "_1", "1_", "0x10", "inf", "nan", "1.2.3", "12a", "none", "yes", "++1", "1e999"}) {
    EXPECT_EQ(parse_scalar(text), Value{std::string(text)}) << text;
  }
}

TEST(ParseScalar, IntegersBeyond64BitsAreReals) {
  EXPECT_EQ(parse_scalar("9223372036854775807"), Value{std::numeric_limits<std::int64_t>::max()});
  EXPECT_EQ(parse_scalar("9223372036854775808"), Value{9223372036854775808.0});
}

TEST(ToText, IsReadBackAsTheSameValue) {
  const Value values[] = {{},
                          {true},
                          {std::int64_t{-7}},
                          {1e-5},
                          {2.0},
                          {0.1},
                          {std::string("plain")},
                          {std::string("null")},
                          {std::string("12")}};
  for (const Value& value : values) {
    std::string text = to_text(value);
    const bool is_quoted = text.size() > 1 && text.front() == '"';
    const Value back = is_quoted ? Value{text.substr(1, text.size() - 2)} : parse_scalar(text);
    EXPECT_EQ(back, value) << text;
  }
  EXPECT_EQ(to_text({Value::List{{std::int64_t{1}}, {std::string("a b")}}}), "[1, a b]");
  EXPECT_EQ(to_text({std::string("a: b")}), "\"a: b\"");
}

}  // namespace
}  // namespace primus::config
