// Streaming kernels with as many 16-byte loads in flight as hide the memory's latency. The update has a block for each
// piece of a tensor (6 % faster than blocks that stay and walk over it), a sum a fixed number of blocks.
#include "ops/adamw/adamw_cuda.hpp"
#include "ops/adamw/master_bits.hpp"
#include "ops/gpu/device.cuh"

namespace primus::ops::cuda {
namespace {

using gpu::blocks_for;
using gpu::Pack;

constexpr int kBlock = 256;
constexpr int kUnroll = 2;  // packs of each tensor that a thread has in flight
// Part of the sum's definition: its bits must not depend on the device.
constexpr int kSumBlocks = 132 * 6;
constexpr int kSumBlock = 256;
constexpr int kSumPacks = 4;

unsigned at_most(unsigned limit, unsigned blocks) {
  return blocks < limit ? blocks : limit;
}

// --- update
// -----------------------------------------------------------------------------------------------------------

struct Four {
  float value[4];

  __device__ static Four load(const float* from) {
    const auto pack = Pack<float>::load(from);
    return {{pack.at(0), pack.at(1), pack.at(2), pack.at(3)}};
  }
  __device__ void store(float* to) const { Pack<float>::from(value).store(to); }
};

/// Where masters are: in fp32 with the weights beside them, or in the weights and their low halves.
template <typename T>
__device__ Four load_masters(const AdamWTensors<T>& a, std::int64_t i) {
  return Four::load(a.master + i);
}
template <typename T>
__device__ void store_masters(const AdamWTensors<T>& a, std::int64_t i, const Four& master) {
  master.store(a.master + i);
  if constexpr (sizeof(T) == 2) {
    *reinterpret_cast<uint2*>(a.weight + i) = make_uint2(gpu::round_pair(master.value[0], master.value[1]),
                                                         gpu::round_pair(master.value[2], master.value[3]));
  }
}
template <typename T>
__device__ float load_master(const AdamWTensors<T>& a, std::int64_t i) {
  return a.master[i];
}
template <typename T>
__device__ void store_master(const AdamWTensors<T>& a, std::int64_t i, float master) {
  a.master[i] = master;
  if (a.weight != nullptr) a.weight[i] = gpu::from_float<T>(master);
}

__device__ float load_master(const AdamWHalves& a, std::int64_t i) {
  return __uint_as_float(master_bits(a.weight[i], a.low[i]));
}
__device__ void store_master(const AdamWHalves& a, std::int64_t i, float master) {
  const std::uint32_t bits = __float_as_uint(master);
  a.weight[i] = weight_bits(bits);
  a.low[i] = static_cast<std::uint16_t>(bits);
}

/// Four halves: 8 bytes.
union FourHalves {
  uint2 bits;
  std::uint16_t half[4];
};

__device__ Four load_masters(const AdamWHalves& a, std::int64_t i) {
  FourHalves weight, low;
  weight.bits = *reinterpret_cast<const uint2*>(a.weight + i);
  low.bits = *reinterpret_cast<const uint2*>(a.low + i);
  Four master;
#pragma unroll
  for (int j = 0; j < 4; ++j) master.value[j] = __uint_as_float(master_bits(weight.half[j], low.half[j]));
  return master;
}
__device__ void store_masters(const AdamWHalves& a, std::int64_t i, const Four& master) {
  FourHalves weight, low;
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const std::uint32_t bits = __float_as_uint(master.value[j]);
    weight.half[j] = weight_bits(bits);
    low.half[j] = static_cast<std::uint16_t>(bits);
  }
  *reinterpret_cast<uint2*>(a.weight + i) = weight.bits;
  *reinterpret_cast<uint2*>(a.low + i) = low.bits;
}

/// kUnroll fours of elements from group `first` on, kBlock fours apart: neighbouring threads take neighbouring packs.
template <typename Tensors>
__device__ void update_groups(const UpdateFactors<float>& c, std::int64_t first, std::int64_t groups,
                              const Tensors& a) {
  Four grad[kUnroll], master[kUnroll], exp_avg[kUnroll], exp_avg_sq[kUnroll];
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const std::int64_t i = (first + u * kBlock) * 4;
    if (first + u * kBlock >= groups) break;
    grad[u] = Four::load(a.main_grad + i);
    master[u] = load_masters(a, i);
    exp_avg[u] = Four::load(a.exp_avg + i);
    exp_avg_sq[u] = Four::load(a.exp_avg_sq + i);
  }
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const std::int64_t i = (first + u * kBlock) * 4;
    if (first + u * kBlock >= groups) break;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      adamw_element(c, grad[u].value[j], master[u].value[j], exp_avg[u].value[j], exp_avg_sq[u].value[j]);
    }
    exp_avg[u].store(a.exp_avg + i);
    exp_avg_sq[u].store(a.exp_avg_sq + i);
    store_masters(a, i, master[u]);
  }
}

