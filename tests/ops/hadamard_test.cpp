#include "ops/hadamard/hadamard.hpp"

#include <ATen/ops/matmul.h>
#include <gtest/gtest.h>

#include <bit>

#include "support/tensors.hpp"

namespace primus {
namespace {

using at::Tensor;
using namespace primus::test;

/// Entry (i, j) of Sylvester's matrix is −1 to the number of bits that i and j share.
Tensor sylvester(std::int64_t width) {
  Tensor matrix = at::empty({width, width}, at::kDouble);
  for (std::int64_t i = 0; i < width; ++i) {
    for (std::int64_t j = 0; j < width; ++j) {
      matrix[i][j] = std::popcount(static_cast<std::uint64_t>(i & j)) % 2 == 0 ? 1.0 : -1.0;
    }
  }
  return matrix;
}

TEST(HadamardTest, IsSylvestersMatrixOverTheRootOfTheWidth) {
  std::mt19937_64 generator(1);
  for (const std::int64_t width : {1, 2, 4, 8, 64, 128}) {
    for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
      for (const std::int64_t rows : {0, 1, 5, 3000}) {
        const Tensor x = random_normal({rows, width}, dtype, generator);
        Tensor y = x.clone();
        ops::hadamard_rotate(y);
        if (rows == 0) continue;
        const Tensor expected =
            at::matmul(x.to(at::kDouble), sylvester(width)).div(std::sqrt(static_cast<double>(width)));
        EXPECT_LE(relative_error(y, expected), tolerance(dtype)) << rows << " x " << width;
      }
    }
  }
}

TEST(HadamardTest, IsItsOwnInverseAndItsOwnTranspose) {
  std::mt19937_64 generator(2);
  const Tensor x = random_normal({7, 32}, at::kDouble, generator);
  const Tensor dy = random_normal({7, 32}, at::kDouble, generator);
  Tensor y = x.clone();
  ops::hadamard_rotate(y);
  Tensor back = y.clone();
  ops::hadamard_rotate(back);
  EXPECT_LE(relative_error(back, x), 1e-14);
  Tensor dx = dy.clone();
  ops::hadamard_rotate(dx);
  EXPECT_NEAR(y.mul(dy).sum().item<double>(), x.mul(dx).sum().item<double>(), 1e-12);
}

TEST(HadamardTest, RefusesOtherWidths) {
  Tensor x = at::zeros({2, 12}, at::kFloat);
  EXPECT_THROW(ops::hadamard_rotate(x), InternalError);
}

}  // namespace
}  // namespace primus
