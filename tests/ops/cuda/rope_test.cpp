#include "ops/rope/rope.hpp"

#include "support/cuda.hpp"

namespace primus {
namespace {

using at::Tensor;
using ops::RopeDirection;
using ops::RopeLayout;
using namespace primus::test;

struct Shape {
  std::int64_t tokens, sequence, heads, nope, rotary, value;
  std::int64_t extra = 0;  // row stride of k_pe beyond its width
};

class CudaRopeTest : public CudaTestWithParam<Shape> {
 protected:
  CudaRopeTest() : generator_(81) {
    const Shape s = GetParam();
    cos_ = random_normal({s.sequence, s.rotary / 2}, at::kFloat, generator_);
    sin_ = random_normal({s.sequence, s.rotary / 2}, at::kFloat, generator_);
  }
  Tensor random(std::vector<std::int64_t> shape, at::ScalarType dtype) {
    return random_normal(std::move(shape), dtype, generator_);
  }
  /// On the device, with a row stride.
  static Tensor strided(const Tensor& x, std::int64_t extra) {
    const Tensor view = cuda_poisoned({x.size(0), x.size(1) + extra}, x.scalar_type()).narrow(1, 0, x.size(1));
    view.copy_(x);
    return view;
  }

  std::mt19937_64 generator_;
  Tensor cos_, sin_;
};

TEST_P(CudaRopeTest, AssembleForwardMatchesTheReference) {
  const Shape s = GetParam();
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const RopeLayout layout : {RopeLayout::kHalves, RopeLayout::kInterleaved}) {
      const Tensor kv = random({s.tokens, s.heads, s.nope + s.value}, dtype);
      const Tensor k_pe = random({s.tokens, s.rotary}, dtype);
      const Tensor q = random({s.tokens, s.heads, s.nope + s.rotary}, dtype);
      Tensor q64 = to64(q).clone();
      Tensor k64 = poisoned({s.tokens, s.heads, s.nope + s.rotary}, at::kDouble);
      Tensor v64 = poisoned({s.tokens, s.heads, s.value}, at::kDouble);
      ops::mla_assemble_forward(to64(kv), to64(k_pe), to64(cos_), to64(sin_), layout, q64, k64, v64);
      Tensor q_gpu = to_cuda(q).clone();
      Tensor k = cuda_poisoned({s.tokens, s.heads, s.nope + s.rotary}, dtype);
      Tensor v = cuda_poisoned({s.tokens, s.heads, s.value}, dtype);
      ops::mla_assemble_forward(to_cuda(kv), strided(k_pe, s.extra), to_cuda(cos_), to_cuda(sin_), layout, q_gpu, k, v);
      EXPECT_LE(relative_error(to64(q_gpu), q64), rounded_tolerance(dtype));
      EXPECT_LE(relative_error(to64(k), k64), rounded_tolerance(dtype));
      EXPECT_TRUE(at::equal(to64(v), v64));
    }
  }
}

TEST_P(CudaRopeTest, AssembleBackwardMatchesTheReference) {
  const Shape s = GetParam();
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const RopeLayout layout : {RopeLayout::kHalves, RopeLayout::kInterleaved}) {
      const Tensor dk = random({s.tokens, s.heads, s.nope + s.rotary}, dtype);
      const Tensor dv = random({s.tokens, s.heads, s.value}, dtype);
      const Tensor dq = random({s.tokens, s.heads, s.nope + s.rotary}, dtype);
      Tensor dq64 = to64(dq).clone();
      Tensor dkv64 = poisoned({s.tokens, s.heads, s.nope + s.value}, at::kDouble);
      Tensor dk_pe64 = poisoned({s.tokens, s.rotary}, at::kDouble);
      ops::mla_assemble_backward(to64(dk), to64(dv), to64(cos_), to64(sin_), layout, dq64, dkv64, dk_pe64);
      Tensor dq_gpu = to_cuda(dq).clone();
      Tensor dkv = cuda_poisoned({s.tokens, s.heads, s.nope + s.value}, dtype);
      Tensor dk_pe = strided(poisoned({s.tokens, s.rotary}, dtype), s.extra);
      ops::mla_assemble_backward(to_cuda(dk), to_cuda(dv), to_cuda(cos_), to_cuda(sin_), layout, dq_gpu, dkv, dk_pe);
      EXPECT_LE(relative_error(to64(dq_gpu), dq64), rounded_tolerance(dtype));
      EXPECT_TRUE(at::equal(to64(dkv), dkv64));
      EXPECT_LE(relative_error(to64(dk_pe), dk_pe64), rounded_tolerance(dtype));
    }
  }
}

TEST_P(CudaRopeTest, ApplyMatchesTheReference) {
  const Shape s = GetParam();
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const RopeLayout layout : {RopeLayout::kHalves, RopeLayout::kInterleaved}) {
      for (const RopeDirection direction : {RopeDirection::kForward, RopeDirection::kBackward}) {
        // Heads of a wider tensor: every stride differs from the packed one.
        const Tensor all = random({s.tokens, s.heads, s.rotary + s.nope + 8}, dtype);
        Tensor all64 = to64(all).clone();
        Tensor x64 = all64.narrow(2, 0, s.rotary + s.nope);
        ops::rope_apply(to64(cos_), to64(sin_), layout, direction, x64);
        Tensor all_gpu = to_cuda(all).clone();
        Tensor x = all_gpu.narrow(2, 0, s.rotary + s.nope);
        ops::rope_apply(to_cuda(cos_), to_cuda(sin_), layout, direction, x);
        EXPECT_LE(relative_error(to64(all_gpu), all64), rounded_tolerance(dtype));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, CudaRopeTest,
                         ::testing::Values(Shape{0, 4, 2, 8, 8, 8}, Shape{1, 1, 1, 1, 2, 1}, Shape{6, 3, 3, 5, 6, 7, 3},
                                           Shape{128, 64, 16, 128, 64, 128}, Shape{70, 35, 5, 64, 32, 96, 512},
                                           Shape{9, 9, 2, 0, 128, 128, 1}, Shape{5, 5, 130, 128, 64, 128}));

}  // namespace
}  // namespace primus
