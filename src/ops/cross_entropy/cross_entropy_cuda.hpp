#pragma once
// Kernels of cross_entropy on raw pointers; no torch headers. T is float or gpu::Bf16; losses are fp32.
#include "ops/gpu/runtime.hpp"
#include "ops/gpu/types.hpp"

namespace primus::ops::cuda {

struct LossShape {
  std::int64_t tokens;
  std::int64_t vocabulary;
};

/// loss[t] only. A label outside the vocabulary ends the kernel, here and below.
template <typename T>
void launch_cross_entropy(LossShape shape, const T* logits, const std::int64_t* label, float* loss, gpu::Stream stream);

/// loss[t]; logits[t] <- (softmax − onehot) · grad[t].
template <typename T>
void launch_cross_entropy_backward(LossShape shape, T* logits, const std::int64_t* label, const float* grad,
                                   float* loss, gpu::Stream stream);

}  // namespace primus::ops::cuda
