// Newton-Schulz against what it approaches: the polar factor. Coefficients for which theory promises convergence, and
// Muon's own, whose singular values end near 1.
#include "ops/muon/muon.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/stack.h>
#include <gtest/gtest.h>

#include "support/tensors.hpp"

namespace primus {
namespace {

using at::Tensor;
using namespace primus::test;

/// X <- 15/8 X − 10/8 A X + 3/8 A² X converges to the polar factor for singular values in (0, 1].
const std::vector<ops::NewtonSchulzStep> kConverging(60, {15.0 / 8.0, -10.0 / 8.0, 3.0 / 8.0});
const std::vector<ops::NewtonSchulzStep> kQuintic = {{4.0848, -6.8946, 2.9270},
                                                     {3.9505, -6.3029, 2.6377},
                                                     {3.7418, -5.5913, 2.3037},
                                                     {2.8769, -3.1427, 1.2046},
                                                     {2.8366, -3.0525, 1.2012}};

TEST(MuonTest, ConvergesToOrthogonalRowsOrColumns) {
  std::mt19937_64 generator(1);
  for (const auto& [rows, columns] : {std::pair<std::int64_t, std::int64_t>{5, 9}, {9, 5}, {7, 7}, {1, 4}}) {
    const Tensor x = random_normal({rows, columns}, at::kDouble, generator);
    const Tensor q = ops::newton_schulz(x, kConverging);
    const Tensor square = rows <= columns ? q.matmul(q.t()) : q.t().matmul(q);
    EXPECT_LE(relative_error(square, at::eye(std::min(rows, columns), at::kDouble)), 1e-10) << rows << "x" << columns;
    // The polar factor turns x into a symmetric positive matrix.
    const Tensor positive = rows <= columns ? x.matmul(q.t()) : q.t().matmul(x);
    EXPECT_LE(relative_error(positive, positive.t()), 1e-9);
  }
}

TEST(MuonTest, ScaleOfTheInputDoesNotMatter) {
  std::mt19937_64 generator(2);
  const Tensor x = random_normal({6, 11}, at::kDouble, generator);
  EXPECT_LE(relative_error(ops::newton_schulz(x * 1e-4, kQuintic), ops::newton_schulz(x, kQuintic)), 1e-12);
}

TEST(MuonTest, QuinticLeavesSingularValuesNearOne) {
  std::mt19937_64 generator(3);
  for (int i = 0; i < 10; ++i) {
    const Tensor x = random_normal({16, 40}, at::kFloat, generator);
    const Tensor q = ops::newton_schulz(x, kQuintic).to(at::kDouble);
    // Largest and smallest eigenvalue of q·qᵀ, bounded by its distance from 1 in every row (Gershgorin).
    const double mean = q.pow(2).sum().item<double>() / 16.0;
    EXPECT_NEAR(mean, 1.0, 0.25);
    EXPECT_LE((q.matmul(q.t()) - at::eye(16, at::kDouble)).norm().item<double>() / 4.0, 0.35);
  }
}

TEST(MuonTest, StacksAreTheirMatrices) {
  std::mt19937_64 generator(4);
  const Tensor x = random_normal({3, 8, 5}, at::kDouble, generator);
  const Tensor all = ops::newton_schulz(x, kQuintic);
  for (std::int64_t e = 0; e < 3; ++e) {
    EXPECT_LE(relative_error(all.select(0, e), ops::newton_schulz(x.select(0, e), kQuintic)), 1e-12);
  }
}

TEST(MuonTest, ZeroStaysZero) {
  EXPECT_EQ(ops::newton_schulz(at::zeros({4, 4}, at::kFloat), kQuintic).abs().max().item<float>(), 0.0F);
}

}  // namespace
}  // namespace primus
