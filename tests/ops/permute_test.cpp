#include "ops/permute/permute.hpp"

#include <ATen/ops/index_select.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/sum.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <numeric>

#include "support/tensors.hpp"

namespace primus {
namespace {

using at::Tensor;
using ops::Write;
using namespace primus::test;

struct Plan {
  Tensor offsets, row_of, slot_of;
};

Plan plan_of(const Tensor& index, std::int64_t experts) {
  Plan plan{poisoned({experts + 1}, at::kInt), poisoned({index.size(0), index.size(1)}, at::kInt),
            poisoned({index.numel()}, at::kInt)};
  ops::permute_plan(index, experts, plan.offsets, plan.row_of, plan.slot_of);
  return plan;
}

std::vector<int> to_vector(const Tensor& x) {
  const int* data = x.data_ptr<int>();
  return {data, data + x.numel()};
}

/// K different experts a token, as a router chooses them.
Tensor random_choice(std::int64_t tokens, std::int64_t top_k, std::int64_t experts, std::mt19937_64& generator) {
  Tensor index = at::zeros({tokens, top_k}, at::kInt);
  std::vector<int> order(static_cast<std::size_t>(experts));
  std::iota(order.begin(), order.end(), 0);
  for (std::int64_t t = 0; t < tokens; ++t) {
    std::shuffle(order.begin(), order.end(), generator);
    std::copy_n(order.begin(), top_k, index.data_ptr<int>() + t * top_k);
  }
  return index;
}

struct Shape {
  std::int64_t tokens, top_k, experts, width;
};

class PermuteTest : public ::testing::TestWithParam<Shape> {};

TEST_P(PermuteTest, PlanIsAStableSort) {
  const Shape shape = GetParam();
  for (int seed = 0; seed < 10; ++seed) {
    std::mt19937_64 generator(static_cast<std::uint64_t>(seed));
    const Tensor index = random_choice(shape.tokens, shape.top_k, shape.experts, generator);
    const Plan plan = plan_of(index, shape.experts);
    const std::vector<int> expert = to_vector(index);
    std::vector<int> order(expert.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
      return expert[static_cast<std::size_t>(a)] < expert[static_cast<std::size_t>(b)];
    });
    EXPECT_EQ(to_vector(plan.slot_of), order);
    std::vector<int> offsets(static_cast<std::size_t>(shape.experts + 1), 0);
    for (const int e : expert) ++offsets[static_cast<std::size_t>(e) + 1];
    std::partial_sum(offsets.begin(), offsets.end(), offsets.begin());
    EXPECT_EQ(to_vector(plan.offsets), offsets);
    const std::vector<int> row_of = to_vector(plan.row_of);
    for (std::size_t r = 0; r < order.size(); ++r) EXPECT_EQ(row_of[static_cast<std::size_t>(order[r])], int(r));
  }
}

TEST_P(PermuteTest, RowsAndSumsMatchAutograd) {
  const Shape shape = GetParam();
  const std::int64_t rows = shape.tokens * shape.top_k;
  std::mt19937_64 generator(31);
  const Tensor index = random_choice(shape.tokens, shape.top_k, shape.experts, generator);
  const Plan plan = plan_of(index, shape.experts);
  const Tensor token_of = plan.slot_of.to(at::kLong).div(shape.top_k, "floor");
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
    const Tensor x = random_normal({shape.tokens, shape.width}, dtype, generator);
    Tensor x_R = poisoned({rows, shape.width}, dtype);
    ops::permute_rows(x, plan.row_of, x_R);
    const Tensor x64 = leaf64(x);
    const Tensor expected = at::index_select(x64, 0, token_of);
    EXPECT_EQ(relative_error(x_R, expected), 0.0);

    // unpermute_sum is the adjoint: the gradient of permute_rows.
    const Tensor y_R = random_normal({rows, shape.width}, dtype, generator);
    Tensor y = poisoned({shape.tokens, shape.width}, dtype);
    ops::unpermute_sum(y_R, plan.row_of, y, Write::kOverwrite);
    Tensor sum = random_normal({shape.tokens, shape.width}, dtype, generator);
    const Tensor before = sum.clone();
    ops::unpermute_sum(y_R, plan.row_of, sum, Write::kAccumulate);
    if (rows == 0) continue;
    at::sum(expected.mul(y_R.to(at::kDouble))).backward();
    EXPECT_LE(relative_error(y, x64.grad()), tolerance(dtype));
    EXPECT_LE(relative_error(sum, x64.grad().add(before)), tolerance(dtype));
  }
}

