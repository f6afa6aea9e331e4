#include "schedule/algorithms.hpp"

#include <gtest/gtest.h>

#include "base/error.hpp"
#include "schedule/simulate.hpp"

namespace primus::schedule {
namespace {

TEST(AlgorithmsTest, EveryNameLeadsToItsAlgorithm) {
  for (const AlgorithmInfo& row : algorithms()) {
    ASSERT_NE(find_algorithm(row.name), nullptr);
    EXPECT_EQ(find_algorithm(row.name)->algorithm, row.algorithm);
    EXPECT_EQ(info(row.algorithm).name, row.name);
    EXPECT_FALSE(row.meaning.empty());
  }
  EXPECT_EQ(find_algorithm("2f2b"), nullptr);
}

std::string text_of(const ShapeFault& fault) {
  return fault.message + " | " + fault.expected + " | " + fault.found + " | " + fault.nearest;
}

TEST(AlgorithmsTest, FaultsSayWhatWouldBeLegal) {
  struct Case {
    Request request;
    std::string text;
  };
  const std::vector<Case> cases = {
      {{.algorithm = Algorithm::kInterleaved, .num_ranks = 4, .num_micro_batches = 6, .num_chunks = 2},
       "4 pipeline ranks cannot interleave them in groups of 4 | a multiple of 4, or one that leaves a last group of "
       "at "
       "least 4 | 6 | nearest: 4"},
      {{.algorithm = Algorithm::kInterleaved, .num_ranks = 4, .num_micro_batches = 13, .num_chunks = 2, .group = 6},
       "4 pipeline ranks cannot interleave them in groups of 6 | a multiple of 6, or one that leaves a last group of "
       "at "
       "least 4 | 13 | nearest: 12"},
      {{.algorithm = Algorithm::kInterleaved, .num_ranks = 4, .num_micro_batches = 8, .num_chunks = 2, .group = 3},
       "groups smaller than the 4 pipeline ranks: a chunk would wait for itself | at least 4 | 3 | "},
      {{.algorithm = Algorithm::kInterleaved, .num_ranks = 4, .num_micro_batches = 8, .num_chunks = 1},
       "1f1b-interleaved has several chunks on each rank | integer >= 2 | 1 | or 1f1b"},
      {{.algorithm = Algorithm::kZbv, .num_ranks = 4, .num_micro_batches = 8, .num_chunks = 3},
       "zbv-formatted has two chunks on each rank | 2 | 3 | "},
      {{.algorithm = Algorithm::kZb1p, .num_ranks = 4, .num_micro_batches = 8, .num_chunks = 2},
       "zero-bubble has one chunk on each rank | 1 | 2 | "},
      {{.num_ranks = 0}, "a pipeline has at least one rank | integer >= 1 | 0 | "},
      {{.num_micro_batches = -3}, "a step has at least one micro-batch | integer >= 1 | -3 | "},
      {{.num_ranks = 1 << 20, .num_micro_batches = 1 << 20},
       "the table would be too large | at most 4000000 stages times micro-batches | 1048576 x 1048576 | "},
      {{.algorithm = Algorithm::kOverlapped, .num_ranks = 1, .num_chunks = 0},
       "a rank has at least one chunk | integer >= 1 | 0 | "},
      {{.algorithm = Algorithm::kSearched, .max_in_flight = -1},
       "a rank holds at least one activation | integer >= 1 | -1 | "},
  };
  for (const Case& one : cases) {
    const auto fault = fault_of(one.request);
    ASSERT_TRUE(fault) << one.text;
    EXPECT_EQ(text_of(*fault), one.text);
    EXPECT_THROW(build(one.request), InternalError);
  }
}

// The original accepts neither M = P nor a last group that is not whole, though the schedule runs.
TEST(AlgorithmsTest, InterleavesEveryLegalNumberOfMicroBatches) {
  for (int ranks = 1; ranks <= 6; ++ranks) {
    for (int group = ranks; group <= 9; ++group) {
      for (int micro_batches = 1; micro_batches <= 24; ++micro_batches) {
        const Request request{.algorithm = Algorithm::kInterleaved,
                              .num_ranks = ranks,
                              .num_micro_batches = micro_batches,
                              .num_chunks = 3,
                              .group = group};
        const bool is_legal = micro_batches >= group && (micro_batches % group == 0 || micro_batches % group >= ranks);
        EXPECT_EQ(!fault_of(request), is_legal) << ranks << " " << group << " " << micro_batches;
        if (is_legal) {
          EXPECT_NO_THROW(build(request));
        }
      }
    }
  }
}

// semantics.md section 7: groups of 3, 5 micro-batches, 2 chunks.
TEST(AlgorithmsTest, TheLastGroupTakesWhatIsLeft) {
  const Schedule schedule = build(
      {.algorithm = Algorithm::kInterleaved, .num_ranks = 2, .num_micro_batches = 5, .num_chunks = 2, .group = 3});
  std::string micro_batches;
  std::string chunks;
  for (const Action& action : schedule.actions({0})) {
    if (action.kind != ActionKind::kForward) continue;
    micro_batches += std::to_string(action.micro_batch.value);
    chunks += std::to_string(action.chunk.value);
  }
  EXPECT_EQ(micro_batches, "0120123434");
  EXPECT_EQ(chunks, "0001110011");
}

TEST(AlgorithmsTest, OverlapPairsEverySteadyForward) {
  const Request plain{.algorithm = Algorithm::kInterleaved, .num_ranks = 4, .num_micro_batches = 8, .num_chunks = 2};
  Request overlapped = plain;
  overlapped.algorithm = Algorithm::kOverlapped;
  const Schedule schedule = build(overlapped);
  for (int rank = 0; rank < 4; ++rank) {
    int num_pairs = 0;
    int num_before = 0;
    for (const Action& action : schedule.actions({rank})) {
      if (action.kind != ActionKind::kForward) continue;
      num_pairs += action.pairing == Pairing::kWithNext ? 1 : 0;
      num_before += num_pairs == 0 ? 1 : 0;
    }
    EXPECT_EQ(num_before, 2 * (4 - rank - 1) + 4 + 1);  // one more than without pairs
    EXPECT_EQ(num_pairs, 16 - num_before);
    EXPECT_EQ(peak_in_flight(schedule.actions({rank})), peak_in_flight(build(plain).actions({rank})) + 1);
  }
}

TEST(AlgorithmsTest, OverlapWorksWithoutAPipeline) {
  const Schedule schedule = build({.algorithm = Algorithm::kOverlapped, .num_micro_batches = 3});
  std::string text;
  for (const Action& action : schedule.actions({0})) {
    if (!is_compute(action.kind)) continue;
    text += action.kind == ActionKind::kForward ? "F" : "B";
    text += std::to_string(action.micro_batch.value);
    text += action.pairing == Pairing::kWithNext ? "|" : " ";
  }
  EXPECT_EQ(text, "F0 F1|B0 F2|B1 B2 ");
}

// The original runs 2P − 1 micro-batches here, ones that do not exist among them (decision 22).
TEST(AlgorithmsTest, FewMicroBatchesRunNoOthers) {
  for (const Algorithm algorithm : {Algorithm::kZbv, Algorithm::kDualPipeV, Algorithm::kVHalf, Algorithm::kVMin}) {
    const Schedule schedule = build({.algorithm = algorithm, .num_ranks = 8, .num_micro_batches = 3, .num_chunks = 2});
    for (const std::vector<Action>& actions : schedule.ranks) {
      for (const Action& action : actions) EXPECT_LT(action.micro_batch.value, 3);
    }
  }
  // With so few, the published order leaves more places empty than a search does.
  const Schedule few = build({.algorithm = Algorithm::kZbv, .num_ranks = 16, .num_micro_batches = 16, .num_chunks = 2});
  EXPECT_LE(simulate(few, even_costs(few.shape, 1000.0, 1000.0, 1000.0)).step, 55500.0);
}

TEST(AlgorithmsTest, ASearchSeesCostsAndMemory) {
  const int ranks = 4;
  Costs costs = even_costs({.num_ranks = ranks, .num_micro_batches = 12}, 1000.0, 1000.0, 1000.0);
  costs.stages[2].weight_grad = 3000.0;  // one slow stage
  Request request{.algorithm = Algorithm::kSearched, .num_ranks = ranks, .num_micro_batches = 12};
  request.durations = durations_of(costs);
  const double usual =
      simulate(build({.algorithm = Algorithm::kZb1p, .num_ranks = ranks, .num_micro_batches = 12}), costs).step;
  EXPECT_LE(simulate(build(request), costs).step, usual);
  request.max_in_flight = 6;
  const Schedule wide = build(request);
  for (const std::vector<Action>& actions : wide.ranks) EXPECT_LE(peak_in_flight(actions), 6);
  request.max_in_flight = 1;
  EXPECT_EQ(peak_in_flight(build(request).actions({0})), 1);
}

}  // namespace
}  // namespace primus::schedule
