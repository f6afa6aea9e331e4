#pragma once
// SOAP's update of a matrix: Adam in the eigenbasis of the gradients' second moments over rows and over columns
// (Vyas et al., arXiv 2409.11321). Legend: E matrices of a stack, M rows, N columns.
#include "ops/dtype.hpp"

namespace primus::ops {

struct SoapOptions {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  std::int64_t basis_interval = 10;  // steps between new eigenbases
};

/// What is held beside Adam's moments, which are kept in the eigenbasis. All of the gradients' type.
struct SoapState {
  Tensor rows_EMM, columns_ENN;            // moving averages of G·Gᵀ and Gᵀ·G
  Tensor row_basis_EMM, column_basis_ENN;  // their eigenvectors, as columns; before the first step: undefined values

  bool is_held() const { return rows_EMM.defined(); }
};

/// State for matrices like `like` [M, N] or [E, M, N] in the type `dtype`, zero.
SoapState make_soap_state(const Tensor& like, at::ScalarType dtype);

/// The direction of update number `step` (from 1), of the gradient's shape [M, N] or [E, M, N]; moves the state and
/// the moments. The first step is Adam's own; behind it the eigenbasis is found, and from then on followed by one step
/// of orthogonal iteration each `basis_interval` steps.
Tensor soap_direction(const Tensor& gradient, std::int64_t step, const SoapOptions& options, SoapState& state,
                      Tensor& first_moment, Tensor& second_moment);

}  // namespace primus::ops
