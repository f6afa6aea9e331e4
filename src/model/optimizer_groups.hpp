#pragma once
// What tells the groups of an optimizer's parameters apart, beside OptimizerSpec's rule, decay and factors.
#include <string_view>

#include "model/optimizer_spec.hpp"

namespace primus::model {

/// As the key `optimizer` spells it.
std::string_view optimizer_name(OptimizerKind kind);

/// Of the embedding or the output layer: those have a learning rate of their own where decoupled_lr says so, and are
/// not moved as matrices.
bool is_at_the_ends(const ParameterDescriptor& parameter);

}  // namespace primus::model
