// Norms of every kind against autograd in fp64, over rows and heads with strides; statistics taken up again; parts of
// the weight's gradient added up in a fixed order.
#include "ops/norm/norm.hpp"

#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include "support/tensors.hpp"

namespace primus::ops {
namespace {

using namespace primus::test;

constexpr NormOptions kKinds[] = {{NormKind::kRms, NormWeight::kPlain, 1e-5},
                                  {NormKind::kRms, NormWeight::kAroundOne, 1e-5},
                                  {NormKind::kLayer, NormWeight::kPlain, 1e-5},
                                  {NormKind::kLayer, NormWeight::kAroundOne, 1e-6}};

Tensor expected_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, const NormOptions& options) {
  const bool is_layer = options.kind == NormKind::kLayer;
  const Tensor centred = is_layer ? x - x.mean(-1, true) : x;
  const Tensor normed = centred * (centred.pow(2).mean(-1, true) + options.epsilon).rsqrt();
  const Tensor y = normed * (options.weight == NormWeight::kAroundOne ? weight + 1.0 : weight);
  return is_layer ? y + bias : y;
}

class NormTest : public ::testing::TestWithParam<int> {};

TEST_P(NormTest, MatchesAutograd) {
  std::mt19937_64 generator(static_cast<std::uint64_t>(GetParam()) + 3);
  const auto pick = [&](std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(generator);
  };
  const std::int64_t rows = GetParam() % 4 == 0 ? pick(0, 1) : pick(1, 70);
  const std::int64_t width = pick(1, 90);
  for (const NormOptions& options : kKinds) {
    for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
      const bool is_layer = options.kind == NormKind::kLayer;
      const at::ScalarType wide = accumulator_type(dtype);
      const Tensor x = with_row_stride(random_normal({rows, width}, dtype, generator, 2.0), 3);
      const Tensor dy = random_normal({rows, width}, dtype, generator);
      const NormParameters parameters{random_normal({width}, dtype, generator),
                                      is_layer ? random_normal({width}, dtype, generator) : Tensor()};
      Tensor y = poisoned({rows, width}, dtype);
      Tensor statistics = poisoned({options.num_statistics() * rows}, wide);
      norm_forward(x, parameters, options, y, statistics);
      const Tensor x64 = leaf64(x);
      const Tensor w64 = leaf64(parameters.weight_H);
      const Tensor b64 = is_layer ? leaf64(parameters.bias_H) : Tensor();
      const Tensor expected = expected_norm(x64, w64, b64, options);
      (expected * dy.to(at::kDouble)).sum().backward();
      EXPECT_LE(relative_error(y, expected.detach()), tolerance(dtype));
      Tensor again = poisoned({rows, width}, dtype);
      norm_apply(x, parameters, options, statistics, again);
      EXPECT_TRUE(at::equal(again, y));
      const Tensor before = random_normal({rows, width}, dtype, generator);
      for (const Write write : {Write::kOverwrite, Write::kAccumulate}) {
        Tensor dx = write == Write::kOverwrite ? poisoned({rows, width}, dtype) : before.clone();
        NormParameters main_grad{at::ones({width}, wide), is_layer ? at::ones({width}, wide) : Tensor()};
        norm_backward(dy, x, parameters, options, statistics, dx, write, main_grad);
        const Tensor dx64 = write == Write::kOverwrite ? x64.grad() : x64.grad() + before.to(at::kDouble);
        // A row of one value has no gradient behind a LayerNorm: what is left is rounding.
        if (!is_layer || width > 2) {
          EXPECT_LE(relative_error(dx, dx64), tolerance(dtype)) << width;
        }
        EXPECT_LE(relative_error(main_grad.weight_H, w64.grad() + 1.0), std::max(tolerance(wide), 1e-9));
        if (is_layer) {
          EXPECT_LE(relative_error(main_grad.bias_H, b64.grad() + 1.0), tolerance(wide));
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, NormTest, ::testing::Range(0, 24));

TEST(NormFixedTest, HeadsAreRowsAndThreadsChangeNoBit) {
  std::mt19937_64 generator(9);
  const NormOptions options{NormKind::kLayer, NormWeight::kPlain, 1e-5};
  const Tensor fused = random_normal({40, 7, 6}, at::kFloat, generator);
  const Tensor heads = fused.narrow(1, 2, 3);
  const NormParameters parameters{random_normal({6}, at::kFloat, generator), random_normal({6}, at::kFloat, generator)};
  const Tensor dy = random_normal({40, 3, 6}, at::kFloat, generator);
  std::vector<Tensor> results[2];
  for (const int threads : {1, 2}) {
    at::set_num_threads(threads);
    Tensor y = poisoned({40, 3, 6}, at::kFloat);
    Tensor statistics = poisoned({2 * 120}, at::kFloat);
    norm_forward(heads, parameters, options, y, statistics);
    Tensor dx = poisoned({40, 3, 6}, at::kFloat);
    NormParameters main_grad{at::zeros({6}, at::kFloat), at::zeros({6}, at::kFloat)};
    norm_backward(dy, heads, parameters, options, statistics, dx, Write::kOverwrite, main_grad);
    results[threads - 1] = {y, dx, main_grad.weight_H, main_grad.bias_H};
  }
  const Tensor expected = expected_norm(heads.to(at::kDouble), parameters.weight_H.to(at::kDouble),
                                        parameters.bias_H.to(at::kDouble), options);
  EXPECT_LE(relative_error(results[0][0], expected), 1e-5);
  for (std::size_t i = 0; i < results[0].size(); ++i) EXPECT_TRUE(at::equal(results[0][i], results[1][i])) << i;
}

}  // namespace
}  // namespace primus::ops
