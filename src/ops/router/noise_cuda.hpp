#pragma once
// Kernels of the router's random numbers on raw pointers; no torch headers. T is float or gpu::Bf16.
#include "base/philox.hpp"
#include "ops/gpu/runtime.hpp"
#include "ops/gpu/types.hpp"
#include "ops/write.hpp"

namespace primus::ops::cuda {

/// Element i of `count` takes the stream's number `first` + i.
struct NoiseRange {
  Philox stream;
  std::uint64_t first;
  std::int64_t count;
};

template <typename T>
void launch_token_jitter(const NoiseRange& range, double epsilon, const T* x, T* y, Write write, gpu::Stream stream);

/// bias may be nullptr; else element i adds bias[i mod width].
template <typename T>
void launch_token_normal(const NoiseRange& range, int width, const T* bias, T* y, gpu::Stream stream);

}  // namespace primus::ops::cuda
