#pragma once
// Kernels of rms_norm on raw pointers; no torch headers. T is float or gpu::Bf16; statistics and gradients are fp32.
#include "ops/gpu/runtime.hpp"
#include "ops/gpu/types.hpp"
#include "ops/write.hpp"

namespace primus::ops::cuda {

/// Rows of T with a stride, in elements.
template <typename T>
struct Rows {
  T* data;
  std::int64_t stride;
};

struct NormShape {
  std::int64_t rows;
  int width;
};

enum class Rstd { kCompute, kGiven };

/// y = x · rstd · weight; rstd is computed (and stored) or read.
template <typename T>
void launch_rms_norm(NormShape shape, Rows<const T> x, const T* weight, float epsilon, Rstd mode, float* rstd,
                     Rows<T> y, gpu::Stream stream);

/// Partial sums of the weight's gradient, fp32 [parts, width]: scratch of launch_rms_norm_backward.
int rms_norm_gradient_parts(NormShape shape);

template <typename T>
struct NormBackward {
  Rows<const T> dy, x;
  const T* weight;
  const float* rstd;
  Rows<T> dx;
  Write write;  // of dx
  float* partial;
  float* main_grad;  // added to
};

template <typename T>
void launch_rms_norm_backward(NormShape shape, const NormBackward<T>& tensors, gpu::Stream stream);

}  // namespace primus::ops::cuda
