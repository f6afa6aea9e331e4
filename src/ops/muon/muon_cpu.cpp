#include <ATen/TensorOperators.h>
#include <ATen/ops/matmul.h>

#include "ops/muon/muon.hpp"
#include "ops/zone.hpp"

namespace primus::ops {

Tensor newton_schulz(const Tensor& x, std::span<const NewtonSchulzStep> steps) {
  const ZoneScope zone(Zone::kOptimizer);
  PRIMUS_CHECK(x.dim() >= 2 && (x.scalar_type() == at::kFloat || x.scalar_type() == at::kDouble),
               "newton_schulz: matrices in fp32 or fp64");
  constexpr double kSmallestNorm = 1e-7;  // a matrix of zeros stays one
  const bool is_tall = x.size(-2) > x.size(-1);
  Tensor result = is_tall ? x.transpose(-2, -1) : x;
  result = result / result.pow(2).sum({-2, -1}, /*keepdim=*/true).sqrt().clamp_min(kSmallestNorm);
  for (const NewtonSchulzStep& step : steps) {
    const Tensor square = at::matmul(result, result.transpose(-2, -1));
    const Tensor factor = square * step.b + at::matmul(square, square) * step.c;
    result = result * step.a + at::matmul(factor, result);
  }
  return is_tall ? result.transpose(-2, -1) : result;
}

}  // namespace primus::ops
