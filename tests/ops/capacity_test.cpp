#include "ops/permute/capacity.hpp"

#include <ATen/ops/index_select.h>
#include <gtest/gtest.h>

#include <numeric>
#include <set>

#include "ops/permute/permute.hpp"
#include "support/tensors.hpp"

namespace primus {
namespace {

using at::Tensor;
using ops::CapacityOptions;
using ops::DropPolicy;
using ops::FreeRows;
using namespace primus::test;

struct Plan {
  Tensor offsets, row_of, slot_of;
};

Plan plan_of(const Tensor& index, const Tensor& prob, std::int64_t experts, const CapacityOptions& options) {
  const std::int64_t full = experts * options.capacity;
  const std::int64_t rows = options.free_rows == FreeRows::kKept ? full : std::min(full, index.numel());
  Plan plan{poisoned({experts + 1}, at::kInt), poisoned({index.size(0), index.size(1)}, at::kInt),
            poisoned({rows}, at::kInt)};
  ops::permute_plan_within_capacity(index, prob, experts, options, plan.offsets, plan.row_of, plan.slot_of);
  return plan;
}

/// K different experts a token, the lower ones more often, and some tokens that are filling.
Tensor skewed_choice(std::int64_t tokens, std::int64_t top_k, std::int64_t experts, std::mt19937_64& generator) {
  Tensor index = at::full({tokens, top_k}, -1, at::kInt);
  for (std::int64_t t = 0; t < tokens; ++t) {
    if (generator() % 7 == 0) continue;
    std::set<int> chosen;
    while (std::ssize(chosen) < top_k) {
      const double u = std::uniform_real_distribution<double>(0.0, 1.0)(generator);
      chosen.insert(static_cast<int>(u * u * static_cast<double>(experts)));
    }
    std::vector<int> order(chosen.begin(), chosen.end());
    std::shuffle(order.begin(), order.end(), generator);
    std::copy(order.begin(), order.end(), index.data_ptr<int>() + t * top_k);
  }
  return index;
}

struct Shape {
  std::int64_t tokens, top_k, experts, capacity;
};

class CapacityTest : public ::testing::TestWithParam<std::tuple<Shape, DropPolicy, FreeRows>> {};

/// Against every expert's choices listed and sorted whole.
TEST_P(CapacityTest, KeepsExactlyWhatThePolicySays) {
  const auto& [shape, policy, free_rows] = GetParam();
  const CapacityOptions options{.capacity = shape.capacity, .drop = policy, .free_rows = free_rows};
  for (int seed = 0; seed < 20; ++seed) {
    std::mt19937_64 generator(static_cast<std::uint64_t>(seed));
    const Tensor index = skewed_choice(shape.tokens, shape.top_k, shape.experts, generator);
    Tensor prob = random_normal({shape.tokens, shape.top_k}, at::kFloat, generator).abs();
    if (seed % 2 == 1) prob = prob.mul(4.0).round();  // many ties
    const Plan plan = plan_of(index, prob, shape.experts, options);
    const int* expert = index.data_ptr<int>();
    const int* offset = plan.offsets.data_ptr<int>();
    const int* row_of = plan.row_of.data_ptr<int>();
    const int* slot_of = plan.slot_of.data_ptr<int>();
    std::int64_t kept = 0;
    for (std::int64_t e = 0; e < shape.experts; ++e) {
      std::vector<int> slots;
      for (int i = 0; i < index.numel(); ++i) {
        if (expert[i] == e) slots.push_back(i);
      }
      if (policy == DropPolicy::kProbability) {
        std::stable_sort(slots.begin(), slots.end(),
                         [&](int a, int b) { return prob.data_ptr<float>()[a] > prob.data_ptr<float>()[b]; });
      }
      for (std::size_t i = static_cast<std::size_t>(shape.capacity); i < slots.size(); ++i) {
        EXPECT_EQ(row_of[slots[i]], -1) << "expert " << e;
      }
      slots.resize(std::min(slots.size(), static_cast<std::size_t>(shape.capacity)));
      std::sort(slots.begin(), slots.end());
      const std::int64_t rows = offset[e + 1] - offset[e];
      EXPECT_LE(rows, shape.capacity);
      EXPECT_EQ(rows, free_rows == FreeRows::kKept ? shape.capacity : std::ssize(slots));
      for (std::int64_t i = 0; i < rows; ++i) {
        const int slot = i < std::ssize(slots) ? slots[static_cast<std::size_t>(i)] : -1;
        EXPECT_EQ(slot_of[offset[e] + i], slot);
        if (slot >= 0) {
          EXPECT_EQ(row_of[slot], offset[e] + i);
        }
      }
      kept += std::ssize(slots);
    }
    for (std::int64_t r = offset[shape.experts]; r < plan.slot_of.numel(); ++r) EXPECT_EQ(slot_of[r], -1);
    std::int64_t with_row = 0;
    for (std::int64_t i = 0; i < index.numel(); ++i) {
      with_row += row_of[i] >= 0 ? 1 : 0;
      if (expert[i] < 0) {
        EXPECT_EQ(row_of[i], -1);
      }
    }
    EXPECT_EQ(with_row, kept);
  }
}

/// Rows and back: each token its own row once for each choice that was kept, filling and dropped ones nothing.
TEST_P(CapacityTest, PermuteThenUnpermuteGivesTheTokenOnceForEachChoiceKept) {
  const auto& [shape, policy, free_rows] = GetParam();
  const CapacityOptions options{.capacity = shape.capacity, .drop = policy, .free_rows = free_rows};
  std::mt19937_64 generator(90);
  const Tensor index = skewed_choice(shape.tokens, shape.top_k, shape.experts, generator);
  const Tensor prob = random_normal({shape.tokens, shape.top_k}, at::kDouble, generator).abs();
  const Plan plan = plan_of(index, prob, shape.experts, options);
  const Tensor x = random_normal({shape.tokens, 7}, at::kDouble, generator);
  Tensor x_R = poisoned({plan.slot_of.numel(), 7}, at::kDouble);
  ops::permute_rows(x, plan.row_of, x_R);
  const Tensor kept = plan.row_of.ge(0);
  for (const ops::Write write : {ops::Write::kOverwrite, ops::Write::kAccumulate}) {
    Tensor back = write == ops::Write::kOverwrite ? poisoned({shape.tokens, 7}, at::kDouble) : x.clone();
    ops::unpermute_sum(x_R, plan.row_of, back, write);
    const Tensor times = kept.sum(1, true).add(write == ops::Write::kOverwrite ? 0 : 1);
    EXPECT_LE(relative_error(back, x.mul(times)), 1e-14);
  }
  Tensor prob_R = poisoned({plan.slot_of.numel()}, at::kDouble);
  Tensor prob_back = poisoned({shape.tokens, shape.top_k}, at::kDouble);
  ops::permute_values(prob, plan.slot_of, prob_R);
  ops::unpermute_values(prob_R, plan.row_of, prob_back);
  EXPECT_TRUE(at::equal(prob_back, prob.mul(kept)));
  EXPECT_TRUE(at::equal(prob_R.eq(0.0), plan.slot_of.lt(0)));
}

INSTANTIATE_TEST_SUITE_P(Shapes, CapacityTest,
                         ::testing::Combine(::testing::Values(Shape{0, 2, 4, 0}, Shape{1, 1, 1, 1}, Shape{1, 3, 3, 1},
                                                              Shape{40, 2, 8, 5}, Shape{200, 4, 6, 90},
                                                              Shape{64, 1, 4, 64}, Shape{33, 6, 6, 10}),
                                            ::testing::Values(DropPolicy::kProbability, DropPolicy::kPosition),
                                            ::testing::Values(FreeRows::kLeftOut, FreeRows::kKept)));

TEST(CapacityTest, IsTheShareTimesTheFactorRoundedUp) {
  EXPECT_EQ(ops::expert_capacity(100, 2, 8, 1.0), 25);
  EXPECT_EQ(ops::expert_capacity(101, 2, 8, 1.0), 26);
  EXPECT_EQ(ops::expert_capacity(100, 2, 8, 1.25), 32);
  EXPECT_EQ(ops::expert_capacity(100, 2, 8, 100.0), 100);  // no expert is chosen by more than all tokens
  EXPECT_EQ(ops::expert_capacity(0, 2, 8, 1.0), 0);
}

/// With room for everybody it is the plan without a capacity.
TEST(CapacityTest, LargeCapacityDropsNothing) {
  std::mt19937_64 generator(91);
  const Tensor index = skewed_choice(50, 3, 9, generator);
  const Tensor prob = random_normal({50, 3}, at::kFloat, generator);
  const Plan plan = plan_of(index, prob, 9, {.capacity = 50});
  Plan plain{poisoned({10}, at::kInt), poisoned({50, 3}, at::kInt), poisoned({150}, at::kInt)};
  ops::permute_plan(index, 9, plain.offsets, plain.row_of, plain.slot_of);
  EXPECT_TRUE(at::equal(plan.offsets, plain.offsets));
  EXPECT_TRUE(at::equal(plan.row_of, plain.row_of));
  EXPECT_TRUE(at::equal(plan.slot_of, plain.slot_of));
}

TEST(CapacityTest, RefusesWhatDoesNotFit) {
  const Tensor prob = at::zeros({3, 2}, at::kFloat);
  EXPECT_THROW(plan_of(at::full({3, 2}, 4, at::kInt), prob, 4, {.capacity = 3}), InternalError);
  EXPECT_THROW(plan_of(at::full({3, 2}, 0, at::kInt), at::zeros({3, 1}, at::kFloat), 4, {.capacity = 3}),
               InternalError);
}

}  // namespace
}  // namespace primus