TEST_P(PermuteTest, ValuesComeBack) {
  const Shape shape = GetParam();
  std::mt19937_64 generator(32);
  const Plan plan = plan_of(random_choice(shape.tokens, shape.top_k, shape.experts, generator), shape.experts);
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat}) {
    const Tensor prob = random_normal({shape.tokens, shape.top_k}, dtype, generator);
    Tensor sorted = poisoned({prob.numel()}, dtype);
    Tensor back = poisoned({shape.tokens, shape.top_k}, dtype);
    ops::permute_values(prob, plan.slot_of, sorted);
    ops::unpermute_values(sorted, plan.row_of, back);
    EXPECT_TRUE(at::equal(back, prob));
    EXPECT_TRUE(at::equal(sorted, at::index_select(prob.reshape({-1}), 0, plan.slot_of.to(at::kLong))));
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, PermuteTest,
                         ::testing::Values(Shape{0, 2, 4, 8}, Shape{1, 1, 1, 1}, Shape{1, 3, 3, 5}, Shape{5, 2, 64, 7},
                                           Shape{17, 6, 6, 513}, Shape{301, 4, 16, 33}, Shape{3000, 6, 64, 3},
                                           Shape{40, 2, 9, 1030}));

TEST(PermuteTest, AllTokensToOneExpertAmongEmptyOnes) {
  const Plan plan = plan_of(at::full({9, 1}, 5, at::kInt), 8);
  EXPECT_EQ(to_vector(plan.offsets), (std::vector<int>{0, 0, 0, 0, 0, 0, 9, 9, 9}));
  for (int i = 0; i < 9; ++i) {
    EXPECT_EQ(plan.row_of[i][0].item<int>(), i);
    EXPECT_EQ(plan.slot_of[i].item<int>(), i);
  }
}

TEST(PermuteTest, PermuteThenUnpermuteGivesTopKTimesTheInput) {
  std::mt19937_64 generator(33);
  const Tensor x = random_normal({50, 20}, at::kDouble, generator);
  const Plan plan = plan_of(random_choice(50, 4, 10, generator), 10);
  Tensor x_R = poisoned({200, 20}, at::kDouble);
  Tensor back = poisoned({50, 20}, at::kDouble);
  ops::permute_rows(x, plan.row_of, x_R);
  ops::unpermute_sum(x_R, plan.row_of, back, Write::kOverwrite);
  EXPECT_TRUE(at::equal(back, x.mul(4.0)));
}

/// Address space without memory behind it: pages that are never written read as zero and cost nothing.
class SparseRows {
 public:
  SparseRows(std::int64_t rows, std::int64_t width) : bytes_(static_cast<std::size_t>(rows * width) * 2) {
    data_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data_ != MAP_FAILED) tensor_ = at::from_blob(data_, {rows, width}, at::kBFloat16);
  }
  ~SparseRows() {
    if (data_ != MAP_FAILED) munmap(data_, bytes_);
  }
  SparseRows(const SparseRows&) = delete;
  SparseRows& operator=(const SparseRows&) = delete;
  const Tensor& tensor() const { return tensor_; }

 private:
  std::size_t bytes_;
  void* data_;
  Tensor tensor_;
};

TEST(PermuteTest, MoreElementsThan32BitsCount) {
  constexpr std::int64_t kWidth = 4096;
  constexpr std::int64_t kRows = (std::int64_t{1} << 32) / kWidth + 5;  // elements past both 2^31 and 2^32
  const SparseRows big(kRows, kWidth);
  if (!big.tensor().defined()) GTEST_SKIP() << "no address space for " << kRows << " rows";
  Tensor rows = big.tensor();
  Tensor picked = at::zeros({2, 1}, at::kInt);
  picked[0][0] = kRows - 1;
  picked[1][0] = kRows / 2 + 3;
  Tensor tokens = at::full({2, kWidth}, 3.0, at::kBFloat16);
  tokens[1].fill_(2.0);
  ops::permute_rows(tokens, picked, rows);
  EXPECT_EQ(rows[kRows - 1].sum().item<double>(), 3.0 * kWidth);
  EXPECT_EQ(rows[kRows / 2 + 3].sum().item<double>(), 2.0 * kWidth);
  Tensor sum = poisoned({1, kWidth}, at::kBFloat16);
  ops::unpermute_sum(rows, picked.reshape({1, 2}), sum, Write::kOverwrite);
  EXPECT_EQ(sum.sum().item<double>(), 5.0 * kWidth);
}

TEST(PermuteTest, SameBitsWithAnyNumberOfThreads) {
  std::mt19937_64 generator(34);
  const Tensor index = random_choice(9001, 3, 40, generator);
  const Tensor y_R = random_normal({27003, 9}, at::kFloat, generator);
  std::vector<Tensor> results;
  for (const int threads : {1, 2}) {
    at::set_num_threads(threads);
    const Plan plan = plan_of(index, 40);
    Tensor y = poisoned({9001, 9}, at::kFloat);
    ops::unpermute_sum(y_R, plan.row_of, y, Write::kOverwrite);
    results.insert(results.end(), {plan.offsets, plan.row_of, plan.slot_of, y});
  }
  for (std::size_t i = 0; i < 4; ++i) EXPECT_TRUE(at::equal(results[i], results[i + 4])) << i;
}

TEST(PermuteTest, RefusesAnExpertThatDoesNotExist) {
  EXPECT_THROW(plan_of(at::full({3, 2}, 4, at::kInt), 4), InternalError);
  EXPECT_THROW(plan_of(at::full({3, 2}, -2, at::kInt), 4), InternalError);
}

}  // namespace
}  // namespace primus
