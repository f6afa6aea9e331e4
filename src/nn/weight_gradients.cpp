#include "nn/weight_gradients.hpp"

#include "ops/gemm/gemm.hpp"

namespace primus::nn {

void add_linear_gradient(const Tensor& dy_TO, const Tensor& x_TI, Parameter& weight) {
  const auto [sum, write] = weight.product_target();
  ops::linear_wgrad(dy_TO, x_TI, sum, write);
}

void add_grouped_gradient(const Tensor& dy_RO, const Tensor& x_RI, const Tensor& offsets, Parameter& weight) {
  const auto [sum, write] = weight.product_target();
  if (!weight.square_sum_1.defined()) return ops::grouped_linear_wgrad(dy_RO, x_RI, offsets, sum, write);
  ops::grouped_linear_wgrad_squares(dy_RO, x_RI, offsets, sum, weight.square_sum_1);
  weight.state = GradientSum::kSquared;
}

}  // namespace primus::nn
