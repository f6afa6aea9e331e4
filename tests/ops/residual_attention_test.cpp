#include "ops/residual_attention/residual_attention.hpp"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/stack.h>
#include <gtest/gtest.h>

#include "support/tensors.hpp"

namespace primus {
namespace {

using at::Tensor;
using namespace primus::test;

constexpr double kEpsilon = 1e-5;

struct Output {
  Tensor weights, y, dnorm, dquery;
  std::vector<Tensor> dblocks;
};

/// Gradients begin at one: they are added to.
Output run(const Tensor& dy, const std::vector<Tensor>& blocks, const ops::ResidualAttention& attention) {
  const at::ScalarType wide = ops::accumulator_type(dy.scalar_type());
  const std::int64_t num_blocks = std::ssize(blocks);
  Output out{poisoned({dy.size(0), num_blocks}, wide),
             poisoned(dy.sizes().vec(), dy.scalar_type()),
             at::ones({dy.size(1)}, dy.options().dtype(wide)),
             at::ones({dy.size(1)}, dy.options().dtype(wide)),
             {}};
  for (const Tensor& block : blocks) out.dblocks.push_back(at::ones_like(block));
  ops::residual_attention_forward(blocks, attention, out.weights, out.y);
  ops::residual_attention_backward(dy, blocks, attention, out.weights, out.dblocks, out.dnorm, out.dquery);
  return out;
}

Tensor reference(const std::vector<Tensor>& blocks, const Tensor& norm, const Tensor& query) {
  const Tensor values = at::stack(blocks, 1);  // [T, N, H]
  const Tensor keys = values * (values.pow(2).mean(-1, true) + kEpsilon).rsqrt() * norm;
  return ((keys * query).sum(-1).softmax(-1).unsqueeze(-1) * values).sum(1);
}

TEST(ResidualAttentionTest, MatchesAutogradAndFiniteDifferences) {
  std::mt19937_64 generator(1);
  for (const auto& [tokens, width, num_blocks] :
       {std::tuple{0, 3, 2}, {1, 1, 1}, {5, 7, 3}, {1, 33, 9}, {300, 20, 4}, {129, 64, 2}}) {
    for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
      SCOPED_TRACE(fmt::format("T {} H {} N {} {}", tokens, width, num_blocks, c10::toString(dtype)));
      std::vector<Tensor> blocks;
      std::vector<Tensor> leaves;
      for (int n = 0; n < num_blocks; ++n) {
        blocks.push_back(random_normal({tokens, width}, dtype, generator, 1.0 + n));
        leaves.push_back(leaf64(blocks.back()));
      }
      const Tensor dy = random_normal({tokens, width}, dtype, generator);
      const ops::ResidualAttention attention{random_normal({width}, dtype, generator),
                                             random_normal({width}, dtype, generator), kEpsilon};
      const Output out = run(dy, blocks, attention);
      const Tensor norm64 = leaf64(attention.norm_H);
      const Tensor query64 = leaf64(attention.query_H);
      const Tensor y64 = reference(leaves, norm64, query64);
      y64.backward(dy.to(at::kDouble));
      EXPECT_LE(relative_error(out.y, y64), tolerance(dtype));
      for (std::size_t n = 0; n < blocks.size(); ++n) {
        EXPECT_LE(relative_error(out.dblocks[n], leaves[n].grad() + 1), tolerance(dtype)) << n;
      }
      EXPECT_LE(relative_error(out.dnorm, norm64.grad() + 1), tolerance(dtype));
      EXPECT_LE(relative_error(out.dquery, query64.grad() + 1), tolerance(dtype));
      if (dtype != at::kDouble || tokens == 0 || tokens > 5) continue;
      const auto loss = [&](const Tensor& point) {
        std::vector<Tensor> moved = blocks;
        moved.back() = point;
        Tensor weights = poisoned({tokens, num_blocks}, dtype);
        Tensor y = poisoned({tokens, width}, dtype);
        ops::residual_attention_forward(moved, attention, weights, y);
        return y.mul(dy).sum().item<double>();
      };
      EXPECT_LE(relative_error(out.dblocks.back() - 1, finite_difference(loss, blocks.back())), 1e-4);
    }
  }
}

TEST(ResidualAttentionTest, WeightsAreASoftmaxAndOneBlockIsItself) {
  std::mt19937_64 generator(3);
  std::vector<Tensor> blocks = {random_normal({9, 5}, at::kDouble, generator, 30.0)};
  const ops::ResidualAttention attention{random_normal({5}, at::kDouble, generator, 100.0),
                                         random_normal({5}, at::kDouble, generator, 100.0), kEpsilon};
  EXPECT_TRUE(at::equal(run(blocks[0], blocks, attention).y, blocks[0]));
  // Logits of thousands: no weight overflows, and they add up to one.
  blocks.push_back(random_normal({9, 5}, at::kDouble, generator, 30.0));
  const Tensor sums = run(blocks[0], blocks, attention).weights.sum(1);
  EXPECT_LE(sums.sub(1).abs().max().item<double>(), 1e-15);
}

TEST(ResidualAttentionTest, TheSameBitsWithOneThread) {
  std::mt19937_64 generator(2);
  std::vector<Tensor> blocks;
  for (int n = 0; n < 3; ++n) blocks.push_back(random_normal({700, 20}, at::kFloat, generator));
  const Tensor dy = random_normal({700, 20}, at::kFloat, generator);
  const ops::ResidualAttention attention{random_normal({20}, at::kFloat, generator),
                                         random_normal({20}, at::kFloat, generator), kEpsilon};
  const Output two = run(dy, blocks, attention);
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const Output one = run(dy, blocks, attention);
  at::set_num_threads(threads);
  EXPECT_TRUE(at::equal(one.y, two.y));
  EXPECT_TRUE(at::equal(one.dblocks[1], two.dblocks[1]));
  EXPECT_TRUE(at::equal(one.dnorm, two.dnorm));
}

TEST(ResidualAttentionTest, RefusesShapesThatDoNotAgree) {
  const std::vector<Tensor> blocks = {at::zeros({2, 3}, at::kFloat), at::zeros({2, 3}, at::kFloat)};
  const ops::ResidualAttention attention{at::ones({3}, at::kFloat), at::ones({3}, at::kFloat), kEpsilon};
  Tensor y = at::zeros({2, 3}, at::kFloat);
  Tensor weights = at::zeros({2, 2}, at::kFloat);
  Tensor narrow = at::zeros({2, 1}, at::kFloat);
  EXPECT_THROW(ops::residual_attention_forward(blocks, attention, narrow, y), InternalError);
  EXPECT_THROW(ops::residual_attention_forward({}, attention, weights, y), InternalError);
  Tensor wide = at::zeros({2, 4}, at::kFloat);
  EXPECT_THROW(ops::residual_attention_forward(blocks, attention, weights, wide), InternalError);
}

}  // namespace
}  // namespace primus
