#pragma once
// What happens to the main gradients between the last backward and the optimizer.
#include <optional>
#include <string>

#include "comm/group.hpp"
#include "nn/parameter.hpp"

namespace primus::engine {

/// Sum every main gradient over the group that its descriptor names.
void reduce_gradients(nn::ParameterStore& parameters, const comm::Groups& groups);

/// square_sum_1 (fp64, on the parameters' device), which has the squares of gradients that are kSquared already, += Σ
/// of squares over all other trained parameters, each global element once. NaN or infinite if any element is.
void global_gradient_square_sum(const nn::ParameterStore& parameters, const comm::Groups& groups,
                                at::Tensor& square_sum_1);

/// Name of the first parameter (in the model's order) whose main gradient holds NaN or infinity.
std::optional<std::string> first_nonfinite_gradient(const nn::ParameterStore& parameters);

/// The same for the weights themselves.
std::optional<std::string> first_nonfinite_weight(const nn::ParameterStore& parameters);

}  // namespace primus::engine
