#include "ops/router/noise_cuda.hpp"

#include "ops/cuda_table.hpp"
#include "ops/gpu/tensor.hpp"

namespace primus::ops::cuda {
namespace {

NoiseRange range_of(const TokenNoise& noise, const Tensor& y_TH) {
  return {Philox(noise.seed, noise.stream), static_cast<std::uint64_t>(noise.first_token * y_TH.size(1)), y_TH.numel()};
}

void jitter(const Tensor& x_TH, const TokenNoise& noise, double epsilon, Tensor& y_TH, Write write) {
  gpu::dispatch(y_TH.scalar_type(), "token_jitter", [&](auto tag) {
    using T = typename decltype(tag)::type;
    launch_token_jitter<T>(range_of(noise, y_TH), epsilon, gpu::data<T>(x_TH), gpu::data<T>(y_TH), write,
                           gpu::current_stream());
  });
}

void normal(const TokenNoise& noise, const Tensor& bias_H, Tensor& y_TH) {
  gpu::dispatch(y_TH.scalar_type(), "token_normal", [&](auto tag) {
    using T = typename decltype(tag)::type;
    launch_token_normal<T>(range_of(noise, y_TH), static_cast<int>(y_TH.size(1)), gpu::data<T>(bias_H),
                           gpu::data<T>(y_TH), gpu::current_stream());
  });
}

}  // namespace

void register_router_noise(CudaOps& ops) {
  ops.token_jitter = jitter;
  ops.token_normal = normal;
}

}  // namespace primus::ops::cuda
