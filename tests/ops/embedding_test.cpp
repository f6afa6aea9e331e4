#include "ops/embedding/embedding.hpp"

#include <ATen/ops/embedding.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/sum.h>
#include <gtest/gtest.h>

#include "support/tensors.hpp"

namespace primus {
namespace {

using at::Tensor;
using namespace primus::test;

struct Shape {
  std::int64_t tokens, vocabulary, hidden;
};

class EmbeddingTest : public ::testing::TestWithParam<Shape> {};

TEST_P(EmbeddingTest, MatchesAutograd) {
  const Shape shape = GetParam();
  std::mt19937_64 generator(7);
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
    const Tensor weight = random_normal({shape.vocabulary, shape.hidden}, dtype, generator);
    const Tensor ids = random_int({shape.tokens}, at::kLong, 0, shape.vocabulary, generator);
    const Tensor dx = random_normal({shape.tokens, shape.hidden}, dtype, generator);
    Tensor x = poisoned({shape.tokens, shape.hidden}, dtype);
    ops::embedding_forward(ids, weight, x);
    Tensor grad = random_normal({shape.vocabulary, shape.hidden}, ops::accumulator_type(dtype), generator);
    const Tensor before = grad.clone();
    ops::embedding_backward(ids, dx, grad);

    const Tensor weight64 = leaf64(weight);
    const Tensor expected = at::embedding(weight64, ids);
    EXPECT_EQ(relative_error(x, expected), 0.0);
    if (shape.tokens == 0) {
      EXPECT_TRUE(at::equal(grad, before));
      continue;
    }
    at::sum(at::mul(expected, dx.to(at::kDouble))).backward();
    EXPECT_LE(relative_error(grad, before.to(at::kDouble).add(weight64.grad())), tolerance(dtype));
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, EmbeddingTest,
                         ::testing::Values(Shape{1, 1, 1}, Shape{0, 5, 3}, Shape{17, 5, 33}, Shape{300, 7, 130},
                                           Shape{64, 1000, 64}));

TEST(EmbeddingTest, SameBitsWithAnyNumberOfThreads) {
  std::mt19937_64 generator(8);
  const Tensor ids = random_int({500}, at::kLong, 0, 3, generator);
  const Tensor dx = random_normal({500, 257}, at::kFloat, generator);
  Tensor one = at::zeros({3, 257}, at::kFloat);
  Tensor two = at::zeros({3, 257}, at::kFloat);
  at::set_num_threads(1);
  ops::embedding_backward(ids, dx, one);
  at::set_num_threads(2);
  ops::embedding_backward(ids, dx, two);
  EXPECT_TRUE(at::equal(one, two));
}

TEST(EmbeddingTest, NamesAnIdOutsideTheVocabulary) {
  const Tensor ids = at::full({2}, 9, at::kLong);
  const Tensor weight = at::zeros({9, 4}, at::kFloat);
  Tensor x = at::zeros({2, 4}, at::kFloat);
  Tensor grad = at::zeros({9, 4}, at::kFloat);
  EXPECT_THROW(ops::embedding_forward(ids, weight, x), InternalError);
  EXPECT_THROW(ops::embedding_backward(ids, x, grad), InternalError);
}

}  // namespace
}  // namespace primus
