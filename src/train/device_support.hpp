#pragma once
// What a device cannot train yet, said before anything is allocated.
#include "config/experiment.hpp"
#include "ops/dtype.hpp"

namespace primus::train {

/// UserError that names the key, if `device` is a GPU and the experiment asks for what only the CPU's ops have.
void require_device_support(const config::Experiment& experiment, at::Device device);

}  // namespace primus::train
