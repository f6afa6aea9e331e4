#pragma once
// Directions of the optimizers that move matrices as matrices.
#include "model/optimizer_spec.hpp"
#include "ops/dtype.hpp"

namespace primus::engine {

/// The update of a matrix, or of a stack of them, from its momentum: orthogonal, scaled to its size.
at::Tensor muon_direction(const model::MuonSpec& muon, const model::ParameterDescriptor& parameter,
                          const at::Tensor& momentum);

/// Muon's direction over the root of the moving average of its squares, which is moved.
at::Tensor adaptive_muon_direction(const model::MuonSpec& muon, const at::Tensor& direction, at::Tensor& second_moment);

}  // namespace primus::engine
