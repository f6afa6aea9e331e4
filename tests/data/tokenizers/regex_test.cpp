#include "data/tokenizers/regex.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "base/error.hpp"
#include "data/tokenizers/regex_syntax.hpp"

namespace primus::data {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::string> matches(std::string_view pattern, std::string_view text) {
  const Regex regex(pattern);
  RegexWorkspace workspace;
  std::vector<std::string> result;
  for_each_match(regex, text, workspace,
                 [&](const Match& match) { result.emplace_back(text.substr(match.begin, match.end - match.begin)); });
  return result;
}

std::string refused(std::string_view pattern) {
  try {
    const Regex regex(pattern);
  } catch (const UnknownSyntax& error) {
    return error.what();
  }
  ADD_FAILURE() << pattern << " is accepted";
  return {};
}

// Expected values: tokenizers 0.23.3, Split(Regex(pattern), "removed", invert=True).
TEST(Regex, ReadsWhatOnigurumaReadsOtherwise) {
  EXPECT_THAT(matches(R"(\s+)", "a\u0085\u00A0b\u180Ec"), ElementsAre("\u0085\u00A0"));
  EXPECT_THAT(matches(R"(\w+)", "x² \u00BC_\u0301 ④ a-b"), ElementsAre("x²", "\u00BC_\u0301", "a", "b"));
  EXPECT_THAT(matches(R"(\h+)", "xff g12"), ElementsAre("ff", "12"));
  EXPECT_THAT(matches(R"(\p{N}{1,3}+)", "1234567"), ElementsAre("1234567"));
  EXPECT_THAT(matches(R"([\p{L}&&[^\p{Han}]]+)", "ab中cd"), ElementsAre("ab", "cd"));
  EXPECT_THAT(matches(R"(\p{Han}+)", "、中。ー"), ElementsAre("中"));  // by script alone, not by its extensions
  EXPECT_THAT(matches(R"(\bcat\b)", "cat ²cat cat\u0301"), ElementsAre("cat"));
  EXPECT_THAT(matches("^a$", "a\nb\na"), ElementsAre("a", "a"));
  EXPECT_THAT(matches(R"((?m:a.b))", "a\nb"), ElementsAre("a\nb"));
  EXPECT_THAT(matches(R"([[:space:]]+|[\S\n])", " x"), ElementsAre(" ", "x"));
  EXPECT_THAT(matches(R"(a{,2})", "aaa"), ElementsAre("aa", "a"));
  EXPECT_THAT(matches(R"(x*)", "axb"), ElementsAre("", "x", ""));
  EXPECT_THAT(matches("\\u4E2D|\\x41", "中A"), ElementsAre("中", "A"));
}

TEST(Regex, NamesWhatItDoesNotUnderstand) {
  EXPECT_THAT(refused(R"((?<name>a)\k<name>)"), HasSubstr("(?<"));
  EXPECT_THAT(refused(R"(\R)"), HasSubstr("'\\R'"));
  EXPECT_THAT(refused(R"(\p{IsNoSuchThing})"), HasSubstr("property"));
  EXPECT_THAT(refused("[a[b]]"), HasSubstr("class within a class"));
  EXPECT_THAT(refused("[^a&&[b]]"), HasSubstr("&&"));
  EXPECT_THAT(refused("(a"), HasSubstr("does not end"));
  EXPECT_THAT(refused("a)"), HasSubstr("')'"));
  EXPECT_THAT(refused("*a"), HasSubstr("quantifier"));
  EXPECT_THAT(refused("[a"), HasSubstr("']'"));
  EXPECT_THAT(refused("\\"), HasSubstr("end"));
  EXPECT_THAT(refused("a**"), HasSubstr("second quantifier"));
}

TEST(Regex, GivesUpOnExponentialPatterns) {
  const Regex regex("(a|aa)+$");
  RegexWorkspace workspace;
  const std::string text = std::string(5000, 'a') + "b";
  EXPECT_THROW(regex.find(text, 0, workspace), UserError);
}

TEST(Regex, LongRunsNeedNoStack) {
  const std::string spaces(2'000'000, ' ');
  EXPECT_EQ(matches(R"(\s*[\r\n]+|\s+(?!\S)|\s+)", spaces).size(), 1U);
}

}  // namespace
}  // namespace primus::data
