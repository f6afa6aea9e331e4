// Scaled and bounded output logits, and the unit that flattens out, against autograd in fp64.
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include "ops/cross_entropy/cross_entropy.hpp"
#include "ops/swiglu/activation.hpp"
#include "support/tensors.hpp"

namespace primus::ops {
namespace {

using namespace primus::test;

constexpr LogitOptions kBounds[] = {{0.3, 0.0}, {1.0, 1.7}, {2.5, 30.0}};

Tensor expected_losses(const Tensor& products, const Tensor& labels, const LogitOptions& options) {
  Tensor logits = products * options.scale;
  if (options.softcap > 0.0) logits = (logits / options.softcap).tanh() * options.softcap;
  return logits.log_softmax(-1).gather(-1, labels.unsqueeze(-1)).squeeze(-1).neg();
}

TEST(LogitBoundsTest, LossAndGradientsMatchAutograd) {
  std::mt19937_64 generator(3);
  for (const LogitOptions& options : kBounds) {
    for (const at::ScalarType dtype : {at::kDouble, at::kFloat}) {
      for (const std::int64_t vocabulary : {1, 7, 2100}) {
        const Tensor x = random_normal({11, 6}, dtype, generator);
        const Tensor w = random_normal({vocabulary, 6}, dtype, generator);
        const Tensor label = random_int({11}, at::kLong, 0, vocabulary, generator);
        const Tensor grad = random_normal({11}, dtype, generator);
        Tensor loss = poisoned({11}, dtype);
        Tensor dx = poisoned({11, 6}, dtype);
        Tensor dw = at::zeros({vocabulary, 6}, dtype);
        linear_cross_entropy(x, w, label, grad, 4, loss, dx, dw, options);
        const Tensor x64 = leaf64(x);
        const Tensor w64 = leaf64(w);
        const Tensor expected = expected_losses(x64.matmul(w64.t()), label, options);
        (expected * grad.to(at::kDouble)).sum().backward();
        EXPECT_LE(relative_error(loss, expected.detach()), tolerance(dtype));
        if (vocabulary > 1) {
          EXPECT_LE(relative_error(dx, x64.grad()), tolerance(dtype));
          EXPECT_LE(relative_error(dw, w64.grad()), tolerance(dtype));
        }
        Tensor alone = poisoned({11}, dtype);
        linear_cross_entropy_loss(x, w, label, 4, alone, options);
        EXPECT_LE(relative_error(alone, loss), tolerance(dtype));
        Tensor products = x.matmul(w.t()).contiguous();
        Tensor unfused = poisoned({11}, dtype);
        bounded_cross_entropy(products, label, grad, options, unfused);
        EXPECT_LE(relative_error(unfused, loss), tolerance(dtype));
        if (vocabulary > 1) {
          EXPECT_LE(relative_error(products.matmul(w), dx), tolerance(dtype));
        }
      }
    }
  }
}

TEST(LogitBoundsTest, GradientMatchesFiniteDifferences) {
  std::mt19937_64 generator(5);
  const Tensor x = random_normal({2, 3}, at::kDouble, generator);
  const Tensor w = random_normal({5, 3}, at::kDouble, generator);
  const Tensor label = random_int({2}, at::kLong, 0, 5, generator);
  const Tensor grad = at::ones({2}, at::kDouble);
  const LogitOptions options{1.3, 0.9};
  const auto total = [&](const Tensor& at_x) {
    Tensor loss = poisoned({2}, at::kDouble);
    linear_cross_entropy_loss(at_x, w, label, 0, loss, options);
    return loss.sum().item<double>();
  };
  Tensor loss = poisoned({2}, at::kDouble);
  Tensor dx = poisoned({2, 3}, at::kDouble);
  Tensor frozen;
  linear_cross_entropy(x, w, label, grad, 0, loss, dx, frozen, options);
  EXPECT_LE(relative_error(dx, finite_difference(total, x)), 1e-8);
}

TEST(SituTest, MatchesAutograd) {
  std::mt19937_64 generator(7);
  for (const std::optional<double> linear : {std::optional<double>{}, std::optional<double>{1.4}}) {
    const ActivationOptions options{
        .function = ActivationFunction::kSitu, .clamp = {}, .situ_beta = 0.7, .situ_linear_beta = linear};
    for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
      const at::ScalarType wide = accumulator_type(dtype);
      const Tensor h = random_normal({9, 22}, dtype, generator, 2.0);
      const Tensor prob = random_normal({9}, wide, generator);
      const Tensor da = random_normal({9, 11}, dtype, generator);
      Tensor a = poisoned({9, 11}, dtype);
      activation_forward(h, options, prob, {}, a);
      Tensor dh = poisoned({9, 22}, dtype);
      Tensor dprob = poisoned({9}, wide);
      Tensor again = poisoned({9, 11}, dtype);
      activation_backward(da, h, options, prob, {}, dh, dprob, again);
      EXPECT_TRUE(at::equal(again, a));
      const Tensor h64 = leaf64(h);
      const Tensor p64 = leaf64(prob);
      const Tensor gate = h64.narrow(1, 0, 11);
      const Tensor up = h64.narrow(1, 11, 11);
      const Tensor expected = (gate / 0.7).tanh() * 0.7 * gate.sigmoid() *
                              (linear ? (up / *linear).tanh() * *linear : up) * p64.unsqueeze(1);
      (expected * da.to(at::kDouble)).sum().backward();
      EXPECT_LE(relative_error(a, expected.detach()), tolerance(dtype));
      EXPECT_LE(relative_error(dh, h64.grad()), tolerance(dtype));
      EXPECT_LE(relative_error(dprob, p64.grad()), tolerance(dtype));
    }
  }
}

}  // namespace
}  // namespace primus::ops
