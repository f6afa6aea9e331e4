#include "ops/gemm/gemm.hpp"

#include <ATen/ops/matmul.h>
#include <gtest/gtest.h>

#include <numeric>

#include "support/tensors.hpp"

namespace primus {
namespace {

using at::Tensor;
using ops::Write;
using namespace primus::test;

struct Shape {
  std::int64_t tokens, inputs, outputs;
};

// fp64 throughout, fp32 throughout, bf16 operands with bf16 or fp32 output, fp32 operands with bf16 output.
struct Types {
  at::ScalarType x, w, y;
};
const std::vector<Types> kTypes = {
    {at::kDouble, at::kDouble, at::kDouble},       {at::kFloat, at::kFloat, at::kFloat},
    {at::kBFloat16, at::kBFloat16, at::kBFloat16}, {at::kBFloat16, at::kBFloat16, at::kFloat},
    {at::kBFloat16, at::kFloat, at::kFloat},       {at::kFloat, at::kFloat, at::kBFloat16}};

Tensor matmul64(const Tensor& a, const Tensor& b) {
  return at::matmul(a.to(at::kDouble), b.to(at::kDouble));
}

// Outputs of fp32 are sums of exact products of the operands, whatever these are: their bound is fp32's.
void check_linear(const Shape& shape, const Types& types, std::int64_t extra_stride, std::mt19937_64& generator) {
  SCOPED_TRACE(fmt::format("T {} I {} O {} x {} w {} y {} stride +{}", shape.tokens, shape.inputs, shape.outputs,
                           c10::toString(types.x), c10::toString(types.w), c10::toString(types.y), extra_stride));
  const auto strided = [&](const Tensor& values) { return with_row_stride(values, extra_stride); };
  const Tensor x = strided(random_normal({shape.tokens, shape.inputs}, types.x, generator));
  const Tensor w = random_normal({shape.outputs, shape.inputs}, types.w, generator);
  Tensor y = strided(poisoned({shape.tokens, shape.outputs}, types.y));
  ops::linear_forward(x, w, y);
  const Tensor x64 = leaf64(x);
  const Tensor w64 = leaf64(w);
  const Tensor y64 = at::matmul(x64, w64.t());
  EXPECT_LE(relative_error(y, y64), tolerance(types.y));

  Tensor sum = strided(random_normal({shape.tokens, shape.outputs}, types.y, generator));
  const Tensor sum_before = sum.clone();
  ops::linear_forward(x, w, sum, Write::kAccumulate);
  EXPECT_LE(relative_error(sum, y64.detach().add(sum_before.to(at::kDouble))), tolerance(types.y));

  const Tensor dy = strided(random_normal({shape.tokens, shape.outputs}, types.x, generator));
  y64.backward(dy.to(at::kDouble));
  Tensor dx = strided(poisoned({shape.tokens, shape.inputs}, types.y));
  ops::linear_dgrad(dy, w, dx);
  EXPECT_LE(relative_error(dx, x64.grad()), tolerance(types.y));
  Tensor dx_sum = strided(random_normal({shape.tokens, shape.inputs}, types.y, generator));
  const Tensor dx_before = dx_sum.clone();
  ops::linear_dgrad(dy, w, dx_sum, Write::kAccumulate);
  EXPECT_LE(relative_error(dx_sum, x64.grad().add(dx_before.to(at::kDouble))), tolerance(types.y));

  const at::ScalarType main_type = ops::accumulator_type(types.x);
  Tensor main_grad = random_normal({shape.outputs, shape.inputs}, main_type, generator);
  const Tensor main_before = main_grad.clone();
  ops::linear_wgrad(dy, x, main_grad);
  EXPECT_LE(relative_error(main_grad, w64.grad().add(main_before.to(at::kDouble))), tolerance(main_type));
  Tensor overwritten = poisoned({shape.outputs, shape.inputs}, main_type);
  ops::linear_wgrad(dy, x, overwritten, Write::kOverwrite);
  EXPECT_LE(relative_error(overwritten, w64.grad()), tolerance(main_type));
}

TEST(GemmTest, LinearMatchesAutograd) {
  std::mt19937_64 generator(11);
  const std::vector<Shape> shapes = {{1, 1, 1},    {0, 5, 3},    {1, 7, 5},     {17, 33, 9},
                                     {96, 64, 32}, {129, 31, 1}, {3, 200, 1030}};
  for (const Shape& shape : shapes) {
    for (const Types& types : kTypes) {
      for (const std::int64_t extra : {0, 3}) check_linear(shape, types, extra, generator);
    }
  }
}

TEST(GemmTest, LinearMatchesAutogradOverRandomShapes) {
  for (unsigned seed = 0; seed < 40; ++seed) {
    std::mt19937_64 generator(seed);
    std::uniform_int_distribution<std::int64_t> size(1, 90);
    const Shape shape{size(generator), size(generator), size(generator)};
    check_linear(shape, kTypes[seed % kTypes.size()], static_cast<std::int64_t>(seed % 5), generator);
  }
}

// Larger than one widened panel in every direction.
TEST(GemmTest, BlocksOfWidenedOperandsMeet) {
  std::mt19937_64 generator(12);
  check_linear({1100, 40, 1050}, kTypes[2], 1, generator);
  check_linear({40, 4200, 9}, kTypes[2], 0, generator);
  check_linear({4200, 9, 40}, kTypes[3], 0, generator);
}

TEST(GemmTest, WeightGradientMatchesFiniteDifferences) {
  std::mt19937_64 generator(13);
  const Tensor x = random_normal({3, 4}, at::kDouble, generator);
  const Tensor w = random_normal({2, 4}, at::kDouble, generator);
  const Tensor dy = random_normal({3, 2}, at::kDouble, generator);
  const auto loss = [&](const Tensor& x_, const Tensor& w_) {
    Tensor y = poisoned({3, 2}, at::kDouble);
    ops::linear_forward(x_, w_, y);
    return y.mul(dy).sum().item<double>();
  };
  Tensor grad = at::zeros({2, 4}, at::kDouble);
  ops::linear_wgrad(dy, x, grad);
  EXPECT_LE(relative_error(grad, finite_difference([&](const Tensor& w_) { return loss(x, w_); }, w)), 1e-7);
  Tensor dx = poisoned({3, 4}, at::kDouble);
  ops::linear_dgrad(dy, w, dx);
  EXPECT_LE(relative_error(dx, finite_difference([&](const Tensor& x_) { return loss(x_, w); }, x)), 1e-7);
}

TEST(GemmTest, RefusesWhatItCannotMultiply) {
  Tensor y = at::zeros({2, 3}, at::kFloat);
  EXPECT_THROW(ops::linear_forward(at::zeros({2, 4}, at::kFloat), at::zeros({3, 5}, at::kFloat), y), InternalError);
  EXPECT_THROW(ops::linear_forward(at::zeros({2, 4}, at::kFloat), at::zeros({3, 4}, at::kDouble), y), InternalError);
  EXPECT_THROW(ops::linear_forward(at::zeros({2, 4}, at::kInt), at::zeros({3, 4}, at::kInt), y), InternalError);
  Tensor narrow_grad = at::zeros({3, 4}, at::kBFloat16);
  EXPECT_THROW(ops::linear_wgrad(at::zeros({2, 3}, at::kBFloat16), at::zeros({2, 4}, at::kBFloat16), narrow_grad),
               InternalError);
}

struct GroupedCase {
  std::vector<std::int64_t> rows;  // of each expert
  std::int64_t spare_rows;         // past the last group
  std::int64_t inputs, outputs;
};

Tensor offsets_of(const std::vector<std::int64_t>& rows) {
  Tensor offsets = at::zeros({static_cast<std::int64_t>(rows.size()) + 1}, at::kInt);
  int* data = offsets.data_ptr<int>();
  for (std::size_t e = 0; e < rows.size(); ++e) data[e + 1] = data[e] + static_cast<int>(rows[e]);
  return offsets;
}

// Rows past the groups hold NaN on the way in (never read) and a mark on the way out (never written).
void check_grouped(const GroupedCase& shape, const Types& types, std::int64_t extra_stride,
                   std::mt19937_64& generator) {
  const auto experts = static_cast<std::int64_t>(shape.rows.size());
  const std::int64_t valid = std::accumulate(shape.rows.begin(), shape.rows.end(), std::int64_t{0});
  const std::int64_t capacity = valid + shape.spare_rows;
  SCOPED_TRACE(fmt::format("E {} rows {} of {} I {} O {} x {} y {}", experts, valid, capacity, shape.inputs,
                           shape.outputs, c10::toString(types.x), c10::toString(types.y)));
  const Tensor offsets = offsets_of(shape.rows);
  const auto operand = [&](std::int64_t width) {
    Tensor values = poisoned({capacity, width}, types.x);
    values.narrow(0, 0, valid).copy_(random_normal({valid, width}, types.x, generator));
    return with_row_stride(values, extra_stride);
  };
  const auto output = [&](std::int64_t width) {
    Tensor values = poisoned({capacity, width}, types.y);
    values.narrow(0, valid, shape.spare_rows).fill_(7.0);
    return with_row_stride(values, extra_stride);
  };
  const auto expect_spare_untouched = [&](const Tensor& y) {
    const Tensor spare = y.narrow(0, valid, shape.spare_rows);
    EXPECT_TRUE(at::equal(spare, at::full(spare.sizes(), 7.0, spare.scalar_type())));
  };
  const Tensor x = operand(shape.inputs);
  const Tensor dy = operand(shape.outputs);
  const Tensor w = random_normal({experts, shape.outputs, shape.inputs}, types.w, generator);
  Tensor y = output(shape.outputs);
  Tensor dx = output(shape.inputs);
  const at::ScalarType main_type = ops::accumulator_type(types.x);
  Tensor main_grad = random_normal({experts, shape.outputs, shape.inputs}, main_type, generator);
  const Tensor main_before = main_grad.clone();
  ops::grouped_linear_forward(x, w, offsets, y);
  ops::grouped_linear_dgrad(dy, w, offsets, dx);
  ops::grouped_linear_wgrad(dy, x, offsets, main_grad);
  expect_spare_untouched(y);
  expect_spare_untouched(dx);

  Tensor y64 = at::zeros({valid, shape.outputs}, at::kDouble);
  Tensor dx64 = at::zeros({valid, shape.inputs}, at::kDouble);
  Tensor grad64 = main_before.to(at::kDouble).clone();
  std::int64_t begin = 0;
  for (std::int64_t e = 0; e < experts; ++e) {
    const std::int64_t rows = shape.rows[static_cast<std::size_t>(e)];
    const Tensor x_e = x.narrow(0, begin, rows);
    const Tensor dy_e = dy.narrow(0, begin, rows);
    y64.narrow(0, begin, rows).copy_(matmul64(x_e, w[e].t()));
    dx64.narrow(0, begin, rows).copy_(matmul64(dy_e, w[e]));
    grad64[e].add_(matmul64(dy_e.t(), x_e));
    if (rows == 0) {
      EXPECT_TRUE(at::equal(main_grad[e], main_before[e]));
    }
    begin += rows;
  }
  EXPECT_LE(relative_error(y.narrow(0, 0, valid), y64), tolerance(types.y));
  EXPECT_LE(relative_error(dx.narrow(0, 0, valid), dx64), tolerance(types.y));
  EXPECT_LE(relative_error(main_grad, grad64), tolerance(main_type));
  // Overwritten, what was there does not matter, and a group without rows has no gradient.
  Tensor overwritten = poisoned({experts, shape.outputs, shape.inputs}, main_type);
  ops::grouped_linear_wgrad(dy, x, offsets, overwritten, ops::Write::kOverwrite);
  EXPECT_LE(relative_error(overwritten, grad64.sub(main_before.to(at::kDouble))), tolerance(main_type));
}

TEST(GemmTest, GroupedMatchesOneProductAnExpert) {
  std::mt19937_64 generator(14);
  const std::vector<GroupedCase> cases = {{{1}, 0, 1, 1},
                                          {{0, 0, 0}, 4, 5, 3},
                                          {{0, 0}, 0, 5, 3},
                                          {{0, 40, 0, 0}, 3, 17, 9},
                                          {{13, 0, 1, 7, 30}, 5, 33, 20},
                                          {{300, 1, 0, 2}, 11, 40, 70},
                                          {{5, 5, 5, 5}, 0, 8, 1}};
  for (const GroupedCase& shape : cases) {
    for (const Types& types : kTypes) {
      for (const std::int64_t extra : {0, 5}) check_grouped(shape, types, extra, generator);
    }
  }
}

TEST(GemmTest, GroupedMatchesOverRandomGroups) {
  for (unsigned seed = 100; seed < 140; ++seed) {
    std::mt19937_64 generator(seed);
    std::uniform_int_distribution<std::int64_t> size(1, 60);
    GroupedCase shape{{}, static_cast<std::int64_t>(seed % 4), size(generator), size(generator)};
    const std::int64_t experts = 1 + size(generator) % 9;
    for (std::int64_t e = 0; e < experts; ++e) {
      shape.rows.push_back(size(generator) % 3 == 0 ? 0 : size(generator));
    }
    check_grouped(shape, kTypes[seed % kTypes.size()], static_cast<std::int64_t>(seed % 2), generator);
  }
}

TEST(GemmTest, RefusesOffsetsThatLeaveTheRows) {
  const Tensor x = at::zeros({4, 3}, at::kFloat);
  const Tensor w = at::zeros({2, 5, 3}, at::kFloat);
  Tensor y = at::zeros({4, 5}, at::kFloat);
  EXPECT_THROW(ops::grouped_linear_forward(x, w, offsets_of({3, 2}), y), InternalError);
  EXPECT_THROW(ops::grouped_linear_forward(x, w, offsets_of({3}), y), InternalError);
  Tensor decreasing = offsets_of({2, 2});
  decreasing.data_ptr<int>()[1] = 5;
  EXPECT_THROW(ops::grouped_linear_forward(x, w, decreasing, y), InternalError);
}

TEST(GroupedGemm, SquaresAreThoseOfTheGradient) {
  std::mt19937_64 generator(17);
  const Tensor dy = random_normal({9, 4}, at::kDouble, generator);
  const Tensor x = random_normal({9, 5}, at::kDouble, generator);
  const Tensor offsets = at::empty({4}, at::kInt);
  std::ranges::copy(std::array<int, 4>{0, 3, 3, 9}, offsets.data_ptr<int>());  // the second expert has no rows
  Tensor expected = poisoned({3, 4, 5}, at::kDouble);
  ops::grouped_linear_wgrad(dy, x, offsets, expected, ops::Write::kOverwrite);
  Tensor grad = poisoned({3, 4, 5}, at::kDouble);
  Tensor sum = at::full({1}, 2.0, at::kDouble);
  ops::grouped_linear_wgrad_squares(dy, x, offsets, grad, sum);
  EXPECT_TRUE(at::equal(grad, expected));
  const double squares = expected.square().sum().item<double>();
  EXPECT_NEAR(sum.item<double>(), 2.0 + squares, 1e-12 * squares);
}

}  // namespace
}  // namespace primus
