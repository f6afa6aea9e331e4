#include "support/tensors.hpp"

#include <ATen/ops/isnan.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/sub.h>

#include <limits>

namespace primus::test {
namespace {

double norm(const Tensor& x) {
  return at::linalg_vector_norm(x).item<double>();
}

}  // namespace

Tensor random_normal(std::vector<std::int64_t> shape, at::ScalarType dtype, std::mt19937_64& generator, double scale) {
  Tensor values = at::empty(shape, at::kDouble);
  std::normal_distribution<double> normal(0.0, scale);
  double* data = values.data_ptr<double>();
  for (std::int64_t i = 0; i < values.numel(); ++i) data[i] = normal(generator);
  return values.to(dtype);
}

Tensor random_int(std::vector<std::int64_t> shape, at::ScalarType dtype, std::int64_t low, std::int64_t high,
                  std::mt19937_64& generator) {
  Tensor values = at::empty(shape, at::kLong);
  std::uniform_int_distribution<std::int64_t> uniform(low, high - 1);
  auto* data = values.data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < values.numel(); ++i) data[i] = uniform(generator);
  return values.to(dtype);
}

Tensor poisoned(std::vector<std::int64_t> shape, at::ScalarType dtype) {
  if (at::isFloatingType(dtype)) return at::full(shape, std::numeric_limits<double>::quiet_NaN(), dtype);
  return at::full(shape, -1234567, dtype);
}

Tensor with_row_stride(const Tensor& values, std::int64_t extra) {
  Tensor wide = poisoned({values.size(0), values.size(1) + extra}, values.scalar_type());
  Tensor view = wide.narrow(1, 0, values.size(1));
  view.copy_(values);
  return view;
}

double relative_error(const Tensor& a, const Tensor& b) {
  const Tensor a64 = a.detach().to(at::kDouble);
  const Tensor b64 = b.detach().to(at::kDouble);
  if (a64.sizes() != b64.sizes()) return std::numeric_limits<double>::infinity();
  const double difference = norm(at::sub(a64, b64));
  if (std::isnan(difference)) return std::numeric_limits<double>::infinity();
  const double reference = norm(b64);
  return reference > 0.0 ? difference / reference : difference;
}

double tolerance(at::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble:
      return 1e-9;
    case at::kFloat:
      return 1e-5;
    default:
      return 1e-2;
  }
}

Tensor leaf64(const Tensor& x) {
  return x.detach().to(at::kDouble).clone().requires_grad_(true);
}

Tensor finite_difference(const std::function<double(const Tensor&)>& loss, const Tensor& x, double step) {
  Tensor point = x.detach().to(at::kDouble).contiguous().clone();
  Tensor gradient = at::empty_like(point);
  double* values = point.data_ptr<double>();
  double* result = gradient.data_ptr<double>();
  for (std::int64_t i = 0; i < point.numel(); ++i) {
    const double value = values[i];
    values[i] = value + step;
    const double above = loss(point);
    values[i] = value - step;
    const double below = loss(point);
    values[i] = value;
    result[i] = (above - below) / (2.0 * step);
  }
  return gradient;
}

}  // namespace primus::test
