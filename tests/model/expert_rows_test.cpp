// Rows of the busiest rank's experts, against numbers worked out by hand: 100 tokens, 8 experts, 2 of them a token.
#include "model/expert_rows.hpp"

#include <gtest/gtest.h>

namespace primus::model {
namespace {

using FreeRows = ExpertCapacity::FreeRows;

MoeSpec moe(std::optional<ExpertCapacity> capacity = std::nullopt) {
  MoeSpec moe;
  moe.router.num_experts = 8;
  moe.router.top_k = 2;
  moe.router.capacity = capacity;
  return moe;
}

std::int64_t rows(const MoeSpec& moe, std::int64_t expert, double imbalance, std::int64_t expert_tensor = 1) {
  return received_rows(moe, 100, {.expert = expert, .expert_tensor = expert_tensor, .imbalance = imbalance});
}

TEST(ExpertRows, OneRankHasEveryChoiceWhateverTheImbalance) {
  for (const double imbalance : {1.0, 2.0, 1e6}) EXPECT_EQ(rows(moe(), 1, imbalance), 200);
  EXPECT_EQ(rows(moe(), 1, 3.0, 2), 400) << "two expert-tensor ranks see each other's rows";
}

TEST(ExpertRows, NoMoreThanTheExchangeSends) {
  EXPECT_EQ(rows(moe(), 4, 1.0), 200);
  EXPECT_EQ(rows(moe(), 4, 2.0), 400);
  EXPECT_EQ(rows(moe(), 4, 1.003), 201);
  EXPECT_EQ(rows(moe(), 4, 10.0), 4 * 200) << "all choices of four ranks";
  EXPECT_EQ(rows(moe(), 4, 10.0, 2), 8 * 200);
  EXPECT_EQ(rows(moe(), 8, 10.0), 8 * 100) << "one expert: a token chooses it once";
}

// ceil(100 * 2 / 8 * 1.5) = 38 tokens an expert and sender.
TEST(ExpertRows, NoMoreThanCapacitiesLeave) {
  EXPECT_EQ(rows(moe({{.factor = 1.5}}), 4, 1.0), 200);
  EXPECT_EQ(rows(moe({{.factor = 1.5}}), 4, 1.25), 250);
  EXPECT_EQ(rows(moe({{.factor = 1.5}}), 4, 2.0), 4 * 2 * 38);
  EXPECT_EQ(rows(moe({{.factor = 1.5}}), 1, 2.0), 200);
  // ceil(12.5) = 13: every expert is full even where routing is balanced.
  for (const double imbalance : {1.0, 3.0}) EXPECT_EQ(rows(moe({{.factor = 0.5}}), 4, imbalance), 4 * 2 * 13);
  EXPECT_EQ(rows(moe({{.factor = 100.0}}), 4, 10.0), 4 * 200);
}

TEST(ExpertRows, PaddedBuffersAreFixed) {
  for (const double imbalance : {1.0, 1.2, 50.0}) {
    EXPECT_EQ(rows(moe({{.factor = 1.5, .free_rows = FreeRows::kKept}}), 4, imbalance), 8 * 38);
    EXPECT_EQ(rows(moe({{.factor = 1.5, .free_rows = FreeRows::kKept}}), 1, imbalance), 8 * 38);
  }
}

}  // namespace
}  // namespace primus::model
