#pragma once
// Weights that a run starts from, instead of random ones.
#include <string>

#include "checkpoint/weights.hpp"
#include "config/experiment.hpp"
#include "nn/parameter.hpp"

namespace primus::train {

/// Fill a tensor with weight number `index`, converted to its type. Throws UserError where bytes are damaged.
void copy_into(const checkpoint::Weights& weights, std::size_t index, at::Tensor& target);

/// Fill every parameter of the store, converted to its type; the weights must hold all of them. Throws UserError where
/// bytes are damaged.
void fill_by_name(const checkpoint::Weights& weights, nn::ParameterStore& parameters);

/// The same. Throws ConfigError that names all parameters which are missing, extra or of another shape.
void fill(const checkpoint::Weights& weights, const std::string& folder, nn::ParameterStore& parameters);

/// From a checkpoint of ours or a Hugging Face folder; with moe_use_upcycling, the experts are made of its dense MLPs.
/// Returns what was done, for the log. Throws ConfigError, and DamagedError for a damaged checkpoint.
std::string load_weights(const std::string& folder, const config::Experiment& experiment, const model::ModelSpec& spec,
                         nn::ParameterStore& parameters);

}  // namespace primus::train
