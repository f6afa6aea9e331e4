#pragma once
// The gate of an update as kernels take it. For *_cuda.cpp files.
#include "ops/adamw/adamw_arithmetic.hpp"
#include "ops/adamw/step_factors.hpp"
#include "ops/gpu/tensor.hpp"

namespace primus::ops::cuda {

inline Gate gate_of(const UpdateGate& gate) {
  return {gpu::data<double>(gate.rates_2), gpu::data<double>(gate.grad_scale_1),
          gpu::data<std::int64_t>(gate.num_steps_1), gpu::data<std::int32_t>(gate.proceed_1)};
}

}  // namespace primus::ops::cuda
