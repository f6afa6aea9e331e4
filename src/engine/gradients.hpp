#pragma once
// What happens to the main gradients between the last backward and the optimizer.
#include <optional>
#include <string>

#include "comm/group.hpp"
#include "nn/parameter.hpp"

namespace primus::engine {

/// Sum every main gradient over the group that its descriptor names.
void reduce_gradients(nn::ParameterStore& parameters, const comm::Groups& groups);

/// 2-norm over all trained parameters, each global element once. NaN or infinite if any element is.
double global_gradient_norm(const nn::ParameterStore& parameters, const comm::Groups& groups);

/// Name of the first parameter (in the model's order) whose main gradient holds NaN or infinity.
std::optional<std::string> first_nonfinite_gradient(const nn::ParameterStore& parameters);

/// The same for the weights themselves.
std::optional<std::string> first_nonfinite_weight(const nn::ParameterStore& parameters);

/// Megatron's clipping coefficient: min(1, clip / (norm + 1e-6)); 1 when clip is 0.
double clip_coefficient(double norm, double clip_grad);

}  // namespace primus::engine
