#pragma once
// What mixes the tokens of a layer: one kind a layer, as ModelSpec::mixer says.
#include "nn/layer.hpp"

namespace primus::nn {

/// The mixer of a layer, with parameters from model::mixer_parameters and saved tensors from model::mixer_saved.
std::unique_ptr<Sublayer> make_mixer(const model::ModelSpec& spec, int layer, ParameterStore& parameters);

}  // namespace primus::nn
