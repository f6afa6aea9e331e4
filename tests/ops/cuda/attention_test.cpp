#include "ops/attention/attention.hpp"

#include "support/cuda.hpp"

namespace primus {
namespace {

using at::Tensor;
using namespace primus::test;

struct Shape {
  std::int64_t batch, sequence, heads, groups, query_size, value_size;
};

class CudaAttentionTest : public CudaTestWithParam<Shape> {};

TEST_P(CudaAttentionTest, MatchesTheReference) {
  const auto [batch, sequence, heads, groups, query_size, value_size] = GetParam();
  const double scale = 1.0 / std::sqrt(static_cast<double>(query_size));
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    SCOPED_TRACE(c10::toString(type));
    std::mt19937_64 generator(8);
    const Tensor q = random_normal({batch, sequence, heads, query_size}, type, generator);
    const Tensor k = random_normal({batch, sequence, groups, query_size}, type, generator);
    const Tensor v = random_normal({batch, sequence, groups, value_size}, type, generator);
    const Tensor dcontext = random_normal({batch, sequence, heads, value_size}, type, generator);
    Tensor context64 = poisoned({batch, sequence, heads, value_size}, at::kDouble);
    Tensor lse64 = poisoned({batch, heads, sequence}, at::kDouble);
    ops::attention_forward(to64(q), to64(k), to64(v), {.scale = scale}, context64, lse64);

    Tensor context = cuda_poisoned({batch, sequence, heads, value_size}, type);
    Tensor lse = cuda_poisoned({batch, heads, sequence}, at::kFloat);
    ops::attention_forward(to_cuda(q), to_cuda(k), to_cuda(v), {.scale = scale}, context, lse);
    EXPECT_LE(relative_error(to64(context), context64), rounded_tolerance(type));
    EXPECT_LE(relative_error(to64(lse), lse64), 1e-5);

    // Backward of the same inputs: the rounded context and the LSE that forward left.
    Tensor dq64 = poisoned({batch, sequence, heads, query_size}, at::kDouble);
    Tensor dk64 = poisoned({batch, sequence, groups, query_size}, at::kDouble);
    Tensor dv64 = poisoned({batch, sequence, groups, value_size}, at::kDouble);
    ops::attention_backward(to64(dcontext), to64(q), to64(k), to64(v), context64, lse64, {.scale = scale}, dq64, dk64,
                            dv64);
    Tensor dq = cuda_poisoned({batch, sequence, heads, query_size}, type);
    Tensor dk = cuda_poisoned({batch, sequence, groups, query_size}, type);
    Tensor dv = cuda_poisoned({batch, sequence, groups, value_size}, type);
    ops::attention_backward(to_cuda(dcontext), to_cuda(q), to_cuda(k), to_cuda(v), context, lse, {.scale = scale}, dq,
                            dk, dv);
    // Probabilities and their gradients are rounded to bf16 between the products.
    const double tolerance = type == at::kFloat ? 1e-5 : 1e-2;
    if (sequence == 1) {
      // One score has no gradient: what is left is rounding.
      EXPECT_LE(relative_error(to64(dq), at::zeros_like(dq64)), tolerance);
      EXPECT_LE(relative_error(to64(dk), at::zeros_like(dk64)), tolerance);
    } else {
      EXPECT_LE(relative_error(to64(dq), dq64), tolerance);
      EXPECT_LE(relative_error(to64(dk), dk64), tolerance);
    }
    EXPECT_LE(relative_error(to64(dv), dv64), tolerance);
  }
}

TEST_P(CudaAttentionTest, TakesViewsOfOneTensor) {
  // As the grouped-query layer calls it: q, k, v and their gradients are parts of one tensor.
  const auto [batch, sequence, heads, groups, query_size, value_size] = GetParam();
  if (query_size != value_size) return;
  std::mt19937_64 generator(4);
  const Tensor all = random_normal({batch, sequence, heads + 2 * groups, query_size}, at::kBFloat16, generator);
  const auto parts = [&](const Tensor& x) {
    return std::array<Tensor, 3>{x.narrow(2, 0, heads), x.narrow(2, heads, groups),
                                 x.narrow(2, heads + groups, groups)};
  };
  const auto gpu = parts(to_cuda(all));
  const Tensor dcontext = random_normal({batch, sequence, heads, value_size}, at::kBFloat16, generator).to(at::kCUDA);
  std::array<std::array<Tensor, 3>, 2> gradients;
  for (int i = 0; i < 2; ++i) {
    const auto in = i == 0 ? gpu : std::array<Tensor, 3>{gpu[0].contiguous(), gpu[1].contiguous(), gpu[2].contiguous()};
    Tensor context = cuda_poisoned({batch, sequence, heads, value_size}, at::kBFloat16);
    Tensor lse = cuda_poisoned({batch, heads, sequence}, at::kFloat);
    ops::attention_forward(in[0], in[1], in[2], {.scale = 0.1}, context, lse);
    const Tensor target = cuda_poisoned({batch, sequence, heads + 2 * groups, query_size}, at::kBFloat16);
    gradients[i] = parts(target);
    ops::attention_backward(dcontext, in[0], in[1], in[2], context, lse, {.scale = 0.1}, gradients[i][0],
                            gradients[i][1], gradients[i][2]);
  }
  for (int p = 0; p < 3; ++p) EXPECT_LE(relative_error(to64(gradients[0][p]), to64(gradients[1][p])), 4e-3);
}

INSTANTIATE_TEST_SUITE_P(Shapes, CudaAttentionTest,
                         ::testing::Values(Shape{0, 4, 2, 2, 64, 64}, Shape{1, 1, 1, 1, 128, 128},
                                           Shape{2, 5, 3, 1, 24, 16}, Shape{1, 33, 2, 2, 7, 5},
                                           Shape{2, 128, 4, 2, 64, 64}, Shape{1, 600, 2, 2, 192, 128},
                                           Shape{2, 259, 4, 4, 192, 128}, Shape{1, 300, 8, 2, 128, 128},
                                           Shape{1, 1030, 2, 1, 128, 128}));

}  // namespace
}  // namespace primus
