#include "config/pipeline_layout.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "support/processor_time.hpp"

namespace primus::config {
namespace {

using testing::ElementsAre;
using Stage = PipelineStage;

PipelineLayout parsed(std::string_view text) {
  const auto result = parse_pipeline_layout(text);
  if (const auto* fault = std::get_if<LayoutFault>(&result)) {
    ADD_FAILURE() << text << ": " << fault->message;
    return {};
  }
  return std::get<PipelineLayout>(result);
}

TEST(PipelineLayout, Grammar) {
  EXPECT_THAT(parsed("Et*3|t*4,L").stages, ElementsAre(Stage{1, 3, 0, 0}, Stage{0, 4, 0, 1}));
  EXPECT_THAT(parsed("EtL").stages, ElementsAre(Stage{1, 1, 0, 1}));
  EXPECT_THAT(parsed("E|tm|L").stages, ElementsAre(Stage{1, 0, 0, 0}, Stage{0, 1, 1, 0}, Stage{0, 0, 0, 1}));
  EXPECT_THAT(parsed("Et*2||tL").stages, ElementsAre(Stage{1, 2, 0, 0}, Stage{}, Stage{0, 1, 0, 1}));
  EXPECT_EQ(parsed("Ettt|(tt|)*29,m|L").num_stages(), 32);
  EXPECT_EQ(parsed("Ettt|(tt|)*29,m|L").num_layers(), 61);
  EXPECT_EQ(parsed("E((t|)*2t|)*3L").num_layers(), 9);
  EXPECT_EQ(parsed("E(t,t*2)*3|t*0|,L"), parsed("Et*9||L"));
  EXPECT_EQ(parsed("Et|*3L").num_stages(), 4);
  EXPECT_EQ(parsed("E(tt)L"), parsed("Et*2L"));
}

// Megatron's own documentation and the experiments that this project ships.
TEST(PipelineLayout, PublishedLayouts) {
  EXPECT_EQ(parsed("Et*14|t*15|t*15|t*16,L").num_layers(), 60);
  EXPECT_EQ(parsed("Et*5|t*6|t*6|t*6|t*6|t*5|t*5|t*4,m,L").num_mtp_layers(), 1);
  EXPECT_EQ(parsed("Et|(tt|)*29|L").num_stages(), 32);
}

TEST(PipelineLayout, TextReadsBackToItself) {
  for (const char* text : {"Et*3|t*4,L", "E|t*2,m*2|L", "E,L", "Et||t|,L", "E,m,L"}) {
    EXPECT_EQ(parsed(to_text(parsed(text))), parsed(text)) << text;
    EXPECT_EQ(parsed(to_short_text(parsed(text))), parsed(text)) << text;
  }
  EXPECT_EQ(to_text(balanced_layout(27, 1, 4)), "Et*7|t*7|t*7|t*6,m,L");
  EXPECT_EQ(to_text(balanced_layout(1, 0, 1)), "Et,L");
  EXPECT_EQ(to_short_text(balanced_layout(96, 0, 96)), "Et|(t|)*94t,L");
  EXPECT_EQ(to_short_text(balanced_layout(61, 1, 32)), "Et*2|(t*2|)*28t|t|t,m,L");
  EXPECT_EQ(to_short_text(balanced_layout(4, 0, 4)), "Et|t|t|t,L");
  EXPECT_EQ(to_short_text(balanced_layout(0, 0, 9)), "E|(|)*7L");
}

// The old list has all chunks of a rank side by side: 16 layers, 4 ranks, 2 chunks.
TEST(PipelineLayout, SplitList) {
  constexpr std::array<std::int64_t, 8> kLayers = {2, 3, 2, 2, 2, 2, 2, 1};
  EXPECT_EQ(to_text(layout_of_split_list(kLayers, 4, SplitOrder::kByRank, 0)), "Et*2|t*2|t*2|t*2|t*3|t*2|t*2|t,L");
  EXPECT_EQ(to_text(layout_of_split_list(kLayers, 4, SplitOrder::kByStage, 1)), "Et*2|t*3|t*2|t*2|t*2|t*2|t*2|t,m,L");
}

TEST(PipelineLayout, CaretStandsBelowTheCharacter) {
  EXPECT_EQ(text_with_caret("Et*4|x", 5), "Et*4|x\n     ^");
  EXPECT_EQ(text_with_caret("ab", 2), "ab\n  ^");
  const std::string text = text_with_caret(std::string(200, 't') + "x", 200);
  EXPECT_EQ(text.find('x'), text.find('^') - text.find('\n') - 1);
  EXPECT_LT(text.size(), 200U);
}

TEST(PipelineLayout, BombsAreRefusedAtOnce) {
  const double begin_s = test::processor_seconds();
  for (const std::string& text : {std::string("E((((t|)*9999)*9999)*9999)*9999L"),
                                  "E" + std::string(1'000'000, '(') + "t", std::string("Et*99999999999999999999L"),
                                  "E(" + std::string(100'000, 't') + "|)*9999L", std::string("E|*999999999L")}) {
    EXPECT_TRUE(std::holds_alternative<LayoutFault>(parse_pipeline_layout(text))) << text.substr(0, 40);
  }
  EXPECT_LT(test::processor_seconds() - begin_s, 2.0);
}

}  // namespace
}  // namespace primus::config
