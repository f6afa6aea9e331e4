#pragma once
// Kernels of adamw on raw pointers; no torch headers. Gradients, masters and moments are fp32; T, the weights' type, is
// float or gpu::Bf16.
#include "ops/adamw/step_factors.hpp"
#include "ops/gpu/types.hpp"

namespace primus::ops::cuda {

template <typename T>
struct AdamWTensors {
  const float* main_grad;
  float* master;
  float* exp_avg;
  float* exp_avg_sq;
  T* weight;  // nullptr: the master is the weight
};

/// The master in two halves (master_bits.hpp), as bits.
struct AdamWHalves {
  const float* main_grad;
  float* exp_avg;
  float* exp_avg_sq;
  std::uint16_t* weight;
  std::uint16_t* low;
};

template <typename T>
void launch_adamw_step(const UpdateConstants& constants, const Gate& gate, std::int64_t count,
                       const AdamWTensors<T>& tensors, gpu::Stream stream);

void launch_adamw_halves_step(const UpdateConstants& constants, const Gate& gate, std::int64_t count,
                              const AdamWHalves& tensors, gpu::Stream stream);

void launch_close_gate(const double* loss_sum, const double* square_sum, double clip_grad, const Gate& gate,
                       gpu::Stream stream);

/// Partial sums (fp64) of launch_add_sum_of_squares: its scratch. None are needed where there is one part.
int sum_of_squares_parts(std::int64_t count);

template <typename T>
void launch_add_sum_of_squares(std::int64_t count, const T* x, double* partial, double* sum, gpu::Stream stream);

/// found <- 1 if any element is NaN or infinite; else it stays.
template <typename T>
void launch_has_nonfinite(std::int64_t count, const T* x, std::int32_t* found, gpu::Stream stream);

}  // namespace primus::ops::cuda
