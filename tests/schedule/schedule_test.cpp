#include "schedule/schedule.hpp"

#include <gtest/gtest.h>

#include "base/error.hpp"

namespace primus::schedule {
namespace {

TEST(ScheduleTest, OneRankAlternatesForwardAndBackward) {
  const Schedule schedule = one_forward_one_backward({.num_ranks = 1, .num_micro_batches = 2});
  const std::vector<Action> expected = {{ActionKind::kForward, {0}, {}},        {ActionKind::kBackward, {0}, {}},
                                        {ActionKind::kForward, {1}, {}},        {ActionKind::kBackward, {1}, {}},
                                        {ActionKind::kReduceGradients, {}, {}}, {ActionKind::kOptimizerStep, {}, {}}};
  EXPECT_EQ(schedule.actions({0}), expected);
}

TEST(ScheduleTest, EverySmallTableIsSound) {
  for (int ranks = 1; ranks <= 8; ++ranks) {
    for (int micro_batches = 1; micro_batches <= 12; ++micro_batches) {
      EXPECT_NO_THROW(verify(one_forward_one_backward({ranks, micro_batches}))) << ranks << " x " << micro_batches;
    }
  }
}

TEST(ScheduleTest, WarmUpShrinksAlongThePipeline) {
  const Schedule schedule = one_forward_one_backward({.num_ranks = 4, .num_micro_batches = 8});
  for (int rank = 0; rank < 4; ++rank) {
    int forwards = 0;
    for (const Action& action : schedule.actions({rank})) {
      if (action.kind == ActionKind::kBackward) break;
      forwards += action.kind == ActionKind::kForward ? 1 : 0;
    }
    EXPECT_EQ(forwards, 4 - rank);  // at most P - rank activations in flight
  }
}

TEST(ScheduleTest, VerifyNamesWhatIsWrong) {
  const auto fault_of = [](auto&& change) {
    Schedule schedule = one_forward_one_backward({.num_ranks = 2, .num_micro_batches = 2});
    change(schedule);
    try {
      verify(schedule);
    } catch (const InternalError& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_NE(fault_of([](Schedule& s) { s.ranks[0].pop_back(); }).find("does not end"), std::string::npos);
  EXPECT_NE(fault_of([](Schedule& s) { std::swap(s.ranks[1][0], s.ranks[1][1]); }).find("without its input"),
            std::string::npos);
  EXPECT_NE(fault_of([](Schedule& s) { s.ranks[1].erase(s.ranks[1].begin() + 3); }).find("deadlock"),
            std::string::npos);
  EXPECT_NE(fault_of([](Schedule& s) { s.ranks[0].insert(s.ranks[0].begin(), s.ranks[0].front()); }).find("twice"),
            std::string::npos);
  // A send and a receive that are not posted together: both neighbours send first and wait.
  EXPECT_NE(fault_of([](Schedule& s) {
              const std::vector<Action>& second = s.ranks[1];
              ASSERT_EQ(second[3].kind, ActionKind::kSendBackward);
              std::swap(s.ranks[0][2], s.ranks[0][3]);
            }).find("before it is computed"),
            std::string::npos);
  EXPECT_NE(fault_of([](Schedule& s) { s.ranks.pop_back(); }).find("lists for"), std::string::npos);
}

}  // namespace
}  // namespace primus::schedule
