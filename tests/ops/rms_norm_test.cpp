#include "ops/rms_norm/rms_norm.hpp"

#include <ATen/ops/mean.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/rsqrt.h>
#include <gtest/gtest.h>

#include "support/tensors.hpp"

namespace primus {
namespace {

using at::Tensor;
using ops::Write;
using namespace primus::test;

constexpr double kEpsilon = 1e-6;

Tensor norm64(const Tensor& x64, const Tensor& weight64) {
  const Tensor mean = at::mean(at::mul(x64, x64), {1}, true);
  return x64.mul(at::rsqrt(mean.add(kEpsilon))).mul(weight64);
}

struct Shape {
  std::int64_t rows, width, extra_stride;
};

void check_shape(const Shape& shape, at::ScalarType dtype, double scale, std::mt19937_64& generator) {
  SCOPED_TRACE(fmt::format("T {} H {} stride +{} {} scale {}", shape.rows, shape.width, shape.extra_stride,
                           c10::toString(dtype), scale));
  const std::vector<std::int64_t> sizes = {shape.rows, shape.width};
  const at::ScalarType statistic = ops::accumulator_type(dtype);
  const Tensor x = with_row_stride(random_normal(sizes, dtype, generator, scale), shape.extra_stride);
  const Tensor weight = random_normal({shape.width}, dtype, generator);
  const Tensor dy = random_normal(sizes, dtype, generator);
  Tensor y = with_row_stride(poisoned(sizes, dtype), shape.extra_stride);
  Tensor rstd = poisoned({shape.rows}, statistic);
  ops::rms_norm_forward(x, weight, kEpsilon, y, rstd);
  Tensor again = poisoned(sizes, dtype);
  ops::rms_norm_apply(x, weight, rstd, again);
  EXPECT_TRUE(at::equal(y, again));

  const Tensor x64 = leaf64(x);
  const Tensor weight64 = leaf64(weight);
  const Tensor y64 = norm64(x64, weight64);
  EXPECT_LE(relative_error(y, y64), tolerance(dtype));
  Tensor dx = with_row_stride(poisoned(sizes, dtype), shape.extra_stride);
  Tensor main_grad = random_normal({shape.width}, statistic, generator);
  const Tensor before = main_grad.clone();
  ops::rms_norm_backward(dy, x, weight, rstd, dx, Write::kOverwrite, main_grad);
  if (shape.rows == 0) {
    EXPECT_TRUE(at::equal(main_grad, before));
    return;
  }
  y64.backward(dy.to(at::kDouble));
  EXPECT_LE(relative_error(dx, x64.grad()), tolerance(dtype));
  EXPECT_LE(relative_error(main_grad, weight64.grad().add(before.to(at::kDouble))), tolerance(statistic));

  Tensor sum = with_row_stride(random_normal(sizes, dtype, generator), shape.extra_stride);
  const Tensor sum_before = sum.clone();
  Tensor unused = at::zeros({shape.width}, statistic);
  ops::rms_norm_backward(dy, x, weight, rstd, sum, Write::kAccumulate, unused);
  EXPECT_LE(relative_error(sum, x64.grad().add(sum_before.to(at::kDouble))), tolerance(dtype));
}

TEST(RmsNormTest, MatchesAutograd) {
  std::mt19937_64 generator(21);
  const std::vector<Shape> shapes = {{1, 2, 0},   {0, 7, 0},    {1, 33, 4},    {17, 5, 0},   {300, 64, 32},
                                     {7, 257, 1}, {130, 96, 0}, {2049, 12, 3}, {5, 20000, 0}};
  for (const Shape& shape : shapes) {
    for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
      check_shape(shape, dtype, 1.0, generator);
    }
  }
}

// dx of a row of one element is what epsilon leaves of a cancellation, about 1e-6 of its terms: below fp32's
// resolution.
TEST(RmsNormTest, RowOfOneElementMatchesAutogradInDouble) {
  std::mt19937_64 generator(24);
  check_shape({1, 1, 0}, at::kDouble, 1.0, generator);
  check_shape({9, 1, 2}, at::kDouble, 1.0, generator);
}

TEST(RmsNormTest, MatchesAutogradOverRandomShapesAndScales) {
  for (unsigned seed = 0; seed < 40; ++seed) {
    std::mt19937_64 generator(seed);
    std::uniform_int_distribution<std::int64_t> size(2, 150);
    const Shape shape{size(generator), size(generator), static_cast<std::int64_t>(seed % 3)};
    check_shape(shape, seed % 2 == 0 ? at::kFloat : at::kDouble, seed % 5 == 0 ? 1e4 : 0.1, generator);
  }
}

TEST(RmsNormTest, MatchesFiniteDifferences) {
  std::mt19937_64 generator(22);
  const Tensor x = random_normal({3, 5}, at::kDouble, generator);
  const Tensor weight = random_normal({5}, at::kDouble, generator);
  const Tensor dy = random_normal({3, 5}, at::kDouble, generator);
  Tensor rstd = poisoned({3}, at::kDouble);
  const auto loss = [&](const Tensor& x_, const Tensor& weight_) {
    Tensor y = poisoned({3, 5}, at::kDouble);
    Tensor unused = poisoned({3}, at::kDouble);
    ops::rms_norm_forward(x_, weight_, kEpsilon, y, unused);
    return y.mul(dy).sum().item<double>();
  };
  Tensor y = poisoned({3, 5}, at::kDouble);
  ops::rms_norm_forward(x, weight, kEpsilon, y, rstd);
  Tensor dx = poisoned({3, 5}, at::kDouble);
  Tensor main_grad = at::zeros({5}, at::kDouble);
  ops::rms_norm_backward(dy, x, weight, rstd, dx, Write::kOverwrite, main_grad);
  EXPECT_LE(relative_error(dx, finite_difference([&](const Tensor& x_) { return loss(x_, weight); }, x)), 1e-7);
  EXPECT_LE(relative_error(main_grad, finite_difference([&](const Tensor& w_) { return loss(x, w_); }, weight)), 1e-7);
}

// Heads of tokens, at any distances, are rows like others: the same bits as of a dense matrix.
TEST(RmsNormTest, HeadsOfTokensAreRows) {
  std::mt19937_64 generator(25);
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
    const std::int64_t tokens = 70, heads = 3, width = 24;
    const Tensor fused = random_normal({tokens, heads + 4, width + 5}, dtype, generator);
    const Tensor x = fused.narrow(1, 2, heads).narrow(2, 3, width);
    const Tensor weight = random_normal({width}, dtype, generator);
    const Tensor dy = random_normal({tokens, heads, width}, dtype, generator);
    const auto results = [&](const Tensor& in, const Tensor& gradient, Tensor out, Tensor dx) {
      Tensor rstd = poisoned({tokens * heads}, ops::accumulator_type(dtype));
      Tensor main_grad = at::zeros({width}, ops::accumulator_type(dtype));
      ops::rms_norm_forward(in, weight, kEpsilon, out, rstd);
      Tensor again = poisoned(in.sizes().vec(), dtype);
      ops::rms_norm_apply(in, weight, rstd, again);
      EXPECT_TRUE(at::equal(again, out));
      ops::rms_norm_backward(gradient, in, weight, rstd, dx, Write::kOverwrite, main_grad);
      return std::vector<Tensor>{out.reshape({-1}), rstd, dx.reshape({-1}), main_grad};
    };
    const std::vector<std::int64_t> flat = {tokens * heads, width};
    Tensor wide = poisoned({tokens, 2 * heads, width}, dtype);
    const auto as_heads = results(x, dy, wide.narrow(1, 0, heads), wide.narrow(1, heads, heads));
    const auto as_rows = results(x.reshape(flat), dy.view(flat), poisoned(flat, dtype), poisoned(flat, dtype));
    for (std::size_t i = 0; i < as_rows.size(); ++i) EXPECT_TRUE(at::equal(as_heads[i], as_rows[i])) << i;
  }
}

