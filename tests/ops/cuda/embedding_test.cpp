#include "ops/embedding/embedding.hpp"

#include "support/cuda.hpp"

namespace primus {
namespace {

using at::Tensor;
using namespace primus::test;

/// How the ids of a text are spread.
enum class Ids { kUniform, kOneOnly, kHot, kEveryOne };

struct Shape {
  std::int64_t tokens, vocabulary, hidden;
  Ids ids;
};

class CudaEmbeddingTest : public CudaTestWithParam<Shape> {
 protected:
  static Tensor ids_of(const Shape& shape, std::mt19937_64& generator) {
    Tensor ids = random_int({shape.tokens}, at::kLong, 0, shape.vocabulary, generator);
    auto* id = ids.data_ptr<std::int64_t>();
    for (std::int64_t t = 0; t < shape.tokens; ++t) {
      if (shape.ids == Ids::kOneOnly) id[t] = shape.vocabulary - 1;
      if (shape.ids == Ids::kHot && generator() % 3 == 0) id[t] = shape.vocabulary / 2;
      if (shape.ids == Ids::kEveryOne) id[t] = t % shape.vocabulary;
    }
    return ids;
  }
};

TEST_P(CudaEmbeddingTest, ForwardCopiesRows) {
  const Shape shape = GetParam();
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    std::mt19937_64 generator(71);
    const Tensor ids = ids_of(shape, generator);
    const Tensor w = random_normal({shape.vocabulary, shape.hidden}, dtype, generator);
    Tensor expected = poisoned({shape.tokens, shape.hidden}, dtype);
    ops::embedding_forward(ids, w, expected);
    Tensor x = cuda_poisoned({shape.tokens, shape.hidden}, dtype);
    ops::embedding_forward(to_cuda(ids), to_cuda(w), x);
    EXPECT_TRUE(at::equal(x.cpu(), expected));
  }
}

TEST_P(CudaEmbeddingTest, BackwardMatchesTheReferenceAndRepeats) {
  const Shape shape = GetParam();
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    std::mt19937_64 generator(72);
    const Tensor ids = ids_of(shape, generator);
    const Tensor dx = random_normal({shape.tokens, shape.hidden}, dtype, generator);
    const Tensor before = random_normal({shape.vocabulary, shape.hidden}, at::kFloat, generator);
    Tensor expected = to64(before).clone();
    ops::embedding_backward(ids, to64(dx), expected);
    std::vector<Tensor> gradients;
    for (int run = 0; run < 2; ++run) {
      Tensor grad = to_cuda(before).clone();
      ops::embedding_backward(to_cuda(ids), to_cuda(dx), grad);
      gradients.push_back(grad.cpu());
    }
    EXPECT_LE(relative_error(to64(gradients[0]), expected), 1e-6);
    // What was added, not only where it was added to.
    const Tensor added = expected.sub(to64(before));
    EXPECT_LE(relative_error(to64(gradients[0]).sub(to64(before)), added), 1e-5);
    EXPECT_TRUE(at::equal(gradients[0], gradients[1]));
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, CudaEmbeddingTest,
                         ::testing::Values(Shape{0, 8, 16, Ids::kUniform}, Shape{1, 1, 1, Ids::kUniform},
                                           Shape{33, 5, 7, Ids::kUniform}, Shape{64, 64, 8, Ids::kEveryOne},
                                           Shape{31, 300, 2048, Ids::kUniform}, Shape{1000, 384, 264, Ids::kHot},
                                           Shape{3001, 1025, 129, Ids::kHot}, Shape{4096, 102400, 64, Ids::kUniform},
                                           Shape{4096, 2000, 2056, Ids::kHot}, Shape{2500, 300000, 40, Ids::kOneOnly},
                                           Shape{96, 3, 8, Ids::kOneOnly}, Shape{5000, 4, 32, Ids::kUniform}));

}  // namespace
}  // namespace primus
