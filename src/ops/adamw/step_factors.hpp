#pragma once
// What update kernels take from the host and from the gate; no torch headers.
#include "ops/adamw/update_element.hpp"
#include "ops/gpu/runtime.hpp"

namespace primus::ops::cuda {

struct AdamWConstants {
  double beta1, beta2;
  float epsilon;
  int decays;  // 0: the weight decay does not apply
};

/// The gate's tensors, on the device.
struct Gate {
  double* rates;
  double* grad_scale;
  std::int64_t* num_steps;
  std::int32_t* proceed;
};

}  // namespace primus::ops::cuda
