#pragma once
// What the op and layer tests share: random tensors, poison, errors of tensors, gradients by autograd and by
// differences.
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "ops/dtype.hpp"

namespace primus::test {

using at::Tensor;

/// Standard normal values times `scale`, from a generator of the test's own.
Tensor random_normal(std::vector<std::int64_t> shape, at::ScalarType dtype, std::mt19937_64& generator,
                     double scale = 1.0);

/// Integers in [low, high).
Tensor random_int(std::vector<std::int64_t> shape, at::ScalarType dtype, std::int64_t low, std::int64_t high,
                  std::mt19937_64& generator);

/// A tensor full of NaN (of a large negative number for integer types): what an op's outputs and scratch start as.
Tensor poisoned(std::vector<std::int64_t> shape, at::ScalarType dtype);

/// A strided view of a poisoned, wider tensor: [rows, width] with row stride `width + extra`, holding `values`.
Tensor with_row_stride(const Tensor& values, std::int64_t extra);

/// ‖a − b‖ / ‖b‖ in fp64 (decision 11); ‖a‖ when b is zero; infinite when a holds NaN.
double relative_error(const Tensor& a, const Tensor& b);

/// The bound of decision 11 for gradients and outputs of this element type: 1e-9 in fp64, 1e-5 in fp32, 1e-2 in bf16.
double tolerance(at::ScalarType dtype);

/// A copy in fp64 that autograd follows.
Tensor leaf64(const Tensor& x);

/// Gradient of `loss` (a scalar function of x, evaluated in fp64) by central differences, for every element.
Tensor finite_difference(const std::function<double(const Tensor&)>& loss, const Tensor& x, double step = 1e-5);

}  // namespace primus::test
