#include "ops/swiglu/swiglu.hpp"

#include "support/cuda.hpp"

namespace primus {
namespace {

using at::Tensor;
using namespace primus::test;

struct Shape {
  std::int64_t rows, width;
  std::int64_t valid;  // -1: no count of valid rows
};

class CudaSwigluTest : public CudaTestWithParam<Shape> {
 protected:
  static Tensor valid_of(const Shape& shape) {
    return shape.valid < 0 ? Tensor() : at::full({1}, shape.valid, at::kInt);
  }
  /// The rows that count; those past them must be what they were: NaN.
  static Tensor checked_rows(const Tensor& x, const Shape& shape) {
    const Tensor rows = x.cpu();
    if (shape.valid < 0) return rows;
    const Tensor rest = rows.narrow(0, shape.valid, shape.rows - shape.valid).to(at::kDouble);
    EXPECT_FALSE(rest.eq(rest).any().item<bool>());
    return rows.narrow(0, 0, shape.valid);
  }
};

TEST_P(CudaSwigluTest, MatchesTheReference) {
  const Shape shape = GetParam();
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const int with_prob : {0, 1}) {
      std::mt19937_64 generator(3);
      const Tensor h = random_normal({shape.rows, 2 * shape.width}, dtype, generator, 3.0);
      const Tensor da = random_normal({shape.rows, shape.width}, dtype, generator);
      const Tensor prob = with_prob != 0 ? random_normal({shape.rows}, at::kFloat, generator) : Tensor();
      const Tensor valid = valid_of(shape);
      Tensor a64 = poisoned({shape.rows, shape.width}, at::kDouble);
      Tensor dh64 = poisoned({shape.rows, 2 * shape.width}, at::kDouble);
      Tensor dprob64 = with_prob != 0 ? poisoned({shape.rows}, at::kDouble) : Tensor();
      ops::swiglu_backward(to64(da), to64(h), to64(prob), valid, dh64, dprob64, a64);

      Tensor a = cuda_poisoned({shape.rows, shape.width}, dtype);
      ops::swiglu_forward(to_cuda(h), to_cuda(prob), to_cuda(valid), a);
      EXPECT_LE(relative_error(checked_rows(a, shape), checked_rows(a64, shape)), rounded_tolerance(dtype));
      Tensor again = cuda_poisoned({shape.rows, shape.width}, dtype);
      Tensor dh = cuda_poisoned({shape.rows, 2 * shape.width}, dtype);
      Tensor dprob = with_prob != 0 ? cuda_poisoned({shape.rows}, at::kFloat) : Tensor();
      ops::swiglu_backward(to_cuda(da), to_cuda(h), to_cuda(prob), to_cuda(valid), dh, dprob, again);
      EXPECT_LE(relative_error(checked_rows(dh, shape), checked_rows(dh64, shape)), rounded_tolerance(dtype));
      EXPECT_TRUE(at::equal(checked_rows(again, shape), checked_rows(a, shape)));
      if (with_prob != 0) {
        EXPECT_LE(relative_error(checked_rows(dprob, shape), checked_rows(dprob64, shape)), 1e-5);
      }
      // In place: the gradient takes the pre-activation's storage.
      if (shape.valid >= 0) continue;
      Tensor in_place = to_cuda(h).clone();
      ops::swiglu_backward(to_cuda(da), in_place, to_cuda(prob), {}, in_place, dprob, again);
      EXPECT_TRUE(at::equal(in_place.cpu(), dh.cpu()));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, CudaSwigluTest,
                         ::testing::Values(Shape{0, 8, -1}, Shape{1, 1, -1}, Shape{3, 5, 2}, Shape{50, 24, 0},
                                           Shape{777, 1408, -1}, Shape{129, 1408, 100}, Shape{4, 10944, -1},
                                           Shape{33, 1407, 33}));

TEST_F(CudaTest, SwigluIsFiniteForLargeGates) {
  Tensor h = at::zeros({4, 2}, at::kFloat);
  const float gates[] = {-1000.0F, 1000.0F, -88.0F, 88.0F};
  for (int r = 0; r < 4; ++r) {
    h[r][0] = gates[r];
    h[r][1] = 1.0F;
  }
  Tensor a = cuda_poisoned({4, 1}, at::kFloat);
  ops::swiglu_forward(to_cuda(h), {}, {}, a);
  Tensor expected = at::zeros({4, 1}, at::kFloat);
  expected[1][0] = 1000.0F;
  expected[3][0] = 88.0F;
  EXPECT_LE(relative_error(to64(a), expected), 1e-6);
}

}  // namespace
}  // namespace primus
