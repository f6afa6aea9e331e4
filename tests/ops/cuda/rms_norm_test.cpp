#include "ops/rms_norm/rms_norm.hpp"

#include "support/cuda.hpp"

namespace primus {
namespace {

using at::Tensor;
using ops::Write;
using namespace primus::test;

struct Shape {
  std::int64_t rows, width, extra;  // extra: row stride beyond the width
};

class CudaRmsNormTest : public CudaTestWithParam<Shape> {};

Tensor strided(std::int64_t rows, std::int64_t width, std::int64_t extra, at::ScalarType dtype) {
  return cuda_poisoned({rows, width + extra}, dtype).narrow(1, 0, width);
}

Tensor filled(const Tensor& values, std::int64_t extra) {
  Tensor view = strided(values.size(0), values.size(1), extra, values.scalar_type());
  view.copy_(values);
  return view;
}

TEST_P(CudaRmsNormTest, ForwardMatchesTheReference) {
  const auto [rows, width, extra] = GetParam();
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    std::mt19937_64 generator(1);
    const Tensor x = random_normal({rows, width}, dtype, generator, 3.0);
    const Tensor weight = random_normal({width}, dtype, generator);
    Tensor y64 = at::empty({rows, width}, at::kDouble);
    Tensor rstd64 = at::empty({rows}, at::kDouble);
    ops::rms_norm_forward(to64(x), to64(weight), 1e-6, y64, rstd64);

    const Tensor x_gpu = filled(x, extra);
    Tensor y = strided(rows, width, extra, dtype);
    Tensor rstd = cuda_poisoned({rows}, at::kFloat);
    ops::rms_norm_forward(x_gpu, to_cuda(weight), 1e-6, y, rstd);
    EXPECT_LE(relative_error(to64(y), y64), rounded_tolerance(dtype));
    EXPECT_LE(relative_error(to64(rstd), rstd64), 1e-6);
    Tensor again = strided(rows, width, extra, dtype);
    ops::rms_norm_apply(x_gpu, to_cuda(weight), rstd, again);
    EXPECT_TRUE(at::equal(again.cpu(), y.cpu()));
  }
}

TEST_P(CudaRmsNormTest, BackwardMatchesTheReference) {
  const auto [rows, width, extra] = GetParam();
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const Write write : {Write::kOverwrite, Write::kAccumulate}) {
      std::mt19937_64 generator(2);
      const Tensor x = random_normal({rows, width}, dtype, generator);
      const Tensor dy = random_normal({rows, width}, dtype, generator);
      const Tensor weight = random_normal({width}, dtype, generator);
      const Tensor dx_before = random_normal({rows, width}, dtype, generator);
      const Tensor grad_before = random_normal({width}, at::kFloat, generator);
      const Tensor rstd = random_normal({rows}, at::kFloat, generator);
      Tensor dx64 = to64(dx_before).clone();
      Tensor grad64 = to64(grad_before).clone();
      ops::rms_norm_backward(to64(dy), to64(x), to64(weight), to64(rstd), dx64, write, grad64);

      std::vector<Tensor> gradients;
      for (int run = 0; run < 2; ++run) {
        Tensor dx = write == Write::kAccumulate ? filled(dx_before, extra) : strided(rows, width, extra, dtype);
        Tensor grad = to_cuda(grad_before).clone();
        ops::rms_norm_backward(filled(dy, extra), filled(x, extra), to_cuda(weight), to_cuda(rstd), dx, write, grad);
        EXPECT_LE(relative_error(to64(dx), dx64), rounded_tolerance(dtype));
        EXPECT_LE(relative_error(to64(grad), grad64), 1e-5);
        gradients.push_back(grad.cpu());
      }
      EXPECT_TRUE(at::equal(gradients[0], gradients[1]));
    }
  }
}

class CudaHeadNormTest : public CudaTest {};

// Heads of a fused tensor, whose rows have no single stride.
TEST_F(CudaHeadNormTest, HeadsMatchTheReference) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    std::mt19937_64 generator(3);
    const Tensor fused = random_normal({50, 6, 32}, dtype, generator);
    const Tensor dy = random_normal({50, 4, 32}, dtype, generator);
    const Tensor weight = random_normal({32}, dtype, generator);
    Tensor y64 = at::empty({50, 4, 32}, at::kDouble);
    Tensor dx64 = at::empty({50, 4, 32}, at::kDouble);
    Tensor rstd64 = at::empty({200}, at::kDouble);
    Tensor grad64 = at::zeros({32}, at::kDouble);
    const Tensor x64 = to64(fused).narrow(1, 1, 4);
    ops::rms_norm_forward(x64, to64(weight), 1e-6, y64, rstd64);
    ops::rms_norm_backward(to64(dy), x64, to64(weight), rstd64, dx64, Write::kOverwrite, grad64);

    const Tensor x = to_cuda(fused).narrow(1, 1, 4);
    Tensor y = cuda_poisoned({50, 4, 32}, dtype);
    Tensor rstd = cuda_poisoned({200}, at::kFloat);
    ops::rms_norm_forward(x, to_cuda(weight), 1e-6, y, rstd);
    EXPECT_LE(relative_error(to64(y), y64), rounded_tolerance(dtype));
    Tensor wide = cuda_poisoned({50, 6, 32}, dtype);
    Tensor dx = wide.narrow(1, 2, 4);
    Tensor grad = at::zeros({32}, at::kFloat).to(at::kCUDA);
    ops::rms_norm_backward(to_cuda(dy), x, to_cuda(weight), rstd, dx, Write::kOverwrite, grad);
    EXPECT_LE(relative_error(to64(dx), dx64), rounded_tolerance(dtype));
    EXPECT_LE(relative_error(to64(grad), grad64), 1e-5);
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, CudaRmsNormTest,
                         ::testing::Values(Shape{0, 64, 0}, Shape{1, 1, 0}, Shape{3, 7, 2}, Shape{5, 512, 64},
                                           Shape{1000, 512, 3}, Shape{37, 1536, 0}, Shape{2001, 2048, 0},
                                           Shape{19, 5120, 8}, Shape{3, 9000, 0}));

}  // namespace
}  // namespace primus
