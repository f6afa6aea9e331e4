#include "ops/bias/bias.hpp"

#include <gtest/gtest.h>

#include "support/tensors.hpp"

namespace primus {
namespace {

using at::Tensor;
using namespace primus::test;

TEST(BiasTest, AddsToEveryRowAndSumsTheGradient) {
  std::mt19937_64 generator(1);
  for (const auto& [rows, width, extra] : {std::tuple{0, 5, 0}, {1, 1, 0}, {7, 13, 3}, {300, 64, 8}, {1000, 257, 0}}) {
    for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
      SCOPED_TRACE(fmt::format("T {} H {} stride +{} {}", rows, width, extra, c10::toString(dtype)));
      const Tensor before = random_normal({rows, width}, dtype, generator);
      const Tensor bias = random_normal({width}, dtype, generator);
      Tensor x = with_row_stride(before, extra);
      ops::bias_add(bias, x);
      EXPECT_LE(relative_error(x, before.to(at::kDouble).add(bias.to(at::kDouble))), tolerance(dtype));

      const Tensor dy = with_row_stride(random_normal({rows, width}, dtype, generator), extra);
      Tensor gradient = at::ones({width}, ops::accumulator_type(dtype));
      ops::bias_backward(dy, gradient);
      const Tensor expected = dy.to(at::kDouble).sum(0).add(1.0);
      EXPECT_LE(relative_error(gradient, expected), dtype == at::kDouble ? 1e-12 : 1e-5);
    }
  }
}

TEST(BiasTest, SameBitsWithAnyNumberOfThreads) {
  std::mt19937_64 generator(2);
  const Tensor dy = random_normal({1500, 96}, at::kFloat, generator);
  at::set_num_threads(1);
  Tensor one = at::zeros({96}, at::kFloat);
  ops::bias_backward(dy, one);
  for (const int threads : {2, 3}) {
    at::set_num_threads(threads);
    Tensor many = at::zeros({96}, at::kFloat);
    ops::bias_backward(dy, many);
    EXPECT_TRUE(at::equal(one, many));
  }
  at::set_num_threads(2);
}

TEST(BiasTest, RefusesShapesThatDoNotAgree) {
  Tensor x = at::zeros({3, 4}, at::kFloat);
  EXPECT_THROW(ops::bias_add(at::zeros({3}, at::kFloat), x), InternalError);
  EXPECT_THROW(ops::bias_add(at::zeros({4}, at::kDouble), x), InternalError);
  Tensor gradient = at::zeros({4}, at::kDouble);
  EXPECT_THROW(ops::bias_backward(x, gradient), InternalError);
}

}  // namespace
}  // namespace primus
