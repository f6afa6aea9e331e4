#include "projection/sweep.hpp"

#include <gtest/gtest.h>

#include "base/error.hpp"

namespace primus::projection {
namespace {

using Words = std::vector<std::string>;

std::string refusal(const Words& axes) {
  try {
    sweep_points(axes);
  } catch (const ConfigError& error) {
    return to_text(error.problems().front());
  }
  return "accepted";
}

TEST(Sweep, EveryCombinationInOrder) {
  const Words axes = {"cp=1,2", "ep=8,16"};
  const std::vector<SweepPoint> points = sweep_points(axes);
  ASSERT_EQ(points.size(), 4U);
  EXPECT_EQ(points[1].label, "cp 1, ep 16");
  EXPECT_EQ(points[2].words, (Words{"--context_parallel_size", "2", "--expert_model_parallel_size", "8"}));
  EXPECT_EQ(sweep_points({}).size(), 1U);
}

TEST(Sweep, AnyKeyAndListsAsValues) {
  const Words axes = {"recompute_modules=[core_attn,mlp],[moe]"};
  const std::vector<SweepPoint> points = sweep_points(axes);
  ASSERT_EQ(points.size(), 2U);
  EXPECT_EQ(points[0].words, (Words{"--recompute_modules", "[core_attn,mlp]"}));
}

TEST(Sweep, QuotationMarksHoldCommasTogether) {
  const Words axes = {"pipeline_model_parallel_layout=\"Et*13|t*14,L\",'Et*14|t*13,L'"};
  const std::vector<SweepPoint> points = sweep_points(axes);
  ASSERT_EQ(points.size(), 2U);
  EXPECT_EQ(points[1].words, (Words{"--pipeline_model_parallel_layout", "Et*14|t*13,L"}));
  EXPECT_EQ(swept_keys(axes), Words{"pipeline_model_parallel_layout"});
}

TEST(Sweep, WhatIsNoneIsRefused) {
  EXPECT_NE(refusal({"cp=\"1,2"}).find("never closed"), std::string::npos);
  EXPECT_NE(refusal({"cp=1,1"}).find("quotation marks"), std::string::npos);
  EXPECT_NE(refusal({"cp"}).find("no setting is named"), std::string::npos);
  EXPECT_NE(refusal({"=1"}).find("no setting is named"), std::string::npos);
  EXPECT_NE(refusal({"cp=1,,2"}).find("a value is missing"), std::string::npos);
  EXPECT_NE(refusal({"cp="}).find("a value is missing"), std::string::npos);
  EXPECT_NE(refusal({"context_paralel_size=1"}).find("context_parallel_size"), std::string::npos);
  EXPECT_NE(refusal({"cp=1,2,1"}).find("1 stands twice"), std::string::npos);
  for (const char* again : {"cp=2,4", "context_parallel_size=4"}) {
    EXPECT_NE(refusal({"cp=1,2", "ep=8", again}).find("context_parallel_size is swept twice"), std::string::npos);
  }
  std::string many = "cp=1";
  for (int i = 2; i <= 200; ++i) many += "," + std::to_string(i);
  EXPECT_NE(refusal({many, "ep=" + many.substr(3)}).find("more than 10,000 layouts"), std::string::npos);
}

}  // namespace
}  // namespace primus::projection
