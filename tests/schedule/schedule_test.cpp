#include "schedule/schedule.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

#include "base/error.hpp"
#include "schedule/algorithms.hpp"

namespace primus::schedule {
namespace {

TEST(ScheduleTest, OneRankAlternatesForwardAndBackward) {
  const Schedule schedule = build({.num_micro_batches = 2});
  const std::vector<Action> expected = {{ActionKind::kForward, {0}, {}},        {ActionKind::kBackward, {0}, {}},
                                        {ActionKind::kForward, {1}, {}},        {ActionKind::kBackward, {1}, {}},
                                        {ActionKind::kReduceGradients, {}, {}}, {ActionKind::kOptimizerStep, {}, {}}};
  EXPECT_EQ(schedule.actions({0}), expected);
}

TEST(ScheduleTest, WarmUpShrinksAlongThePipeline) {
  const Schedule schedule = build({.num_ranks = 4, .num_micro_batches = 8});
  for (int rank = 0; rank < 4; ++rank) {
    int forwards = 0;
    for (const Action& action : schedule.actions({rank})) {
      if (action.kind == ActionKind::kBackward) break;
      forwards += action.kind == ActionKind::kForward ? 1 : 0;
    }
    EXPECT_EQ(forwards, 4 - rank);
    EXPECT_EQ(peak_in_flight(schedule.actions({rank})), 4 - rank);
  }
}

TEST(ScheduleTest, StagesGoRoundTheRanksOrDownAndUp) {
  const Shape loop{.num_ranks = 3, .num_micro_batches = 1, .num_chunks = 2};
  EXPECT_EQ(place_of(loop, {4}), (Place{{1}, {1}}));
  const Shape v{.num_ranks = 3, .num_micro_batches = 1, .num_chunks = 2, .placement = Placement::kV};
  EXPECT_EQ(place_of(v, {2}), (Place{{2}, {0}}));
  EXPECT_EQ(place_of(v, {3}), (Place{{2}, {1}}));
  EXPECT_EQ(place_of(v, {5}), (Place{{0}, {1}}));
  for (const Shape& shape : {loop, v}) {
    for (int stage = 0; stage < shape.num_stages(); ++stage) {
      EXPECT_EQ(stage_at(shape, place_of(shape, {stage})), Stage{stage});
    }
  }
}

TEST(ScheduleTest, ParametersAreGatheredBeforeAndGradientsReducedBehindTheirChunk) {
  const Schedule schedule = build({.algorithm = Algorithm::kZbv,
                                   .num_ranks = 4,
                                   .num_micro_batches = 8,
                                   .num_chunks = 2,
                                   .gather = ParameterGather::kPresent});
  for (const std::vector<Action>& actions : schedule.ranks) {
    for (int chunk = 0; chunk < 2; ++chunk) {
      const auto of_chunk = [&](ActionKind kind) {
        return std::find_if(actions.begin(), actions.end(),
                            [&](const Action& action) { return action.kind == kind && action.chunk.value == chunk; });
      };
      EXPECT_LT(of_chunk(ActionKind::kGatherParameters), of_chunk(ActionKind::kForward));
      const auto reduced = of_chunk(ActionKind::kReduceGradients);
      ASSERT_NE(reduced, actions.end());
      EXPECT_TRUE(std::none_of(reduced, actions.end(), [&](const Action& action) {
        return is_compute(action.kind) && action.chunk.value == chunk;
      }));
    }
    EXPECT_EQ(actions.back().kind, ActionKind::kOptimizerStep);
  }
}

/// What verify() says of a changed table; "no error" if it finds none.
template <typename Change>
std::string fault_of(const Request& request, Change&& change) {
  Schedule schedule = build(request);
  change(schedule);
  try {
    verify(schedule);
  } catch (const InternalError& error) {
    return error.what();
  }
  return "no error";
}

std::size_t index_of(const std::vector<Action>& actions, ActionKind kind, int micro_batch, int chunk = 0) {
  const auto found = std::find_if(actions.begin(), actions.end(), [&](const Action& action) {
    return action.kind == kind && action.micro_batch.value == micro_batch && action.chunk.value == chunk;
  });
  EXPECT_NE(found, actions.end());
  return static_cast<std::size_t>(found - actions.begin());
}

void erase(std::vector<Action>& actions, ActionKind kind, int micro_batch, int chunk = 0) {
  actions.erase(actions.begin() + static_cast<std::ptrdiff_t>(index_of(actions, kind, micro_batch, chunk)));
}

const Request kTwoRanks{.num_ranks = 2, .num_micro_batches = 2};
const Request kV{.algorithm = Algorithm::kZbv, .num_ranks = 2, .num_micro_batches = 4, .num_chunks = 2};
const Request kPairs{.algorithm = Algorithm::kOverlapped, .num_ranks = 2, .num_micro_batches = 4, .num_chunks = 2};

TEST(VerifyTest, NamesWhatIsWrong) {
  const auto expect = [](const std::string& fault, const std::string& part) {
    EXPECT_NE(fault.find(part), std::string::npos) << fault;
  };
  expect(fault_of(kTwoRanks, [](Schedule& s) { s.ranks[0].pop_back(); }), "does not end with the optimizer");
  expect(fault_of(kTwoRanks, [](Schedule& s) { s.ranks.pop_back(); }), "1 lists for 2 ranks");
  expect(fault_of(kTwoRanks, [](Schedule& s) { s.ranks[0].insert(s.ranks[0].begin(), s.ranks[0].front()); }), "twice");
  expect(fault_of(kTwoRanks, [](Schedule& s) { erase(s.ranks[0], ActionKind::kReduceGradients, 0); }),
         "never reduces the gradients");
  expect(fault_of(kTwoRanks, [](Schedule& s) { erase(s.ranks[0], ActionKind::kBackward, 1); }),
         "never runs backward of micro-batch 1");
  expect(fault_of(kV, [](Schedule& s) { erase(s.ranks[0], ActionKind::kWeightGrad, 3, 1); }),
         "never computes the weight gradient of micro-batch 3");
  expect(fault_of(kV, [](Schedule& s) { s.max_in_flight[1] = 2; }), "more than its bound 2");
  expect(fault_of(kTwoRanks, [](Schedule& s) { s.ranks[0][0].micro_batch.value = 2; }), "is none of 2 x 1");
  expect(fault_of(kTwoRanks, [](Schedule& s) { s.ranks[0][0].chunk.value = 1; }), "no such chunk");
}

TEST(VerifyTest, FindsBrokenMessages) {
  const auto expect = [](const std::string& fault, const std::string& part) {
    EXPECT_NE(fault.find(part), std::string::npos) << fault;
  };
  expect(fault_of(kTwoRanks, [](Schedule& s) { erase(s.ranks[1], ActionKind::kReceiveForward, 1); }), "runs too early");
  expect(fault_of(kTwoRanks, [](Schedule& s) { erase(s.ranks[1], ActionKind::kSendBackward, 1); }), "deadlock");
  expect(fault_of(kTwoRanks,
                  [](Schedule& s) {
                    std::vector<Action>& actions = s.ranks[1];
                    std::swap(actions[index_of(actions, ActionKind::kReceiveForward, 0)],
                              actions[index_of(actions, ActionKind::kForward, 0)]);
                  }),
         "runs too early");
  expect(fault_of(kTwoRanks,
                  [](Schedule& s) {
                    std::vector<Action>& actions = s.ranks[1];
                    std::swap(actions[index_of(actions, ActionKind::kReceiveForward, 0)],
                              actions[index_of(actions, ActionKind::kReceiveForward, 1)]);
                  }),
         "messages cross");
  expect(fault_of(kTwoRanks,
                  [](Schedule& s) {
                    std::vector<Action>& actions = s.ranks[0];
                    std::swap(actions[index_of(actions, ActionKind::kSendForward, 0)],
                              actions[index_of(actions, ActionKind::kForward, 0)]);
                  }),
         "is sent before it is computed");
}

/// A rank's list from letters: "F0 >0 <1 B0 W0", where `>` and `<` are messages down the pipeline and up, and an upper
/// case S or R says which end: "S>0 R<0".
std::vector<Action> list_of(const std::string& text) {
  std::vector<Action> actions;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    const MicroBatch m{word.back() - '0'};
    const bool is_down = word[1] == '>';
    switch (word[0]) {
      case 'F':
        actions.push_back({ActionKind::kForward, m, {}});
        break;
      case 'B':
        actions.push_back({ActionKind::kBackward, m, {}, Pairing::kAlone, WeightGrad::kApart});
        break;
      case 'W':
        actions.push_back({ActionKind::kWeightGrad, m, {}});
        break;
      case 'S':
        actions.push_back({is_down ? ActionKind::kSendForward : ActionKind::kSendBackward, m, {}});
        break;
      default:
        actions.push_back({is_down ? ActionKind::kReceiveForward : ActionKind::kReceiveBackward, m, {}});
    }
  }
  actions.push_back({ActionKind::kReduceGradients, {}, {}});
  actions.push_back({ActionKind::kOptimizerStep, {}, {}});
  return actions;
}

// Rank 1 sends a gradient before it takes the next input. Rank 0 must take the one while it sends the other.
TEST(VerifyTest, FindsSendsThatAreNotPostedBesideReceives) {
  Schedule schedule{{.num_ranks = 2, .num_micro_batches = 3}, {}};
  const std::vector<Action> second = list_of("R>0 F0 B0 S<0 W0 R>1 F1 B1 S<1 W1 R>2 F2 B2 S<2 W2");
  schedule.ranks = {list_of("F0 S>0 F1 S>1 R<0 F2 S>2 R<1 B0 W0 B1 W1 R<2 B2 W2"), second};
  EXPECT_NO_THROW(verify(schedule));
  schedule.ranks = {list_of("F0 S>0 F1 S>1 F2 R<0 S>2 R<1 B0 W0 B1 W1 R<2 B2 W2"), second};
  try {
    verify(schedule);
    FAIL() << "no deadlock was found";
  } catch (const InternalError& error) {
    EXPECT_NE(std::string(error.what()).find("deadlock: rank 0: send_forward of micro-batch 1"), std::string::npos)
        << error.what();
  }
}

TEST(VerifyTest, FindsPairsThatNeedEachOther) {
  const std::string no_backward = fault_of(kPairs, [](Schedule& s) {
    s.ranks[0][index_of(s.ranks[0], ActionKind::kForward, 0)].pairing = Pairing::kWithNext;
  });
  EXPECT_NE(no_backward.find("paired with no backward"), std::string::npos) << no_backward;
  // The last stage's backward needs the forward just before it: as a pair, it could never start.
  const std::string too_early = fault_of({.num_ranks = 1, .num_micro_batches = 1},
                                         [](Schedule& s) { s.ranks[0][0].pairing = Pairing::kWithNext; });
  EXPECT_NE(too_early.find("is paired with a forward and runs too early"), std::string::npos) << too_early;
}

}  // namespace
}  // namespace primus::schedule
