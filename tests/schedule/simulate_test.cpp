#include "schedule/simulate.hpp"

#include <gtest/gtest.h>

#include "base/error.hpp"
#include "schedule/algorithms.hpp"

namespace primus::schedule {
namespace {

TEST(SimulateTest, OneRankNeverWaits) {
  const Schedule schedule = build({.num_micro_batches = 4});
  const Timeline timeline = simulate(schedule, even_costs(schedule.shape, 1.0, 2.0, 3.0));
  EXPECT_DOUBLE_EQ(timeline.step, 24.0);
  EXPECT_DOUBLE_EQ(timeline.ranks[0].forward, 4.0);
  EXPECT_DOUBLE_EQ(timeline.ranks[0].backward, 20.0);  // with its weight gradients
  EXPECT_DOUBLE_EQ(timeline.mean_bubble(), 0.0);
  EXPECT_DOUBLE_EQ(timeline.ranks[0].peak, 1.0);
}

TEST(SimulateTest, MessagesTakeTimeWhereRanksWaitForThem) {
  const Schedule schedule = build({.num_ranks = 2, .num_micro_batches = 1});
  Costs costs = even_costs(schedule.shape, 1.0, 1.0, 1.0);
  EXPECT_DOUBLE_EQ(simulate(schedule, costs).step, 6.0);
  costs.message = 0.5;  // once forward, once backward
  EXPECT_DOUBLE_EQ(simulate(schedule, costs).step, 7.0);
}

TEST(SimulateTest, TheTurnOfAVCostsNoMessage) {
  const Schedule schedule =
      build({.algorithm = Algorithm::kZbv, .num_ranks = 1, .num_micro_batches = 1, .num_chunks = 2});
  Costs costs = even_costs(schedule.shape, 2.0, 2.0, 2.0);
  costs.message = 10.0;
  EXPECT_DOUBLE_EQ(simulate(schedule, costs).step, 6.0);
}

TEST(SimulateTest, ASlowStageHoldsUpTheOthers) {
  const Schedule schedule = build({.num_ranks = 4, .num_micro_batches = 16});
  Costs costs = even_costs(schedule.shape, 1.0, 1.0, 1.0);
  const double even = simulate(schedule, costs).step;
  costs.stages[3].forward = 2.0;
  const Timeline timeline = simulate(schedule, costs);
  EXPECT_DOUBLE_EQ(timeline.step, even + 16.0);
  EXPECT_LT(timeline.bubble(timeline.ranks[3]), timeline.bubble(timeline.ranks[0]));
}

TEST(SimulateTest, ActivationsAreHeldFromForwardToWeightGradient) {
  const Schedule schedule = build({.algorithm = Algorithm::kZb1p, .num_ranks = 2, .num_micro_batches = 4});
  Costs costs = even_costs(schedule.shape, 1.0, 1.0, 1.0);
  costs.stages[0].activation = 10.0;
  costs.stages[0].kept_for_weight_grad = 4.0;
  const Timeline timeline = simulate(schedule, costs);
  EXPECT_DOUBLE_EQ(timeline.ranks[0].peak, 20.0);
  EXPECT_NEAR(timeline.ranks[0].held.back().amount, 0.0, 1e-12);
  double last = 0.0;
  for (const Held& held : timeline.ranks[0].held) {
    EXPECT_GE(held.time, last);
    last = held.time;
  }
}

TEST(SimulateTest, ReductionAndGatheringTakeTheirRanksTime) {
  const Schedule schedule = build({.num_micro_batches = 2, .gather = ParameterGather::kPresent});
  Costs costs = even_costs(schedule.shape, 1.0, 1.0, 1.0);
  costs.reduce = 5.0;
  costs.gather = 3.0;
  EXPECT_DOUBLE_EQ(simulate(schedule, costs).step, 14.0);
}

TEST(SimulateTest, PairsHideTheirExchange) {
  const Request request{.algorithm = Algorithm::kInterleaved, .num_ranks = 4, .num_micro_batches = 16, .num_chunks = 2};
  Request overlapped = request;
  overlapped.algorithm = Algorithm::kOverlapped;
  overlapped.weight_grad = WeightGrad::kLate;
  const PhaseTimes phases{.attention = 1.0,
                          .experts = 1.0,
                          .exchange = 0.5,
                          .attention_backward = 1.0,
                          .experts_backward = 1.0,
                          .attention_weight_grad = 1.0,
                          .experts_weight_grad = 1.0};
  StageCost cost{.forward = 2 * phases.forward(),
                 .backward = 2 * phases.backward(),
                 .weight_grad = 2 * phases.weight_grad(),
                 .num_exchange_layers = 2,
                 .phases = phases};
  const Costs costs{.stages = std::vector<StageCost>(8, cost)};
  const Timeline plain = simulate(build(request), costs);
  const Timeline hidden = simulate(build(overlapped), costs);
  EXPECT_LT(hidden.step, plain.step);
  // All the pairs' exchange is hidden: what is left is that of warm-up and drain.
  const double arithmetic = 16 * 2 * (2 * 6.0);
  EXPECT_GT(hidden.step, arithmetic);
  EXPECT_LT(hidden.ranks[3].busy(), plain.ranks[3].busy());
}

TEST(SimulateTest, CostsMustCoverTheStages) {
  const Schedule schedule = build({.num_ranks = 2, .num_micro_batches = 1});
  EXPECT_THROW(simulate(schedule, even_costs({.num_ranks = 3}, 1.0, 1.0, 1.0)), InternalError);
}

// Decision 22 promises the formula for whole groups; it holds for every number of micro-batches that can be
// interleaved.
TEST(SimulateTest, InterleavingIdlesAsItsFormulaSays) {
  for (int ranks = 1; ranks <= 6; ++ranks) {
    for (int group = ranks; group <= 9; ++group) {
      for (int micro_batches = 1; micro_batches <= 20; ++micro_batches) {
        const Request request{.algorithm = Algorithm::kInterleaved,
                              .num_ranks = ranks,
                              .num_micro_batches = micro_batches,
                              .num_chunks = 3,
                              .group = group};
        if (fault_of(request)) continue;
        const Schedule schedule = build(request);
        EXPECT_NEAR(simulate(schedule, even_costs(schedule.shape, 1.0, 1.0, 1.0)).mean_bubble(),
                    bubble_formula(schedule.shape), 1e-12)
            << ranks << " " << group << " " << micro_batches;
      }
    }
  }
}

}  // namespace
}  // namespace primus::schedule
