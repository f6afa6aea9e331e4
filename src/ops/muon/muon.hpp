#pragma once
// Muon: momentum whose matrix is made (nearly) orthogonal by a Newton-Schulz iteration. Products of whole matrices, so
// the same code on every device.
#include "ops/dtype.hpp"

namespace primus::ops {

/// a, b, c of one step X <- a·X + (b·A + c·A²)·X, A = X·Xᵀ.
struct NewtonSchulzStep {
  double a, b, c;
};

/// x [.., O, I] (fp32 or fp64, any number of matrices) with its singular values moved towards 1. Each matrix is first
/// divided by its Frobenius norm; the iteration works on the smaller of O and I.
Tensor newton_schulz(const Tensor& x, std::span<const NewtonSchulzStep> steps);

}  // namespace primus::ops