/// The first `groups` fours of elements by packs, what is left one by one.
template <typename Tensors>
__global__ void __launch_bounds__(kBlock, 4)
    adamw_kernel(UpdateConstants given, Gate gate, std::int64_t groups, std::int64_t count, Tensors a) {
  __shared__ UpdateFactors<float> shared;
  if (*gate.proceed == 0) return;
  if (threadIdx.x == 0) shared = gate.factors(given);
  __syncthreads();
  const UpdateFactors<float> c = shared;
  constexpr std::int64_t kTile = std::int64_t{kBlock} * kUnroll;
  for (std::int64_t tile = blockIdx.x * kTile; tile < groups; tile += gridDim.x * kTile) {
    update_groups(c, tile + threadIdx.x, groups, a);
  }
  const std::int64_t threads = std::int64_t{gridDim.x} * kBlock;
  for (std::int64_t i = groups * 4 + std::int64_t{blockIdx.x} * kBlock + threadIdx.x; i < count; i += threads) {
    float master = load_master(a, i);
    adamw_element(c, a.main_grad[i], master, a.exp_avg[i], a.exp_avg_sq[i]);
    store_master(a, i, master);
  }
}

template <typename Tensors>
void launch_adamw(const UpdateConstants& constants, const Gate& gate, std::int64_t groups, std::int64_t count,
                  const Tensors& tensors, gpu::Stream stream) {
  const unsigned blocks = blocks_for(count, kBlock * (groups > 0 ? 4 * kUnroll : 1));
  adamw_kernel<Tensors><<<blocks, kBlock, 0, stream>>>(constants, gate, groups, count, tensors);
  PRIMUS_CUDA_CHECK(gpu::last_error());
}

__global__ void close_gate_kernel(const double* loss_sum, const double* square_sum, double clip_grad, Gate gate) {
  const double norm = sqrt(*square_sum);
  const bool proceed = isfinite(*loss_sum) && isfinite(norm);
  const double scale = clip_grad / (norm + 1e-6);
  *gate.grad_scale = clip_grad > 0.0 && scale < 1.0 ? scale : 1.0;
  *gate.num_steps += proceed ? 1 : 0;
  *gate.proceed = proceed ? 1 : 0;
}

// --- reductions
// -------------------------------------------------------------------------------------------------------

/// The block's sum in thread 0, always added in the same order.
__device__ double block_sum(double value) {
  __shared__ double sums[kSumBlock / 32];
  value = gpu::lane_sum<32>(value);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = value;
  __syncthreads();
  double sum = 0.0;
  for (int i = 0; i < kSumBlock / 32; ++i) sum += sums[i];
  return sum;
}

/// In fp64 from the first addition on: fp32 squares overflow at 1.8e19.
__device__ double square(float value) {
  return static_cast<double>(value) * static_cast<double>(value);
}

template <typename T>
__global__ void __launch_bounds__(kSumBlock)
    square_sum_kernel(std::int64_t packs, std::int64_t count, const T* x, double* partial, double* sum) {
  constexpr int kSize = Pack<T>::kSize;
  const std::int64_t thread = std::int64_t{blockIdx.x} * kSumBlock + threadIdx.x;
  const std::int64_t threads = std::int64_t{gridDim.x} * kSumBlock;
  double lane[2] = {0.0, 0.0};
  for (std::int64_t first = thread; first < packs; first += kSumPacks * threads) {
    Pack<T> pack[kSumPacks];
#pragma unroll
    for (int p = 0; p < kSumPacks; ++p) {
      const std::int64_t place = first + p * threads;
      pack[p] = place < packs ? Pack<T>::load(x + place * kSize) : Pack<T>::zero();
    }
#pragma unroll
    for (int p = 0; p < kSumPacks; ++p) {
#pragma unroll
      for (int i = 0; i < kSize; ++i) lane[i % 2] += square(pack[p].at(i));
    }
  }
  for (std::int64_t i = packs * kSize + thread; i < count; i += threads) lane[0] += square(gpu::to_float(x[i]));
  const double total = block_sum(lane[0] + lane[1]);
  if (threadIdx.x != 0) return;
  if (gridDim.x == 1) {
    *sum += total;
  } else {
    partial[blockIdx.x] = total;
  }
}

