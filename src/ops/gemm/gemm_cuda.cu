#include "ops/gemm/gemm_cuda.hpp"

#include "ops/gpu/device.cuh"

namespace primus::ops::cuda {
namespace {

using gpu::Bf16;
using gpu::blocks_for;

constexpr int kBlock = 256;
constexpr int kPerThread = 4;

template <typename T>
__global__ void __launch_bounds__(kBlock)
    split_kernel(MatrixShape shape, const T* __restrict__ x, std::int64_t x_stride, PartBlocks blocks, Bf16* to) {
  const std::int64_t first = std::int64_t{blockIdx.x} * kBlock * kPerThread + threadIdx.x;
  for (int i = 0; i < kPerThread; ++i) {
    const std::int64_t index = first + i * kBlock;
    if (index >= shape.rows * shape.columns) return;
    const std::int64_t row = index / shape.columns;
    const std::int64_t column = index % shape.columns;
    float rest = gpu::to_float(x[row * x_stride + column]);
    Bf16 part[kBf16Parts];
    for (Bf16& p : part) {
      p = gpu::from_float<Bf16>(rest);
      const float rounded = gpu::to_float(p);
      // Infinity minus itself would turn the products into NaN.
      rest = (gpu::as_bits(rounded) & 0x7F800000U) == 0x7F800000U ? 0.0F : rest - rounded;
    }
    Bf16* target = to + row * blocks.row_stride + column;
    for (int b = 0; b < blocks.count; ++b) {
      const int wanted = blocks.part[b];
      target[b * blocks.block] = wanted == 0 ? part[0] : wanted == 1 ? part[1] : part[2];
    }
  }
}

__global__ void __launch_bounds__(kBlock)
    sum_parts_kernel(MatrixShape shape, const float* __restrict__ x, std::int64_t x_block, std::int64_t x_stride,
                     Write write, float* __restrict__ y, std::int64_t y_stride) {
  const std::int64_t first = std::int64_t{blockIdx.x} * kBlock * kPerThread + threadIdx.x;
  for (int i = 0; i < kPerThread; ++i) {
    const std::int64_t index = first + i * kBlock;
    if (index >= shape.rows * shape.columns) return;
    const std::int64_t row = index / shape.columns;
    const std::int64_t column = index % shape.columns;
    const float* from = x + row * x_stride + column;
    float sum = 0.0F;
    for (int p = kBf16Parts - 1; p >= 0; --p) sum += from[p * x_block];
    float* target = y + row * y_stride + column;
    *target = write == Write::kAccumulate ? *target + sum : sum;
  }
}

}  // namespace

template <typename T>
void launch_split(MatrixShape shape, const T* x, std::int64_t x_stride, const PartBlocks& blocks, Bf16* to,
                  gpu::Stream stream) {
  const std::int64_t elements = shape.rows * shape.columns;
  if (elements == 0) return;
  split_kernel<T><<<blocks_for(elements, kBlock * kPerThread), kBlock, 0, stream>>>(shape, x, x_stride, blocks, to);
  PRIMUS_CUDA_CHECK(gpu::last_error());
}
template void launch_split<float>(MatrixShape, const float*, std::int64_t, const PartBlocks&, Bf16*, gpu::Stream);
template void launch_split<Bf16>(MatrixShape, const Bf16*, std::int64_t, const PartBlocks&, Bf16*, gpu::Stream);

void launch_sum_parts(MatrixShape shape, const float* x, std::int64_t x_block, std::int64_t x_stride, Write write,
                      float* y, std::int64_t y_stride, gpu::Stream stream) {
  const std::int64_t elements = shape.rows * shape.columns;
  if (elements == 0) return;
  sum_parts_kernel<<<blocks_for(elements, kBlock * kPerThread), kBlock, 0, stream>>>(shape, x, x_block, x_stride, write,
                                                                                     y, y_stride);
  PRIMUS_CUDA_CHECK(gpu::last_error());
}

}  // namespace primus::ops::cuda
