#include "ops/gpu/device.cuh"
#include "ops/router/noise_cuda.hpp"

namespace primus::ops::cuda {
namespace {

constexpr int kBlock = 256;

struct DeviceMath {
  __host__ __device__ static double sqrt(double x) { return ::sqrt(x); }
  __host__ __device__ static double log(double x) { return ::log(x); }
  __host__ __device__ static double cos(double x) { return ::cos(x); }
  __host__ __device__ static double sin(double x) { return ::sin(x); }
};

template <typename T>
__global__ void __launch_bounds__(kBlock)
    jitter_kernel(NoiseRange range, double epsilon, const T* x, T* y, Write write) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kBlock + threadIdx.x;
  if (i >= range.count) return;
  const double u = range.stream.uniform(range.first + static_cast<std::uint64_t>(i));
  const auto factor = static_cast<float>(1.0 + epsilon * (2.0 * u - 1.0));
  const float before = write == Write::kAccumulate ? gpu::to_float(y[i]) : 0.0F;
  y[i] = gpu::from_float<T>(before + gpu::to_float(x[i]) * factor);
}

template <typename T>
__global__ void __launch_bounds__(kBlock) normal_kernel(NoiseRange range, int width, const T* bias, T* y) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kBlock + threadIdx.x;
  if (i >= range.count) return;
  const auto normal =
      static_cast<float>(range.stream.normal_with<DeviceMath>(range.first + static_cast<std::uint64_t>(i)));
  y[i] = gpu::from_float<T>(normal + (bias != nullptr ? gpu::to_float(bias[i % width]) : 0.0F));
}

}  // namespace

template <typename T>
void launch_token_jitter(const NoiseRange& range, double epsilon, const T* x, T* y, Write write, gpu::Stream stream) {
  if (range.count == 0) return;
  jitter_kernel<T><<<gpu::blocks_for(range.count, kBlock), kBlock, 0, stream>>>(range, epsilon, x, y, write);
  PRIMUS_CUDA_CHECK(gpu::last_error());
}

template <typename T>
void launch_token_normal(const NoiseRange& range, int width, const T* bias, T* y, gpu::Stream stream) {
  if (range.count == 0) return;
  normal_kernel<T><<<gpu::blocks_for(range.count, kBlock), kBlock, 0, stream>>>(range, width, bias, y);
  PRIMUS_CUDA_CHECK(gpu::last_error());
}

#define PRIMUS_INSTANTIATE(T)                                                                               \
  template void launch_token_jitter<T>(const NoiseRange&, double, const T*, T*, Write, gpu::Stream stream); \
  template void launch_token_normal<T>(const NoiseRange&, int, const T*, T*, gpu::Stream stream);
PRIMUS_INSTANTIATE(float)
PRIMUS_INSTANTIATE(gpu::Bf16)

}  // namespace primus::ops::cuda
