// Random shapes over all schedules: build() proves each table (conservation, dependencies, unbuffered messages,
// memory), the simulator must run it with any times, and what it adds up must be what went in.
#include <gtest/gtest.h>

#include <random>

#include "schedule/algorithms.hpp"
#include "schedule/simulate.hpp"
#include "support/soak.hpp"

namespace primus::schedule {
namespace {

int num_cases() {
  return test::rounds(4000, 40'000);
}

class Random {
 public:
  explicit Random(unsigned seed) : engine_(seed) {}
  int between(int low, int high) { return std::uniform_int_distribution(low, high)(engine_); }
  double time() { return between(0, 9) == 0 ? 0.0 : std::uniform_real_distribution(0.1, 3.0)(engine_); }

 private:
  std::mt19937 engine_;
};

Request random_request(Random& random) {
  const auto rows = algorithms();
  const AlgorithmInfo& row = rows[static_cast<std::size_t>(random.between(0, static_cast<int>(rows.size()) - 1))];
  Request request{.algorithm = row.algorithm,
                  .num_ranks = random.between(1, random.between(0, 9) == 0 ? 24 : 9),
                  .num_micro_batches = random.between(1, random.between(0, 9) == 0 ? 80 : 30)};
  request.num_chunks = row.chunks == ChunkRule::kOne ? 1 : row.chunks == ChunkRule::kTwo ? 2 : random.between(2, 5);
  if (row.chunks == ChunkRule::kMany && random.between(0, 1) == 1) {
    request.group = random.between(request.num_ranks, request.num_ranks + 6);
  }
  constexpr WeightGrad kChoices[] = {WeightGrad::kIncluded, WeightGrad::kLate, WeightGrad::kApart};
  request.weight_grad = kChoices[random.between(0, 2)];
  request.gather = random.between(0, 1) == 0 ? ParameterGather::kAbsent : ParameterGather::kPresent;
  if (random.between(0, 2) == 0) request.max_in_flight = random.between(1, 12);
  return request;
}

/// The legal request nearest to one that random numbers made.
Request legal(Request request) {
  while (fault_of(request)) ++request.num_micro_batches;
  return request;
}

Costs random_costs(const Shape& shape, Random& random) {
  Costs costs{.message = random.time()};
  for (int stage = 0; stage < shape.num_stages(); ++stage) {
    StageCost cost{.forward = random.time(), .backward = random.time(), .weight_grad = random.time()};
    cost.activation = 1.0 + random.time();
    cost.kept_for_weight_grad = 0.5 * cost.activation;
    if (random.between(0, 1) == 0) {
      cost.num_exchange_layers = random.between(0, 3);
      cost.phases = {.attention = random.time(),
                     .experts = random.time(),
                     .exchange = random.time(),
                     .attention_backward = random.time(),
                     .experts_backward = random.time(),
                     .attention_weight_grad = random.time(),
                     .experts_weight_grad = random.time()};
      cost.forward += cost.num_exchange_layers * cost.phases.forward();
      cost.backward += cost.num_exchange_layers * cost.phases.backward();
      cost.weight_grad += cost.num_exchange_layers * cost.phases.weight_grad();
    }
    costs.stages.push_back(cost);
  }
  return costs;
}

bool has_pairs(const std::vector<Action>& actions) {
  for (const Action& action : actions) {
    if (action.pairing == Pairing::kWithNext) return true;
  }
  return false;
}

void check_timeline(const Schedule& schedule, const Costs& costs) {
  const Timeline timeline = simulate(schedule, costs);
  const int micro_batches = schedule.shape.num_micro_batches;
  for (int rank = 0; rank < schedule.shape.num_ranks; ++rank) {
    const RankTimeline& row = timeline.ranks[static_cast<std::size_t>(rank)];
    double work = 0.0;
    for (int chunk = 0; chunk < schedule.shape.num_chunks; ++chunk) {
      const StageCost& cost = costs.stages[static_cast<std::size_t>(stage_at(schedule.shape, {{rank}, {chunk}}).value)];
      work += micro_batches * (cost.forward + cost.backward + cost.weight_grad);
    }
    const double slack = 1e-9 * (1.0 + work);
    ASSERT_LE(row.busy(), work + slack);  // pairs take no longer than their halves
    if (!has_pairs(schedule.actions({rank}))) {
      ASSERT_NEAR(row.busy(), work, slack);
    }
    ASSERT_LE(row.busy(), timeline.step + slack);
    ASSERT_NEAR(row.held.back().amount, 0.0, slack);
    if (!schedule.max_in_flight.empty()) {
      ASSERT_LE(row.peak_in_flight, schedule.max_in_flight[static_cast<std::size_t>(rank)]);
    }
    double now = 0.0;
    for (const Span& span : row.spans) {
      ASSERT_GE(span.end, span.start);
      ASSERT_GE(span.end, now);
      now = span.end;
    }
  }
}

TEST(SchedulePropertiesTest, RandomTablesAreSound) {
  Random random(20261130);
  for (int i = 0; i < num_cases(); ++i) {
    const Request request = legal(random_request(random));
    SCOPED_TRACE(std::string(info(request.algorithm).name) + " P " + std::to_string(request.num_ranks) + " M " +
                 std::to_string(request.num_micro_batches) + " V " + std::to_string(request.num_chunks) + " group " +
                 std::to_string(request.group));
    Schedule schedule;
    ASSERT_NO_THROW(schedule = build(request));
    ASSERT_NO_FATAL_FAILURE(check_timeline(schedule, random_costs(schedule.shape, random)));
  }
}

TEST(SchedulePropertiesTest, BetterTablesAreShorterAndHoldNoMore) {
  Random random(7);
  int num_better = 0;
  for (int i = 0; i < num_cases() / 40; ++i) {
    const Request request = legal(random_request(random));
    const auto better = build_better(request);
    if (!better) continue;
    ++num_better;
    const Schedule usual = build(request);
    const Costs even = even_costs(usual.shape, 1.0, 1.0, 1.0);
    EXPECT_LT(simulate(*better, even).step, simulate(usual, even).step);
    EXPECT_EQ(better->max_in_flight, usual.max_in_flight);
  }
  EXPECT_GT(num_better, 0);
}

// A request that is refused is refused with a reason; none ends in an internal error.
TEST(SchedulePropertiesTest, AnyRequestIsBuiltOrRefused) {
  Random random(3);
  for (int i = 0; i < num_cases(); ++i) {
    Request request = random_request(random);
    request.num_ranks = random.between(-1, 6);
    request.num_micro_batches = random.between(-1, 12);
    request.num_chunks = random.between(-1, 4);
    request.group = random.between(-1, 8);
    request.max_in_flight = random.between(-1, 4);
    if (const auto fault = fault_of(request)) {
      EXPECT_FALSE(fault->message.empty());
      EXPECT_FALSE(fault->found.empty());
      continue;
    }
    ASSERT_NO_THROW(build(request)) << info(request.algorithm).name << " " << request.num_ranks << " "
                                    << request.num_micro_batches << " " << request.num_chunks << " " << request.group;
  }
}

}  // namespace
}  // namespace primus::schedule