__global__ void __launch_bounds__(kSumBlock) add_partials_kernel(int parts, const double* partial, double* sum) {
  double value = 0.0;
  for (int part = threadIdx.x; part < parts; part += kSumBlock) value += partial[part];
  const double total = block_sum(value);
  if (threadIdx.x == 0) *sum += total;
}

template <typename T>
__global__ void __launch_bounds__(kBlock) nonfinite_kernel(std::int64_t count, const T* x, std::int32_t* found) {
  const std::int64_t threads = std::int64_t{gridDim.x} * kBlock;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kBlock + threadIdx.x; i < count; i += threads) {
    if (!isfinite(gpu::to_float(x[i]))) *found = 1;
  }
}

/// Fours of elements that can be moved as packs: all whole ones, or none.
template <typename... Pointer>
std::int64_t groups_of(std::int64_t count, const Pointer*... pointer) {
  return (gpu::is_packed(pointer, 0) && ...) ? count / 4 : 0;
}

}  // namespace

template <typename T>
void launch_adamw_step(const UpdateConstants& constants, const Gate& gate, std::int64_t count,
                       const AdamWTensors<T>& tensors, gpu::Stream stream) {
  if (count == 0) return;
  const std::int64_t fours =
      groups_of(count, tensors.main_grad, tensors.master, tensors.exp_avg, tensors.exp_avg_sq, tensors.weight);
  launch_adamw(constants, gate, fours, count, tensors, stream);
}

void launch_adamw_halves_step(const UpdateConstants& constants, const Gate& gate, std::int64_t count,
                              const AdamWHalves& tensors, gpu::Stream stream) {
  if (count == 0) return;
  const std::int64_t fours =
      groups_of(count, tensors.main_grad, tensors.exp_avg, tensors.exp_avg_sq, tensors.weight, tensors.low);
  launch_adamw(constants, gate, fours, count, tensors, stream);
}

void launch_close_gate(const double* loss_sum, const double* square_sum, double clip_grad, const Gate& gate,
                       gpu::Stream stream) {
  close_gate_kernel<<<1, 1, 0, stream>>>(loss_sum, square_sum, clip_grad, gate);
  PRIMUS_CUDA_CHECK(gpu::last_error());
}

int sum_of_squares_parts(std::int64_t count) {
  return static_cast<int>(at_most(kSumBlocks, blocks_for(count, kSumBlock * kSumPacks * 4)));
}

template <typename T>
void launch_add_sum_of_squares(std::int64_t count, const T* x, double* partial, double* sum, gpu::Stream stream) {
  if (count == 0) return;
  const int parts = sum_of_squares_parts(count);
  const std::int64_t packs = gpu::is_packed(x, 0) ? count / Pack<T>::kSize : 0;
  square_sum_kernel<T><<<parts, kSumBlock, 0, stream>>>(packs, count, x, partial, sum);
  if (parts > 1) add_partials_kernel<<<1, kSumBlock, 0, stream>>>(parts, partial, sum);
  PRIMUS_CUDA_CHECK(gpu::last_error());
}

template <typename T>
void launch_has_nonfinite(std::int64_t count, const T* x, std::int32_t* found, gpu::Stream stream) {
  if (count == 0) return;
  nonfinite_kernel<T><<<at_most(kSumBlocks, blocks_for(count, kBlock)), kBlock, 0, stream>>>(count, x, found);
  PRIMUS_CUDA_CHECK(gpu::last_error());
}

#define PRIMUS_INSTANTIATE(T)                                                                                   \
  template void launch_adamw_step<T>(const UpdateConstants&, const Gate&, std::int64_t, const AdamWTensors<T>&, \
                                     gpu::Stream);                                                              \
  template void launch_add_sum_of_squares<T>(std::int64_t, const T*, double*, double*, gpu::Stream);            \
  template void launch_has_nonfinite<T>(std::int64_t, const T*, std::int32_t*, gpu::Stream);
PRIMUS_INSTANTIATE(float)
PRIMUS_INSTANTIATE(gpu::Bf16)

}  // namespace primus::ops::cuda
