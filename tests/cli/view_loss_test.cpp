// view loss: one run, and several in one picture.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/files.hpp"
#include "cli/program.hpp"

namespace primus::cli {
namespace {

using testing::HasSubstr;
using testing::Not;
using Json = nlohmann::json;

class ViewLoss : public testing::Test {
 protected:
  ViewLoss() {
    folder_.write("dense/metrics.jsonl",
                  "{\"iteration\":1,\"lm_loss\":6.0}\n{\"iteration\":2,\"lm_loss\":5.0}\n"
                  "{\"iteration\":2,\"eval_split\":\"valid\",\"eval_loss\":5.5}\n");
    folder_.write("moe/metrics.jsonl",
                  "{\"iteration\":1,\"lm_loss\":6.0,\"expert_load\":[{\"layer\":1,\"max_over_mean\":3.0},"
                  "{\"layer\":2,\"max_over_mean\":4.0}]}\n"
                  "{\"iteration\":2,\"lm_loss\":4.0,\"expert_load\":[{\"layer\":1,\"max_over_mean\":1.5},"
                  "{\"layer\":2,\"max_over_mean\":1.25}]}\n"
                  "{\"iteration\":2,\"eval_split\":\"valid\",\"eval_loss\":4.5}\n{\"iteration\":3,\"lm_");
  }

  ProgramResult view(std::vector<std::string> words) const {
    std::vector<std::string> all{"view", "loss"};
    all.insert(all.end(), words.begin(), words.end());
    return run_program(all, folder_.path().string());
  }
  std::string picture(const std::string& name) const { return read_file(folder_.path() / name); }

  test::TestFolder folder_;
};

TEST_F(ViewLoss, SeveralRunsAreACurveEach) {
  const ProgramResult result = view({"--run", "dense", "--run", "moe", "--out", "both.svg"});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out,
              HasSubstr("dense\ntraining loss  6.0000 -> 5.0000 over 2 log lines\nheld-out loss  5.5000\n"));
  EXPECT_THAT(result.out, HasSubstr("moe\ntraining loss  6.0000 -> 4.0000"));
  EXPECT_THAT(picture("both.svg"),
              testing::AllOf(HasSubstr(">dense<"), HasSubstr(">moe<"), Not(HasSubstr("held out"))));
}

TEST_F(ViewLoss, DrawsWhatIsAskedFor) {
  EXPECT_EQ(view({"--run", "dense", "--run", "moe", "--of", "held-out", "--out", "held.svg"}).code, 0);
  EXPECT_THAT(picture("held.svg"), HasSubstr("held-out loss"));
  EXPECT_EQ(view({"--run", "moe", "--of", "expert-load", "--out", "load.svg"}).code, 0);
  EXPECT_THAT(picture("load.svg"), HasSubstr("busiest expert / mean"));
}

TEST_F(ViewLoss, TheLoadIsTheWorstLayers) {
  const ProgramResult one = view({"--run", "moe", "--format", "json"});
  EXPECT_EQ(Json::parse(one.out)["expert_load"], 1.5);
  const ProgramResult both = view({"--run", "dense", "--run", "moe", "--format", "json"});
  const Json runs = Json::parse(both.out)["runs"];
  ASSERT_EQ(runs.size(), 2U);
  EXPECT_EQ(runs[0]["run"], "dense");
  EXPECT_FALSE(runs[0].contains("expert_load"));
  EXPECT_EQ(runs[1]["held_out_loss"], 4.5);
}

TEST_F(ViewLoss, ARunWithoutWhatIsAskedForIsNamed) {
  const ProgramResult result = view({"--run", "moe", "--run", "dense", "--of", "expert-load", "--out", "load.svg"});
  EXPECT_NE(result.code, 0);
  EXPECT_THAT(result.err, testing::AllOf(HasSubstr("dense/metrics.jsonl"), HasSubstr("holds no expert load")));
  EXPECT_EQ(view({"--run", "moe", "--of", "nothing"}).code, 2);
}

}  // namespace
}  // namespace primus::cli
