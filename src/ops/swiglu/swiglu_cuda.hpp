#pragma once
// Kernels of swiglu on raw pointers; no torch headers. T is float or gpu::Bf16, probabilities are fp32.
#include "ops/gpu/runtime.hpp"
#include "ops/gpu/types.hpp"

namespace primus::ops::cuda {

struct SwigluShape {
  std::int64_t rows;
  int width;                     // F
  const std::int32_t* num_rows;  // on the device; nullptr: all rows
};

/// prob may be nullptr: 1.
template <typename T>
void launch_swiglu_forward(SwigluShape shape, const T* h, const float* prob, T* a, gpu::Stream stream);

template <typename T>
struct SwigluBackward {
  const T* da;
  const T* h;
  const float* prob;  // nullptr: 1, and no dprob
  T* dh;              // may be h
  float* dprob;
  T* a;
};

template <typename T>
void launch_swiglu_backward(SwigluShape shape, const SwigluBackward<T>& tensors, gpu::Stream stream);

}  // namespace primus::ops::cuda
