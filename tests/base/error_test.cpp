#include "base/error.hpp"

#include <gtest/gtest.h>

namespace primus {
namespace {

TEST(Problem, NamesPlaceKeyExpectationAndNearest) {
  Problem problem;
  problem.file = "a.yaml";
  problem.line = 12;
  problem.column = 3;
  problem.key = "lr";
  problem.message = "has the wrong type";
  problem.expected = "real";
  problem.found = "fast";
  problem.nearest = "did you mean 'lr: 0.1'?";
  EXPECT_EQ(to_text(problem),
            "a.yaml:12:3: lr: has the wrong type (expected real, found fast); did you mean 'lr: 0.1'?");
}

TEST(Problem, LeavesOutWhatIsUnknown) {
  Problem problem;
  problem.message = "is wrong";
  EXPECT_EQ(to_text(problem), "is wrong");
  problem.file = "a.yaml";
  EXPECT_EQ(to_text(problem), "a.yaml: is wrong");
  problem.line = 4;
  EXPECT_EQ(to_text(problem), "a.yaml:4: is wrong");
  problem.found = "x";
  EXPECT_EQ(to_text(problem), "a.yaml:4: is wrong (found x)");
  problem.found.clear();
  problem.expected = "y";
  EXPECT_EQ(to_text(problem), "a.yaml:4: is wrong (expected y)");
}

TEST(ConfigError, ListsEveryProblemAndMeansWrongInput) {
  Problem first, second;
  first.message = "one";
  second.message = "two";
  const ConfigError error({first, second});
  EXPECT_STREQ(error.what(), "one\ntwo");
  EXPECT_EQ(error.exit_code(), ExitCode::kWrongInput);
  EXPECT_EQ(error.problems().size(), 2U);
}

TEST(UserError, FailsWhileRunningUnlessToldOtherwise) {
  EXPECT_EQ(UserError("x").exit_code(), ExitCode::kFailedWhileRunning);
  EXPECT_EQ(UserError("x", ExitCode::kWrongInput).exit_code(), ExitCode::kWrongInput);
}

TEST(Check, ThrowsWithConditionPlaceAndValues) {
  const int value = 3;
  EXPECT_NO_THROW(PRIMUS_CHECK(value == 3, "unused"));
  try {
    PRIMUS_CHECK(value == 4, "value is {}", value);
    FAIL();
  } catch (const InternalError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("error_test.cpp:"), std::string::npos) << text;
    EXPECT_NE(text.find("value == 4 does not hold: value is 3"), std::string::npos) << text;
  }
  EXPECT_THROW(PRIMUS_CHECK(value == 4), InternalError);
}

}  // namespace
}  // namespace primus
