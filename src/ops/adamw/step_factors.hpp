#pragma once
// What update kernels take from the host and from the gate; no torch headers.
#include "ops/adamw/update_element.hpp"
#include "ops/gpu/runtime.hpp"

namespace primus::ops::cuda {

/// The gate's tensors, on the device.
struct Gate {
  double* rates;
  double* grad_scale;
  std::int64_t* num_steps;
  std::int32_t* proceed;

  /// What this step multiplies by; on the device.
  PRIMUS_HOST_DEVICE UpdateFactors<float> factors(const UpdateConstants& constants) const {
    return update_factors<float>(constants, *grad_scale, rates, *num_steps);
  }
};

}  // namespace primus::ops::cuda
