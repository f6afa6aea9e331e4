// The orders, step counts and bubbles of the reference (projection-and-pipeline.md 3.4): P ranks, M micro-batches, a
// rank's forward, input gradient and weight gradient 1000 units each, messages free.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "schedule/algorithms.hpp"
#include "schedule/simulate.hpp"

namespace primus::schedule {
namespace {

Timeline unit_timeline(const Schedule& schedule) {
  return simulate(schedule, even_costs(schedule.shape, 1000.0, 1000.0, 1000.0));
}

Request request_of(Algorithm algorithm, int num_ranks, int num_micro_batches, int num_chunks) {
  return {
      .algorithm = algorithm, .num_ranks = num_ranks, .num_micro_batches = num_micro_batches, .num_chunks = num_chunks};
}

struct Step {
  Algorithm algorithm;
  int num_chunks = 1;
  std::vector<double> ends;   // when each rank ends, in thousands
  std::vector<double> peaks;  // activations of a whole rank
};

std::vector<double> falling(double from, double by) {
  std::vector<double> values;
  for (int rank = 0; rank < 8; ++rank) values.push_back(from - by * rank);
  return values;
}

std::vector<double> all(double value) {
  return falling(value, 0.0);
}

// Each rank's total in the table counts from its own first action; here every rank ends at the time of the step's
// clock.
TEST(ReferenceTest, StepsAndMemoryOfEightRanks) {
  const std::vector<Step> steps = {
      {Algorithm::k1F1B, 1, {117}, falling(8, 1)},
      {Algorithm::kZb1p, 1, {103}, all(8)},
      {Algorithm::kSearched, 1, {103}, all(8)},
      {Algorithm::kInterleaved, 2, {106.5}, falling(11.5, 1)},
      {Algorithm::kZbv, 2, {99.5}, all(8)},
      {Algorithm::kVHalf, 2, {104.5, 104, 103.5, 103, 102.5, 102, 102, 102.5}, all(5)},
      {Algorithm::kVMin, 2, {109, 108.5, 108, 107.5, 107, 106.5, 106, 106}, all(4)},
  };
  for (const Step& step : steps) {
    const Timeline timeline = unit_timeline(build(request_of(step.algorithm, 8, 32, step.num_chunks)));
    EXPECT_DOUBLE_EQ(timeline.step, 1000.0 * step.ends.front()) << info(step.algorithm).name;
    for (std::size_t rank = 0; rank < 8; ++rank) {
      EXPECT_DOUBLE_EQ(timeline.ranks[rank].peak, step.peaks[rank]) << info(step.algorithm).name << " " << rank;
      EXPECT_DOUBLE_EQ(timeline.ranks[rank].busy(), 96000.0);
      if (step.ends.size() > 1) {
        EXPECT_DOUBLE_EQ(timeline.ranks[rank].end, 1000.0 * step.ends[rank]) << rank;
      }
    }
  }
}

TEST(ReferenceTest, ABetterOrderOfVMinIsFound) {
  const Request request = request_of(Algorithm::kVMin, 8, 32, 2);
  const auto better = build_better(request);
  ASSERT_TRUE(better);
  EXPECT_DOUBLE_EQ(unit_timeline(*better).step, 107500.0);
  EXPECT_EQ(better->max_in_flight, build(request).max_in_flight);
  for (const Algorithm algorithm : {Algorithm::k1F1B, Algorithm::kZb1p}) {
    EXPECT_FALSE(build_better(request_of(algorithm, 8, 32, 1)));
  }
  EXPECT_FALSE(build_better(request_of(Algorithm::kZbv, 8, 32, 2)));
}

struct Bubbles {
  int num_ranks = 1;
  int num_micro_batches = 1;
  std::vector<double> percent;  // 1f1b, zb, interleaved 2, interleaved 4, zbv, v-half, v-min
};

TEST(ReferenceTest, BubblesOfOtherShapes) {
  const std::vector<Bubbles> table = {
      {4, 8, {27.27, 11.11, 15.79, 8.57, 5.88, 9.43, 18.64}},
      {4, 16, {15.79, 5.88, 8.57, 4.48, 3.03, 4.95, 10.28}},
      {8, 16, {30.43, 12.73, 17.95, 9.86, 6.80, 15.04, 21.31}},
      {16, 32, {31.91, 13.51, 18.99, 10.49, 7.25, 17.60, 23.51}},
      {16, 64, {18.99, 7.25, 10.49, 5.54, 3.76, 9.65, 13.32}},
      {24, 48, {32.39, 13.77, 19.33, 10.70, 7.40, 18.41, 23.61}},
  };
  const std::vector<std::pair<Algorithm, int>> columns = {
      {Algorithm::k1F1B, 1}, {Algorithm::kZb1p, 1},  {Algorithm::kInterleaved, 2}, {Algorithm::kInterleaved, 4},
      {Algorithm::kZbv, 2},  {Algorithm::kVHalf, 2}, {Algorithm::kVMin, 2}};
  for (const Bubbles& row : table) {
    for (std::size_t i = 0; i < columns.size(); ++i) {
      const auto& [algorithm, chunks] = columns[i];
      const Timeline timeline =
          unit_timeline(build(request_of(algorithm, row.num_ranks, row.num_micro_batches, chunks)));
      EXPECT_NEAR(100.0 * timeline.mean_bubble(), row.percent[i], 0.005)
          << info(algorithm).name << " " << row.num_ranks << " x " << row.num_micro_batches;
    }
  }
}

// The deep-dive's case, which the original cannot simulate because M = P.
TEST(ReferenceTest, InterleavingSixteenRanksWithSixteenMicroBatches) {
  for (const auto& [chunks, percent] : {std::pair{1, 48.39}, {3, 23.81}, {6, 13.51}}) {
    const Algorithm algorithm = chunks == 1 ? Algorithm::k1F1B : Algorithm::kInterleaved;
    const Schedule schedule = build(request_of(algorithm, 16, 16, chunks));
    const Timeline timeline = unit_timeline(schedule);
    EXPECT_NEAR(100.0 * timeline.mean_bubble(), percent, 0.005);
    EXPECT_NEAR(timeline.mean_bubble(), bubble_formula(schedule.shape), 1e-12);
  }
}

TEST(ReferenceTest, InterleavedPeaks) {
  for (const auto& [ranks, two, four] :
       {std::tuple{4, 5.5, 4.75}, {8, 11.5, 9.75}, {16, 23.5, 19.75}, {24, 35.5, 29.75}}) {
    EXPECT_EQ(unit_timeline(build(request_of(Algorithm::kInterleaved, ranks, 2 * ranks, 2))).ranks[0].peak, two);
    EXPECT_EQ(unit_timeline(build(request_of(Algorithm::kInterleaved, ranks, 2 * ranks, 4))).ranks[0].peak, four);
  }
}

// Decision 23, in times of one stage: (PP/2 − 1)(F&B + B − 3W) idle, PP + 1 activations; two stages on each of PP/2
// ranks.
TEST(ReferenceTest, DualPipeVIdlesAsItsFormulaSays) {
  for (const int ranks : {2, 4, 8, 16}) {
    const Schedule schedule = build(request_of(Algorithm::kDualPipeV, ranks, 4 * ranks, 2));
    const Timeline timeline = simulate(schedule, even_costs(schedule.shape, 2.0, 2.0, 2.0));
    for (const RankTimeline& rank : timeline.ranks) {
      EXPECT_NEAR(timeline.step - rank.busy(), (ranks - 1) * (3.0 + 2.0 - 3.0), 1e-9) << ranks;
      EXPECT_EQ(rank.peak_in_flight, 2 * ranks + 1);
    }
  }
}

/// Computation of a rank in the reference's letters: kind, micro-batch, and the chunk if there are two.
std::string letters(const Schedule& schedule, int rank) {
  std::string text;
  for (const Action& action : schedule.actions({rank})) {
    if (!is_compute(action.kind)) continue;
    if (!text.empty()) text += ' ';
    const bool is_whole = action.weight_grad != WeightGrad::kApart;
    text += action.kind == ActionKind::kForward      ? "F"
            : action.kind == ActionKind::kWeightGrad ? "W"
            : is_whole                               ? "BW"
                                                     : "B";
    text += std::to_string(action.micro_batch.value);
    if (schedule.shape.num_chunks > 1) text += static_cast<char>('a' + action.chunk.value);
  }
  return text;
}

struct Listed {
  Algorithm algorithm;
  int num_chunks = 1;
  int rank = 0;
  const char* order = "";
};

TEST(ReferenceTest, OrdersOfFourRanksAndEightMicroBatches) {
  const std::vector<Listed> orders = {
      {Algorithm::k1F1B, 1, 1, "F0 F1 F2 BW0 F3 BW1 F4 BW2 F5 BW3 F6 BW4 F7 BW5 BW6 BW7"},
      {Algorithm::kInterleaved, 2, 0,
       "F0a F1a F2a F3a F0b F1b F2b F3b F4a F5a F6a BW0b F7a BW1b F4b BW2b F5b BW3b F6b BW0a F7b BW1a BW2a BW3a BW4b "
       "BW5b BW6b BW7b BW4a BW5a BW6a BW7a"},
      {Algorithm::kInterleaved, 2, 3,
       "F0a F1a F2a F3a F0b BW0b F1b BW1b F2b BW2b F3b BW3b F4a BW0a F5a BW1a F6a BW2a F7a BW3a F4b BW4b F5b BW5b F6b "
       "BW6b F7b BW7b BW4a BW5a BW6a BW7a"},
      {Algorithm::kZb1p, 1, 2, "F0 F1 B0 F2 B1 F3 B2 W0 F4 B3 W1 F5 B4 W2 F6 B5 W3 F7 B6 W4 B7 W5 W6 W7"},
      {Algorithm::kZb1p, 1, 3, "F0 B0 F1 B1 F2 B2 F3 B3 W0 F4 B4 W1 F5 B5 W2 F6 B6 W3 F7 B7 W4 W5 W6 W7"},
      {Algorithm::kZbv, 2, 0,
       "F0a F1a F2a F3a F4a F5a F6a F0b B0b W0b F1b B1b W1b F2b B2b W2b F3b B3b W3b F7a B0a W0a F4b B4b W4b B1a W1a "
       "F5b B5b W5b B2a W2a F6b B6b W6b B3a W3a F7b B7b W7b B4a W4a B5a W5a B6a W6a B7a W7a"},
      {Algorithm::kZbv, 2, 3,
       "F0a F0b F1a F1b F2a F2b F3a F3b B0b W0b F4a B0a W0a F4b B1b W1b F5a B1a W1a F5b B2b W2b F6a B2a W2a F6b B3b "
       "W3b F7a B3a W3a F7b B4b W4b B4a B5b B5a B6b B6a B7b B7a W4a W5b W6b W7b W5a W6a W7a"},
      {Algorithm::kVHalf, 2, 0,
       "F0a F1a F2a F3a F4a F0b B0b W0b F1b B1b W1b F2b B2b W2b B0a W0a F5a F3b B3b W3b B1a W1a F6a F4b B4b W4b B2a "
       "W2a F7a F5b B5b W5b B3a W3a F6b B6b W6b B4a W4a F7b B7b B5a W7b B6a W5a W6a B7a W7a"},
      {Algorithm::kVHalf, 2, 3,
       "F0a F0b F1a F1b F2a F2b B0b W0b B0a W0a F3a F3b B1b W1b B1a W1a F4a F4b B2b W2b B2a W2a F5a F5b B3b W3b B3a "
       "W3a F6a F6b B4b W4b B4a W4a F7a F7b B5b B5a B6b B6a W5b W5a B7b B7a W6b W6a W7b W7a"},
      {Algorithm::kVMin, 2, 0,
       "F0a F1a F2a F0b B0b W0b F1b B1b W1b F3a B0a W0a F2b B2b B1a W2b W1a F4a F3b B3b B2a W3b W2a F5a F4b B4b B3a "
       "W4b W3a F6a F5b B5b B4a W5b W4a F7a F6b B6b B5a W6b W5a F7b B7b B6a W7b W6a B7a W7a"},
      {Algorithm::kVMin, 2, 3,
       "F0a F0b F1a F1b B0b B0a W0b W0a F2a F2b B1b B1a W1b W1a F3a F3b B2b B2a W2b W2a F4a F4b B3b B3a W3b W3a F5a "
       "F5b B4b B4a W4b W4a F6a F6b B5b B5a W5b W5a F7a F7b B6b B6a W6b W6a B7b B7a W7b W7a"},
  };
  for (const Listed& listed : orders) {
    EXPECT_EQ(letters(build(request_of(listed.algorithm, 4, 8, listed.num_chunks)), listed.rank), listed.order)
        << info(listed.algorithm).name << ", rank " << listed.rank;
  }
}

}  // namespace
}  // namespace primus::schedule
