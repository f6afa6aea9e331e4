#include <ATen/TensorOperators.h>
#include <ATen/ops/argsort.h>
#include <ATen/ops/gather.h>
#include <ATen/ops/linalg_eigh.h>
#include <ATen/ops/linalg_qr.h>
#include <ATen/ops/matmul.h>

#include "ops/soap/soap.hpp"
#include "ops/zone.hpp"

namespace primus::ops {
namespace {

Tensor as_stack(const Tensor& x) {
  return x.dim() == 2 ? x.unsqueeze(0) : x;
}

Tensor transposed(const Tensor& x) {
  return x.transpose(-2, -1);
}

/// Into the eigenbasis, and back.
Tensor projected(const Tensor& x, const SoapState& state) {
  return transposed(state.row_basis_EMM).matmul(x).matmul(state.column_basis_ENN);
}
Tensor projected_back(const Tensor& x, const SoapState& state) {
  return state.row_basis_EMM.matmul(x).matmul(transposed(state.column_basis_ENN));
}

/// Adam's direction in whatever basis the gradient is given.
Tensor adam_direction(const Tensor& gradient, std::int64_t step, const SoapOptions& options, Tensor& first,
                      Tensor& second) {
  first.mul_(options.beta1).add_(gradient, 1.0 - options.beta1);
  second.mul_(options.beta2).addcmul_(gradient, gradient, 1.0 - options.beta2);
  const auto n = static_cast<double>(step);
  const double first_share = 1.0 - std::pow(options.beta1, n);
  const double second_share = 1.0 - std::pow(options.beta2, n);
  return (first / first_share).div_((second / second_share).sqrt_().add_(options.epsilon));
}

/// The share of the past that a bias-corrected average with decay beta has at this step.
double corrected(double beta, std::int64_t step) {
  return 1.0 - (1.0 - beta) / (1.0 - std::pow(beta, static_cast<double>(step + 1)));
}

void average(const Tensor& gradient, double past, SoapState& state) {
  state.rows_EMM.mul_(past).add_(gradient.matmul(transposed(gradient)), 1.0 - past);
  state.columns_ENN.mul_(past).add_(transposed(gradient).matmul(gradient), 1.0 - past);
}

/// Eigenvectors by falling eigenvalue.
void find_basis(const Tensor& matrices, Tensor& basis) {
  basis.copy_(std::get<1>(at::linalg_eigh(matrices)).flip({-1}));
}

/// One step of orthogonal iteration from the old basis, its columns by falling Rayleigh quotient; `order` [E, n]: where
/// each new column was.
Tensor follow_basis(const Tensor& matrices, Tensor& basis) {
  const Tensor product = matrices.matmul(basis);
  const Tensor quotient = basis.mul(product).sum(-2);
  const Tensor order = at::argsort(quotient, -1, /*descending=*/true);
  const Tensor columns = order.unsqueeze(-2).expand_as(product);
  basis.copy_(std::get<0>(at::linalg_qr(at::gather(product, -1, columns))));
  return order;
}

void follow_bases(SoapState& state, Tensor& first, Tensor& second) {
  const Tensor plain = projected_back(first, state);
  const Tensor rows = follow_basis(state.rows_EMM, state.row_basis_EMM);
  const Tensor columns = follow_basis(state.columns_ENN, state.column_basis_ENN);
  second.copy_(at::gather(second, -2, rows.unsqueeze(-1).expand_as(second)));
  second.copy_(at::gather(second, -1, columns.unsqueeze(-2).expand_as(second)));
  first.copy_(projected(plain, state));
}

}  // namespace

SoapState make_soap_state(const Tensor& like, at::ScalarType dtype) {
  const std::int64_t matrices = like.dim() == 2 ? 1 : like.size(0);
  const auto square = [&](std::int64_t n) { return at::zeros({matrices, n, n}, like.options().dtype(dtype)); };
  return {square(like.size(-2)), square(like.size(-1)), square(like.size(-2)), square(like.size(-1))};
}

Tensor soap_direction(const Tensor& gradient, std::int64_t step, const SoapOptions& options, SoapState& state,
                      Tensor& first_moment, Tensor& second_moment) {
  const ZoneScope zone(Zone::kOptimizer);
  const Tensor own = as_stack(gradient);
  Tensor first = first_moment.view(own.sizes());
  Tensor second = second_moment.view(own.sizes());
  const bool has_basis = step > 1;
  if (!has_basis) average(own, 0.0, state);
  const Tensor direction = adam_direction(has_basis ? projected(own, state) : own, step, options, first, second);
  const Tensor result = has_basis ? projected_back(direction, state) : direction;
  average(own, corrected(options.beta2, step), state);
  if (!has_basis) {
    find_basis(state.rows_EMM, state.row_basis_EMM);
    find_basis(state.columns_ENN, state.column_basis_ENN);
    first.copy_(projected(first, state));
  } else if (step % options.basis_interval == 0) {
    follow_bases(state, first, second);
  }
  return result.view(gradient.sizes());
}

}  // namespace primus::ops
