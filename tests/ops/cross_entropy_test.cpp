#include "ops/cross_entropy/cross_entropy.hpp"

#include <ATen/ops/gather.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/sum.h>
#include <gtest/gtest.h>

#include <limits>

#include "support/tensors.hpp"

namespace primus {
namespace {

using at::Tensor;
using namespace primus::test;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

Tensor reference(const Tensor& logits64, const Tensor& label) {
  return at::logsumexp(logits64, 1).sub(at::gather(logits64, 1, label.unsqueeze(1)).squeeze(1));
}

/// Fills what at::empty gives with NaN while it lives: scratch that an op allocates itself.
class PoisonedScratch {
 public:
  PoisonedScratch() {
    at::globalContext().setDeterministicAlgorithms(true, false);
    at::globalContext().setDeterministicFillUninitializedMemory(true);
  }
  ~PoisonedScratch() { at::globalContext().setDeterministicAlgorithms(false, false); }
  PoisonedScratch(const PoisonedScratch&) = delete;
  PoisonedScratch& operator=(const PoisonedScratch&) = delete;
};

struct Shape {
  std::int64_t tokens, vocabulary;
};

class CrossEntropyTest : public ::testing::TestWithParam<Shape> {};

TEST_P(CrossEntropyTest, MatchesAutograd) {
  const Shape shape = GetParam();
  for (int seed = 0; seed < 5; ++seed) {
    std::mt19937_64 generator(static_cast<std::uint64_t>(seed));
    for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
      const at::ScalarType statistics = ops::accumulator_type(dtype);
      const Tensor logits = random_normal({shape.tokens, shape.vocabulary}, dtype, generator, 4.0);
      const Tensor label = random_int({shape.tokens}, at::kLong, 0, shape.vocabulary, generator);
      Tensor grad = random_normal({shape.tokens}, statistics, generator);
      if (shape.tokens > 2) grad[1].zero_();  // masked
      Tensor loss = poisoned({shape.tokens}, statistics);
      Tensor loss_only = poisoned({shape.tokens}, statistics);
      Tensor dlogits = logits.clone();
      ops::cross_entropy_forward(dlogits, label, loss_only);
      EXPECT_TRUE(at::equal(dlogits, logits));
      ops::cross_entropy_forward_backward(dlogits, label, grad, loss);
      EXPECT_TRUE(at::equal(loss, loss_only));

      const Tensor logits64 = leaf64(logits);
      const Tensor expected = reference(logits64, label);
      EXPECT_LE(relative_error(loss, expected), tolerance(statistics));
      if (shape.tokens == 0) continue;
      at::sum(expected.mul(grad.to(at::kDouble))).backward();
      EXPECT_LE(relative_error(dlogits, logits64.grad()), tolerance(dtype));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, CrossEntropyTest,
                         ::testing::Values(Shape{0, 5}, Shape{1, 1}, Shape{3, 1}, Shape{1, 7}, Shape{5, 33},
                                           Shape{2, 1024}, Shape{4, 1025}, Shape{7, 4099}, Shape{301, 37}));

TEST(CrossEntropyTest, MatchesFiniteDifferences) {
  std::mt19937_64 generator(41);
  const Tensor logits = random_normal({3, 6}, at::kDouble, generator);
  const Tensor label = random_int({3}, at::kLong, 0, 6, generator);
  const Tensor grad = random_normal({3}, at::kDouble, generator);
  const auto total = [&](const Tensor& point) {
    Tensor loss = poisoned({3}, at::kDouble);
    ops::cross_entropy_forward(point, label, loss);
    return at::sum(loss.mul(grad)).item<double>();
  };
  Tensor dlogits = logits.clone();
  Tensor loss = poisoned({3}, at::kDouble);
  ops::cross_entropy_forward_backward(dlogits, label, grad, loss);
  EXPECT_LE(relative_error(dlogits, finite_difference(total, logits)), 1e-8);
}

TEST(CrossEntropyTest, LargeAndMaskedLogits) {
  for (const std::int64_t vocabulary : {5, 3000}) {  // one and several blocks of columns
    Tensor logits = at::full({2, vocabulary}, -kInfinity, at::kFloat);
    logits[0][vocabulary - 1] = 3e4;
    logits[1][vocabulary - 2] = -3e4;
    logits[1][vocabulary - 1] = -3e4;
    const Tensor label = at::full({2}, vocabulary - 1, at::kLong);
    Tensor loss = poisoned({2}, at::kFloat);
    ops::cross_entropy_forward_backward(logits, label, at::ones({2}, at::kFloat), loss);
    EXPECT_EQ(loss[0].item<float>(), 0.0F);
    EXPECT_FLOAT_EQ(loss[1].item<float>(), std::log(2.0F));
    EXPECT_EQ(logits[0].abs().sum().item<float>(), 0.0F);
    EXPECT_FLOAT_EQ(logits[1][vocabulary - 2].item<float>(), 0.5F);
    EXPECT_FLOAT_EQ(logits[1][vocabulary - 1].item<float>(), -0.5F);
    EXPECT_EQ(logits[1].abs().sum().item<float>(), 1.0F);
  }
}

TEST(CrossEntropyTest, NaNAndInfinityReachTheLoss) {
  for (const double bad : {std::numeric_limits<double>::quiet_NaN(), kInfinity}) {
    for (const std::int64_t column : {0, 900, 2999}) {
      Tensor logits = at::zeros({1, 3000}, at::kFloat);
      logits[0][column] = bad;
      Tensor loss = at::zeros({1}, at::kFloat);
      ops::cross_entropy_forward(logits, at::full({1}, 1500, at::kLong), loss);
      EXPECT_FALSE(std::isfinite(loss.item<float>())) << bad << " at " << column;
    }
  }
}

TEST(CrossEntropyTest, NamesALabelOutsideTheVocabulary) {
  Tensor logits = at::zeros({2, 4}, at::kFloat);
  Tensor loss = at::zeros({2}, at::kFloat);
  const Tensor grad = at::ones({2}, at::kFloat);
  for (const std::int64_t label : {-100, -1, 4}) {
    EXPECT_THROW(ops::cross_entropy_forward(logits, at::full({2}, label, at::kLong), loss), InternalError);
    EXPECT_THROW(ops::cross_entropy_forward_backward(logits, at::full({2}, label, at::kLong), grad, loss),
                 InternalError);
  }
  EXPECT_TRUE(at::equal(logits, at::zeros({2, 4}, at::kFloat)));
}

TEST(CrossEntropyTest, SameBitsWithAnyNumberOfThreads) {
  std::mt19937_64 generator(42);
  const Tensor logits = random_normal({203, 511}, at::kFloat, generator);
  const Tensor label = random_int({203}, at::kLong, 0, 511, generator);
  const Tensor grad = random_normal({203}, at::kFloat, generator);
  std::vector<Tensor> results;
  for (const int threads : {1, 2}) {
    at::set_num_threads(threads);
    Tensor dlogits = logits.clone();
    Tensor loss = poisoned({203}, at::kFloat);
    ops::cross_entropy_forward_backward(dlogits, label, grad, loss);
    results.insert(results.end(), {dlogits, loss});
  }
  EXPECT_TRUE(at::equal(results[0], results[2]));
  EXPECT_TRUE(at::equal(results[1], results[3]));
}

struct LinearShape {
  std::int64_t tokens, hidden, vocabulary, chunk;
};

class LinearCrossEntropyTest : public ::testing::TestWithParam<LinearShape> {};

TEST_P(LinearCrossEntropyTest, MatchesAutogradInChunks) {
  const LinearShape shape = GetParam();
  const PoisonedScratch poison;
  std::mt19937_64 generator(43);
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
    const at::ScalarType statistics = ops::accumulator_type(dtype);
    const Tensor x = random_normal({shape.tokens, shape.hidden}, dtype, generator);
    const Tensor weight = random_normal({shape.vocabulary, shape.hidden}, dtype, generator, 0.3);
    const Tensor label = random_int({shape.tokens}, at::kLong, 0, shape.vocabulary, generator);
    const Tensor grad = random_normal({shape.tokens}, statistics, generator);
    const Tensor before = random_normal({shape.vocabulary, shape.hidden}, statistics, generator);
    Tensor main_grad = before.clone();
    Tensor dx = poisoned({shape.tokens, shape.hidden}, dtype);
    Tensor loss = poisoned({shape.tokens}, statistics);
    ops::linear_cross_entropy(x, weight, label, grad, shape.chunk, loss, dx, main_grad);
    Tensor loss_only = poisoned({shape.tokens}, statistics);
    ops::linear_cross_entropy_loss(x, weight, label, shape.chunk, loss_only);
    EXPECT_TRUE(at::equal(loss, loss_only));

    const Tensor x64 = leaf64(x);
    const Tensor weight64 = leaf64(weight);
    const Tensor expected = reference(at::mm(x64, weight64.t()), label);
    EXPECT_LE(relative_error(loss, expected), tolerance(dtype));
    if (shape.tokens == 0) {
      EXPECT_TRUE(at::equal(main_grad, before));
      continue;
    }
    at::sum(expected.mul(grad.to(at::kDouble))).backward();
    EXPECT_LE(relative_error(dx, x64.grad()), tolerance(dtype));
    EXPECT_LE(relative_error(main_grad.sub(before), weight64.grad()), tolerance(dtype));
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, LinearCrossEntropyTest,
                         ::testing::Values(LinearShape{0, 4, 6, 0}, LinearShape{1, 8, 5, 0}, LinearShape{13, 16, 40, 1},
                                           LinearShape{13, 16, 40, 5}, LinearShape{13, 16, 40, 13},
                                           LinearShape{13, 16, 40, 99}, LinearShape{300, 33, 1030, 0},
                                           LinearShape{130, 7, 9001, 0}));

TEST(LinearCrossEntropyTest, AgreesWithTheUnfusedPath) {
  std::mt19937_64 generator(44);
  const Tensor x = random_normal({257, 48}, at::kFloat, generator);
  const Tensor weight = random_normal({384, 48}, at::kFloat, generator, 0.2);
  const Tensor label = random_int({257}, at::kLong, 0, 384, generator);
  const Tensor grad = at::full({257}, 1.0 / 257, at::kFloat);
  Tensor dlogits = at::mm(x, weight.t());
  Tensor unfused_loss = poisoned({257}, at::kFloat);
  ops::cross_entropy_forward_backward(dlogits, label, grad, unfused_loss);
  Tensor main_grad = at::zeros({384, 48}, at::kFloat);
  Tensor dx = poisoned({257, 48}, at::kFloat);
  Tensor loss = poisoned({257}, at::kFloat);
  ops::linear_cross_entropy(x, weight, label, grad, 64, loss, dx, main_grad);
  EXPECT_LE(relative_error(loss, unfused_loss), 1e-6);
  EXPECT_LE(relative_error(dx, at::mm(dlogits, weight)), 1e-5);
  EXPECT_LE(relative_error(main_grad, at::mm(dlogits.t(), x)), 1e-5);
}

}  // namespace
}  // namespace primus
