#pragma once
// Weights that a run starts from, instead of random ones.
#include <string>

#include "checkpoint/weights.hpp"
#include "config/experiment.hpp"
#include "nn/parameter.hpp"

namespace primus::train {

/// Fill every parameter of the store, converted to its type; the weights must hold all of them. Throws UserError where
/// bytes are damaged.
void fill_by_name(const checkpoint::Weights& weights, nn::ParameterStore& parameters);

/// The same. Throws ConfigError that names all parameters which are missing, extra or of another shape.
void fill(const checkpoint::Weights& weights, const std::string& folder, nn::ParameterStore& parameters);

/// `load`, `pretrained_checkpoint` and `moe_use_upcycling` as Megatron means them. A checkpoint of weights alone is
/// loaded only where the experiment does not ask for the optimizer's state: finetune, or no_load_optim.
/// Returns what was done, for the log; empty if the experiment names no checkpoint. Throws ConfigError and UserError.
std::string load_initial_weights(const config::Experiment& experiment, const model::ModelSpec& spec,
                                 nn::ParameterStore& parameters);

}  // namespace primus::train
