// The order of a rank's passes: counts, dependencies, and how many micro-batches it holds.
#include "projection/passes.hpp"

#include <gtest/gtest.h>

#include <set>

namespace primus::projection {
namespace {

using schedule::ActionKind;

int peak_in_flight(const std::vector<schedule::Action>& actions) {
  int held = 0;
  int peak = 0;
  for (const schedule::Action& action : actions) {
    held += action.kind == ActionKind::kForward ? 1 : action.kind == ActionKind::kBackward ? -1 : 0;
    peak = std::max(peak, held);
  }
  return peak;
}

/// Every chunk of every micro-batch forward once and backward once after it.
void expect_whole(const Pipeline& pipeline, const std::vector<schedule::Action>& actions) {
  std::set<std::pair<int, int>> forward;
  std::set<std::pair<int, int>> backward;
  for (const schedule::Action& action : actions) {
    const std::pair key{action.micro_batch.value, action.chunk.value};
    if (action.kind == ActionKind::kForward) {
      EXPECT_TRUE(forward.insert(key).second);
    } else {
      EXPECT_TRUE(forward.contains(key));
      EXPECT_TRUE(backward.insert(key).second);
    }
  }
  EXPECT_EQ(std::ssize(backward), std::ssize(forward));
  EXPECT_EQ(std::ssize(forward), pipeline.num_micro_batches * pipeline.num_chunks);
}

TEST(Passes, OneForwardOneBackwardHoldsWhatIsAheadOfIt) {
  for (int ranks = 1; ranks <= 8; ++ranks) {
    for (int micro_batches = 1; micro_batches <= 12; ++micro_batches) {
      const Pipeline pipeline{.num_ranks = ranks, .num_micro_batches = micro_batches, .group = ranks};
      for (int rank = 0; rank < ranks; ++rank) {
        const auto actions = passes(pipeline, rank);
        expect_whole(pipeline, actions);
        EXPECT_EQ(peak_in_flight(actions), std::min(ranks - rank, micro_batches));
      }
    }
  }
}

// semantics.md section 7: at most min(2(P − 1 − r) + (v − 1)·group + 1, M·v) chunk activations.
TEST(Passes, InterleavedHoldsChunksAhead) {
  for (const int ranks : {2, 4, 8}) {
    for (const int chunks : {2, 3, 4}) {
      for (const int group : {ranks, ranks + 1, 2 * ranks}) {
        const Pipeline pipeline{.algorithm = Algorithm::kInterleaved,
                                .num_ranks = ranks,
                                .num_chunks = chunks,
                                .num_micro_batches = 3 * group,
                                .group = group};
        for (int rank = 0; rank < ranks; ++rank) {
          const auto actions = passes(pipeline, rank);
          expect_whole(pipeline, actions);
          const int ahead = 2 * (ranks - 1 - rank) + (chunks - 1) * group + 1;
          EXPECT_EQ(peak_in_flight(actions), std::min(ahead, 3 * group * chunks));
        }
      }
    }
  }
}

TEST(Passes, OverlappedExchangesRunOneForwardFurtherAhead) {
  Pipeline pipeline{
      .algorithm = Algorithm::kInterleaved, .num_ranks = 4, .num_chunks = 2, .num_micro_batches = 8, .group = 4};
  const int without = peak_in_flight(passes(pipeline, 1));
  pipeline.overlap = Overlap::kOn;
  EXPECT_EQ(peak_in_flight(passes(pipeline, 1)), without + 1);
}

}  // namespace
}  // namespace primus::projection
