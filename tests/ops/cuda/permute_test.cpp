#include "ops/permute/permute.hpp"

#include <numeric>

#include "support/cuda.hpp"

namespace primus {
namespace {

using at::Tensor;
using ops::Write;
using namespace primus::test;

struct Plan {
  Tensor offsets, row_of, slot_of;
};

Plan plan_of(const Tensor& index, std::int64_t experts) {
  const auto like = [&](std::vector<std::int64_t> shape) {
    return poisoned(std::move(shape), at::kInt).to(index.device());
  };
  Plan plan{like({experts + 1}), like({index.size(0), index.size(1)}), like({index.numel()})};
  ops::permute_plan(index, experts, plan.offsets, plan.row_of, plan.slot_of);
  return plan;
}

/// How the choices fall: over all experts, over a few with many empty ones, all to one.
enum class Skew { kNone, kFew, kOne };

struct Shape {
  std::int64_t tokens, top_k, experts, width;
  Skew skew;
};

Tensor choice(const Shape& shape, std::mt19937_64& generator) {
  const std::int64_t used = shape.skew == Skew::kNone  ? shape.experts
                            : shape.skew == Skew::kFew ? (shape.experts + 2) / 3
                                                       : 1;
  return random_int({shape.tokens, shape.top_k}, at::kInt, 0, used, generator).add(shape.experts - used);
}

class CudaPermuteTest : public CudaTestWithParam<Shape> {};

TEST_P(CudaPermuteTest, PlanIsTheReferences) {
  const Shape shape = GetParam();
  std::mt19937_64 generator(4);
  const Tensor index = choice(shape, generator);
  const Plan expected = plan_of(index, shape.experts);
  for (int run = 0; run < 2; ++run) {
    const Plan plan = plan_of(to_cuda(index), shape.experts);
    EXPECT_TRUE(at::equal(plan.offsets.cpu(), expected.offsets));
    EXPECT_TRUE(at::equal(plan.row_of.cpu(), expected.row_of));
    EXPECT_TRUE(at::equal(plan.slot_of.cpu(), expected.slot_of));
  }
}

TEST_P(CudaPermuteTest, RowsSumsAndValuesMatch) {
  const Shape shape = GetParam();
  std::mt19937_64 generator(5);
  const Plan plan = plan_of(choice(shape, generator), shape.experts);
  const std::int64_t rows = shape.tokens * shape.top_k;
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const Tensor x = random_normal({shape.tokens, shape.width}, dtype, generator);
    Tensor expected = poisoned({rows, shape.width}, dtype);
    ops::permute_rows(x, plan.row_of, expected);
    Tensor x_R = cuda_poisoned({rows, shape.width}, dtype);
    ops::permute_rows(to_cuda(x), to_cuda(plan.row_of), x_R);
    EXPECT_TRUE(at::equal(x_R.cpu(), expected));

    const Tensor y_R = random_normal({rows, shape.width}, dtype, generator);
    const Tensor before = random_normal({shape.tokens, shape.width}, dtype, generator);
    for (const Write write : {Write::kOverwrite, Write::kAccumulate}) {
      Tensor y64 = to64(before).clone();
      ops::unpermute_sum(to64(y_R), plan.row_of, y64, write);
      Tensor y =
          write == Write::kAccumulate ? to_cuda(before).clone() : cuda_poisoned({shape.tokens, shape.width}, dtype);
      ops::unpermute_sum(to_cuda(y_R), to_cuda(plan.row_of), y, write);
      EXPECT_LE(relative_error(to64(y), y64), rounded_tolerance(dtype));
    }
  }
  const Tensor prob = random_normal({shape.tokens, shape.top_k}, at::kFloat, generator);
  Tensor sorted = cuda_poisoned({rows}, at::kFloat);
  Tensor back = cuda_poisoned({shape.tokens, shape.top_k}, at::kFloat);
  Tensor expected = poisoned({rows}, at::kFloat);
  ops::permute_values(prob, plan.slot_of, expected);
  ops::permute_values(to_cuda(prob), to_cuda(plan.slot_of), sorted);
  ops::unpermute_values(sorted, to_cuda(plan.row_of), back);
  EXPECT_TRUE(at::equal(sorted.cpu(), expected));
  EXPECT_TRUE(at::equal(back.cpu(), prob));
}

INSTANTIATE_TEST_SUITE_P(Shapes, CudaPermuteTest,
                         ::testing::Values(Shape{0, 2, 4, 8, Skew::kNone}, Shape{1, 1, 1, 1, Skew::kNone},
                                           Shape{5, 2, 64, 7, Skew::kFew}, Shape{301, 6, 64, 96, Skew::kNone},
                                           Shape{3001, 6, 64, 24, Skew::kNone}, Shape{3000, 3, 300, 33, Skew::kFew},
                                           Shape{2049, 4, 9, 1032, Skew::kOne}, Shape{9000, 8, 1000, 8, Skew::kNone}));

}  // namespace
}  // namespace primus
