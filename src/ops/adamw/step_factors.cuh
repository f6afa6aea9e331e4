#pragma once
#include "ops/adamw/step_factors.hpp"

namespace primus::ops::cuda {

/// As update_factors of the host, on the device: the gate's values are not known before.
__device__ inline UpdateFactors<float> factors_of(const AdamWConstants& c, const Gate& gate) {
  const auto step = static_cast<double>(*gate.num_steps);
  return {static_cast<float>(*gate.grad_scale),
          static_cast<float>(c.beta1),
          static_cast<float>(1.0 - c.beta1),
          static_cast<float>(c.beta2),
          static_cast<float>(1.0 - c.beta2),
          static_cast<float>(1.0 / (1.0 - pow(c.beta1, step))),
          static_cast<float>(1.0 / (1.0 - pow(c.beta2, step))),
          c.epsilon,
          c.decays != 0 ? static_cast<float>(gate.rates[1]) : 0.0F,
          static_cast<float>(gate.rates[0])};
}

}  // namespace primus::ops::cuda
