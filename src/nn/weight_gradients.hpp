#pragma once
// Weight gradients of products, added to a parameter's main gradient; the first one of a step overwrites it.
#include "nn/parameter.hpp"

namespace primus::nn {

/// The gradient of `weight` += dy_TOᵀ · x_TI.
void add_linear_gradient(const Tensor& dy_TO, const Tensor& x_TI, Parameter& weight);

/// The gradient of `weight` [E, O, I] += dy_ROᵀ · x_RI, by the groups that `offsets` borders.
void add_grouped_gradient(const Tensor& dy_RO, const Tensor& x_RI, const Tensor& offsets, Parameter& weight);

}  // namespace primus::nn