TEST(RmsNormTest, SameBitsWithAnyNumberOfThreads) {
  std::mt19937_64 generator(23);
  const Tensor x = random_normal({1001, 257}, at::kFloat, generator);
  const Tensor weight = random_normal({257}, at::kFloat, generator);
  const Tensor dy = random_normal({1001, 257}, at::kFloat, generator);
  std::vector<Tensor> results;
  for (const int threads : {1, 2}) {
    at::set_num_threads(threads);
    Tensor y = poisoned({1001, 257}, at::kFloat);
    Tensor rstd = poisoned({1001}, at::kFloat);
    Tensor dx = poisoned({1001, 257}, at::kFloat);
    Tensor main_grad = at::zeros({257}, at::kFloat);
    ops::rms_norm_forward(x, weight, kEpsilon, y, rstd);
    ops::rms_norm_backward(dy, x, weight, rstd, dx, Write::kOverwrite, main_grad);
    results.push_back(at::cat({y.flatten(), rstd, dx.flatten(), main_grad}));
  }
  EXPECT_TRUE(at::equal(results[0], results[1]));
}

TEST(RmsNormTest, RowOfZerosStaysZero) {
  const Tensor x = at::zeros({2, 8}, at::kFloat);
  const Tensor weight = at::ones({8}, at::kFloat);
  Tensor y = poisoned({2, 8}, at::kFloat);
  Tensor rstd = poisoned({2}, at::kFloat);
  ops::rms_norm_forward(x, weight, kEpsilon, y, rstd);
  EXPECT_TRUE(at::equal(y, x));
  EXPECT_NEAR(rstd[0].item<double>(), 1e3, 1e-2);
}

TEST(RmsNormTest, RefusesDifferentTypes) {
  const Tensor x = at::zeros({2, 8}, at::kBFloat16);
  Tensor y = at::zeros({2, 8}, at::kBFloat16);
  Tensor rstd = at::zeros({2}, at::kFloat);
  EXPECT_THROW(ops::rms_norm_forward(x, at::ones({8}, at::kFloat), kEpsilon, y, rstd), InternalError);
  Tensor rstd64 = at::zeros({2}, at::kDouble);
  EXPECT_THROW(ops::rms_norm_forward(x, at::ones({8}, at::kBFloat16), kEpsilon, y, rstd64), InternalError);
}

}  // namespace
}  // namespace primus
