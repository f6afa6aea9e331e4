// Groups of ranks: Megatron's published examples, and over random grids that groups are partitions which meet as they
// must.
#include "layout/rank_grid.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <set>

#include "base/error.hpp"
#include "layout/random_grid.hpp"

namespace primus::layout {
namespace {

using Ranks = std::vector<std::int64_t>;
using Groups = std::vector<Ranks>;

std::string refusal(const GridSizes& sizes, RankOrder order = RankOrder::kDataBeforePipeline) {
  try {
    const RankGrid grid(sizes, order);
  } catch (const UserError& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::kWrongInput);
    return error.what();
  }
  return "accepted";
}

// The example in the documentation of Megatron's initialize_model_parallel: 16 ranks, TP 2, PP 4.
TEST(RankGrid, MegatronsExampleOfSixteenRanks) {
  const RankGrid grid({.world = 16, .tensor = 2, .pipeline = 4});
  EXPECT_EQ(grid.groups(GroupKind::kTensor),
            (Groups{{0, 1}, {2, 3}, {4, 5}, {6, 7}, {8, 9}, {10, 11}, {12, 13}, {14, 15}}));
  EXPECT_EQ(grid.groups(GroupKind::kPipeline), (Groups{{0, 4, 8, 12}, {1, 5, 9, 13}, {2, 6, 10, 14}, {3, 7, 11, 15}}));
  EXPECT_EQ(grid.groups(GroupKind::kData),
            (Groups{{0, 2}, {1, 3}, {4, 6}, {5, 7}, {8, 10}, {9, 11}, {12, 14}, {13, 15}}));
  EXPECT_EQ(grid.groups(GroupKind::kModel), (Groups{{0, 1, 4, 5, 8, 9, 12, 13}, {2, 3, 6, 7, 10, 11, 14, 15}}));
}

TEST(RankGrid, ExpertsFoldTheRanksOfAStageAnotherWay) {
  // Attention TP 2 x CP 2 x DP 2, experts ETP 1 x EP 4 x EDP 2, two stages.
  const RankGrid grid({.world = 16, .tensor = 2, .context = 2, .pipeline = 2, .expert = 4});
  EXPECT_EQ(grid.num_data(), 2);
  EXPECT_EQ(grid.num_expert_data(), 2);
  EXPECT_EQ(grid.group(GroupKind::kContext, 5), (Ranks{5, 7}));
  EXPECT_EQ(grid.group(GroupKind::kDataContext, 0), (Ranks{0, 2, 4, 6}));
  EXPECT_EQ(grid.group(GroupKind::kExpert, 6), (Ranks{4, 5, 6, 7}));
  EXPECT_EQ(grid.group(GroupKind::kExpertData, 6), (Ranks{2, 6}));
  EXPECT_EQ(grid.group(GroupKind::kPipeline, 3), (Ranks{3, 11}));
  EXPECT_EQ(grid.place(13).pipeline, 1);
  EXPECT_EQ(grid.place(13).expert, 1);
  EXPECT_EQ(grid.place(13).expert_data, 1);
}

TEST(RankGrid, ExpertTensorRanksAreTheFastest) {
  const RankGrid grid({.world = 8, .tensor = 4, .expert = 2, .expert_tensor = 2});
  EXPECT_EQ(grid.group(GroupKind::kExpertTensor, 5), (Ranks{4, 5}));
  EXPECT_EQ(grid.group(GroupKind::kExpert, 5), (Ranks{5, 7}));
  EXPECT_EQ(grid.group(GroupKind::kExpertTensorExpert, 5), (Ranks{4, 5, 6, 7}));
  EXPECT_EQ(grid.group(GroupKind::kExpertData, 5), (Ranks{1, 5}));
}

TEST(RankGrid, TheOtherOrderPutsThePipelineBeforeTheData) {
  const RankGrid grid({.world = 16, .tensor = 2, .pipeline = 4, .expert = 2}, RankOrder::kPipelineBeforeData);
  EXPECT_EQ(grid.group(GroupKind::kPipeline, 1), (Ranks{1, 3, 5, 7}));
  EXPECT_EQ(grid.group(GroupKind::kData, 1), (Ranks{1, 9}));
  EXPECT_EQ(grid.group(GroupKind::kExpertData, 1), (Ranks{1, 9}));
}

TEST(RankGrid, PipelineMembersAreThoseOfTheRanksOwnGroup) {
  const RankGrid grid({.world = 16, .tensor = 2, .pipeline = 4});
  const int ends[] = {0, 3};
  EXPECT_EQ(grid.pipeline_members(6, ends), (Ranks{2, 14}));
}

TEST(RankGrid, WrongSizesAreRefusedWithTheirNumbers) {
  EXPECT_EQ(refusal({.world = 10, .tensor = 4}), "TP 4 x CP 1 x PP 1 = 4 does not divide the world size 10");
  EXPECT_EQ(refusal({.world = 8, .expert = 3}), "ETP 1 x EP 3 x PP 1 = 3 does not divide the world size 8");
  EXPECT_EQ(refusal({.world = 8, .context = 0}), "context-parallel size 0: expected at least 1");
  EXPECT_EQ(refusal({.world = -8}), "world size -8: expected at least 1");
  constexpr std::int64_t kHuge = std::int64_t{1} << 40;
  EXPECT_EQ(refusal({.world = kHuge, .tensor = kHuge, .context = kHuge}),
            "the product of the parallel sizes is beyond 2^63");
  EXPECT_EQ(refusal({.world = 8, .tensor = 2, .expert = 4}, RankOrder::kPipelineBeforeData),
            "the order tensor, pipeline, data needs TP x CP = ETP x EP, found 2 and 4");
  const RankGrid grid({.world = 4});
  EXPECT_THROW(grid.place(4), UserError);
  EXPECT_THROW(grid.place(-1), UserError);
  EXPECT_THROW(grid.group(GroupKind::kData, std::numeric_limits<std::int64_t>::max()), UserError);
}

/// Every rank in exactly one group of the kind, all groups of the stated size.
void expect_partition(const RankGrid& grid, GroupKind kind) {
  std::vector<int> times(static_cast<std::size_t>(grid.sizes().world), 0);
  for (const Ranks& group : grid.groups(kind)) {
    ASSERT_EQ(std::ssize(group), grid.group_size(kind)) << name(kind);
    for (const std::int64_t rank : group) ++times.at(static_cast<std::size_t>(rank));
  }
  EXPECT_EQ(std::count(times.begin(), times.end(), 1), grid.sizes().world) << name(kind);
}

std::int64_t num_common(const RankGrid& grid, GroupKind a, GroupKind b, std::int64_t rank) {
  const Ranks one = grid.group(a, rank);
  const Ranks other = grid.group(b, rank);
  const std::set<std::int64_t> members(other.begin(), other.end());
  return std::count_if(one.begin(), one.end(), [&](std::int64_t member) { return members.contains(member); });
}

TEST(RankGridProperty, GroupsArePartitionsThatMeetAsTheyMust) {
  std::mt19937_64 generator(71);
  using enum GroupKind;
  for (int i = 0; i < test::num_random_cases(5000); ++i) {
    const GridSizes sizes = test::random_grid_sizes(generator);
    const bool may_reorder = sizes.tensor * sizes.context == sizes.expert * sizes.expert_tensor;
    const RankGrid grid(
        sizes, may_reorder && generator() % 2 == 0 ? RankOrder::kPipelineBeforeData : RankOrder::kDataBeforePipeline);
    expect_partition(grid, static_cast<GroupKind>(generator() % kNumGroupKinds));
    EXPECT_EQ(grid.num_data() * sizes.tensor * sizes.context * sizes.pipeline, sizes.world);
    EXPECT_EQ(grid.num_expert_data() * sizes.expert * sizes.expert_tensor * sizes.pipeline, sizes.world);
    const auto rank = static_cast<std::int64_t>(generator() % static_cast<std::uint64_t>(sizes.world));
    // Axes of one folding meet in the rank alone; a joint group holds its parts whole.
    for (const auto& [a, b] : {std::pair{kTensor, kContext},
                               {kTensor, kData},
                               {kContext, kData},
                               {kTensor, kPipeline},
                               {kDataContext, kTensor},
                               {kDataContext, kPipeline},
                               {kExpert, kExpertTensor},
                               {kExpert, kExpertData},
                               {kExpertData, kExpertTensorExpert},
                               {kExpertData, kPipeline},
                               {kExpertModel, kExpertData},
                               {kModel, kDataContext}}) {
      EXPECT_EQ(num_common(grid, a, b, rank), 1) << name(a) << " " << name(b);
    }
    EXPECT_EQ(num_common(grid, kDataContext, kData, rank), grid.num_data());
    EXPECT_EQ(num_common(grid, kExpertTensorExpert, kExpert, rank), sizes.expert);
    // Both foldings cover the same ranks: those of the stage.
    std::set<std::int64_t> dense, sparse;
    for (const std::int64_t outer : grid.group(kDataContext, rank)) {
      for (const std::int64_t inner : grid.group(kTensor, outer)) dense.insert(inner);
    }
    for (const std::int64_t outer : grid.group(kExpertData, rank)) {
      for (const std::int64_t inner : grid.group(kExpertTensorExpert, outer)) sparse.insert(inner);
    }
    EXPECT_EQ(dense, sparse);
    EXPECT_EQ(std::ssize(dense), sizes.world / sizes.pipeline);
    const RankPlace place = grid.place(rank);
    for (const std::int64_t member : dense) EXPECT_EQ(grid.place(member).pipeline, place.pipeline);
    EXPECT_EQ(grid.group(kExpert, rank).at(static_cast<std::size_t>(place.expert)), rank);
    EXPECT_EQ(grid.group(kPipeline, rank).at(static_cast<std::size_t>(place.pipeline)), rank);
  }
}

}  // namespace
}  // namespace primus::layout
