#include "ops/gpu/device.cuh"
#include "ops/swiglu/swiglu_cuda.hpp"

namespace primus::ops::cuda {
namespace {

using gpu::blocks_for;
using gpu::Pack;
using gpu::Single;

constexpr int kBlock = 256;
constexpr int kPacksPerBlock = 4096;  // 16 a thread: few threads idle in the last round, whatever the width
constexpr int kRowLanes = 32;         // of backward, which sums over a row

/// What forward and backward both compute; one function, so that backward's activation has forward's bits.
struct Gated {
  float sigmoid, silu, activation;
};

__device__ Gated gated_of(float gate, float up) {
  const float sigmoid = __fdividef(1.0F, 1.0F + __expf(-gate));
  const float silu = gate * sigmoid;
  return {sigmoid, silu, silu * up};
}

__device__ std::int64_t valid_rows(SwigluShape shape) {
  return shape.num_rows != nullptr && *shape.num_rows < shape.rows ? *shape.num_rows : shape.rows;
}

template <typename T, typename P>
__global__ void __launch_bounds__(kBlock) forward_kernel(SwigluShape shape, int rows_per_block, const T* __restrict__ h,
                                                         const float* __restrict__ prob, T* __restrict__ a) {
  const std::int64_t first = std::int64_t{blockIdx.x} * rows_per_block;
  const std::int64_t left = valid_rows(shape) - first;
  const int rows = static_cast<int>(left < rows_per_block ? left : rows_per_block);
  const int packs = shape.width / P::kSize;
  for (int i = threadIdx.x; i < rows * packs; i += kBlock) {
    const std::int64_t row = first + i / packs;
    const int column = i % packs * P::kSize;
    const T* gate_row = h + row * 2 * shape.width;
    const P gate = P::load(gate_row + column);
    const P up = P::load(gate_row + shape.width + column);
    const float scale = prob != nullptr ? prob[row] : 1.0F;
    float value[P::kSize];
#pragma unroll
    for (int j = 0; j < P::kSize; ++j) value[j] = gated_of(gate.at(j), up.at(j)).activation * scale;
    P::from(value).store(a + row * shape.width + column);
  }
}

/// dh may be h: each thread reads its elements before it writes them, and nobody else reads them.
template <typename T, typename P>
__global__ void __launch_bounds__(kBlock) backward_kernel(SwigluShape shape, SwigluBackward<T> t) {
  const std::int64_t row = (std::int64_t{blockIdx.x} * kBlock + threadIdx.x) / kRowLanes;
  if (row >= valid_rows(shape)) return;
  const std::int64_t gate_at = row * 2 * shape.width;
  const float scale = t.prob != nullptr ? t.prob[row] : 1.0F;
  float dprob = 0.0F;
  for (int column = threadIdx.x % kRowLanes * P::kSize; column < shape.width; column += kRowLanes * P::kSize) {
    const P da = P::load(t.da + row * shape.width + column);
    const P gate = P::load(t.h + gate_at + column);
    const P up = P::load(t.h + gate_at + shape.width + column);
    float dgate[P::kSize];
    float dup[P::kSize];
    float activation[P::kSize];
#pragma unroll
    for (int j = 0; j < P::kSize; ++j) {
      const Gated gated = gated_of(gate.at(j), up.at(j));
      dprob += da.at(j) * gated.activation;
      const float scaled = da.at(j) * scale;
      // d silu / d gate = σ · (1 + gate · (1 − σ)) = σ + silu · (1 − σ)
      dgate[j] = scaled * up.at(j) * fmaf(gated.silu, 1.0F - gated.sigmoid, gated.sigmoid);
      dup[j] = scaled * gated.silu;
      activation[j] = gated.activation * scale;
    }
    P::from(dgate).store(t.dh + gate_at + column);
    P::from(dup).store(t.dh + gate_at + shape.width + column);
    P::from(activation).store(t.a + row * shape.width + column);
  }
  dprob = gpu::lane_sum<kRowLanes>(dprob);
  if (t.prob != nullptr && threadIdx.x % kRowLanes == 0) t.dprob[row] = dprob;
}

template <typename T>
std::int64_t row_bytes(SwigluShape shape) {
  return std::int64_t{shape.width} * static_cast<std::int64_t>(sizeof(T));
}

}  // namespace

template <typename T>
void launch_swiglu_forward(SwigluShape shape, const T* h, const float* prob, T* a, gpu::Stream stream) {
  if (shape.rows == 0 || shape.width == 0) return;
  const auto launch = [&](auto pack) {
    using P = decltype(pack);
    const int packs = shape.width / P::kSize;
    const int rows_per_block = packs < kPacksPerBlock ? kPacksPerBlock / packs : 1;
    forward_kernel<T, P>
        <<<blocks_for(shape.rows, rows_per_block), kBlock, 0, stream>>>(shape, rows_per_block, h, prob, a);
  };
  if (gpu::is_packed(h, row_bytes<T>(shape)) && gpu::is_packed(a, 0)) {
    launch(Pack<T>{});
  } else {
    launch(Single<T>{});
  }
  PRIMUS_CUDA_CHECK(gpu::last_error());
}

template <typename T>
void launch_swiglu_backward(SwigluShape shape, const SwigluBackward<T>& tensors, gpu::Stream stream) {
  if (shape.rows == 0) return;
  const unsigned blocks = blocks_for(shape.rows, kBlock / kRowLanes);
  if (gpu::is_packed(tensors.h, row_bytes<T>(shape)) && gpu::is_packed(tensors.da, 0) &&
      gpu::is_packed(tensors.dh, 0) && gpu::is_packed(tensors.a, 0)) {
    backward_kernel<T, Pack<T>><<<blocks, kBlock, 0, stream>>>(shape, tensors);
  } else {
    backward_kernel<T, Single<T>><<<blocks, kBlock, 0, stream>>>(shape, tensors);
  }
  PRIMUS_CUDA_CHECK(gpu::last_error());
}

#define PRIMUS_INSTANTIATE(T)                                                                   \
  template void launch_swiglu_forward<T>(SwigluShape, const T*, const float*, T*, gpu::Stream); \
  template void launch_swiglu_backward<T>(SwigluShape, const SwigluBackward<T>&, gpu::Stream);
PRIMUS_INSTANTIATE(float)
PRIMUS_INSTANTIATE(gpu::Bf16)

}  // namespace primus::ops::cuda
