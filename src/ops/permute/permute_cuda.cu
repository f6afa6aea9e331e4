#include "ops/gpu/device.cuh"
#include "ops/permute/permute_cuda.hpp"

namespace primus::ops::cuda {
namespace {

using gpu::blocks_for;
using gpu::kWaveLanes;
using gpu::LaneMask;
using gpu::Pack;
using gpu::Single;

// --- plan: a counting sort in three kernels, stable, the same result in every run ------------------------------------

constexpr int kPlanBlock = 256;
constexpr int kChoicesPerBlock = 1024;
constexpr int kWaves = kPlanBlock / kWaveLanes;
constexpr int kChoicesPerWave = kChoicesPerBlock / kWaves;
constexpr int kScanBlock = 1024;

/// The expert of a choice. One that does not exist ends the kernel: its row would lie outside every buffer.
__device__ int checked_expert(const std::int32_t* index, int i, int experts) {
  const int expert = index[i];
  if (expert < 0 || expert >= experts) gpu::trap();
  return expert;
}

/// count_EB[e, b]: choices of expert e in block b.
__global__ void __launch_bounds__(kPlanBlock)
    count_kernel(PlanShape shape, const std::int32_t* index, std::int32_t* count_EB) {
  extern __shared__ int count_E[];
  for (int e = threadIdx.x; e < shape.experts; e += kPlanBlock) count_E[e] = 0;
  __syncthreads();
  const int first = static_cast<int>(blockIdx.x) * kChoicesPerBlock;
  const int last = min(shape.slots, first + kChoicesPerBlock);
  for (int i = first + static_cast<int>(threadIdx.x); i < last; i += kPlanBlock) {
    atomicAdd(&count_E[checked_expert(index, i, shape.experts)], 1);
  }
  __syncthreads();
  for (int e = threadIdx.x; e < shape.experts; e += kPlanBlock) {
    count_EB[std::int64_t{e} * gridDim.x + blockIdx.x] = count_E[e];
  }
}

/// Sum of the values of all threads before this one, and of all of them.
__device__ int block_prefix(int value, int& total) {
  __shared__ int sums[kScanBlock / 32];
  const int inclusive = gpu::lane_prefix_sum(value);
  __syncthreads();  // the last call's sums have been read
  if (threadIdx.x % 32 == 31) sums[threadIdx.x / 32] = inclusive;
  __syncthreads();
  int before = 0;
  total = 0;
  for (int i = 0; i < kScanBlock / 32; ++i) {
    if (i == static_cast<int>(threadIdx.x) / 32) before = total;
    total += sums[i];
  }
  return before + inclusive - value;
}

/// Exclusive prefix sums over the whole of count_EB, in place: the first row of each expert's choices of each block.
__global__ void __launch_bounds__(kScanBlock)
    scan_kernel(PlanShape shape, int blocks, std::int32_t* count_EB, std::int32_t* offsets) {
  constexpr int kValues = 4;  // a thread, so that few barriers are needed
  const int count = shape.experts * blocks;
  int base = 0;
  for (int first = 0; first < count; first += kScanBlock * kValues) {
    const int begin = first + static_cast<int>(threadIdx.x) * kValues;
    int value[kValues];
    int sum = 0;
    for (int v = 0; v < kValues; ++v) {
      value[v] = begin + v < count ? count_EB[begin + v] : 0;
      sum += value[v];
    }
    int total;
    int row = base + block_prefix(sum, total);
    for (int v = 0; v < kValues; ++v) {
      const int i = begin + v;
      if (i < count) {
        count_EB[i] = row;
        if (i % blocks == 0) offsets[i / blocks] = row;
      }
      row += value[v];
    }
    base += total;
  }
  if (threadIdx.x == 0) offsets[shape.experts] = base;
}

/// Lanes of the wavefront with the same expert as this one (lanes without a choice have none).
__device__ LaneMask lanes_of_expert(int expert, int experts, int is_choice) {
  LaneMask same = gpu::vote(is_choice);
  for (int bit = 0; (1 << bit) < experts; ++bit) {
    const int is_set = (expert >> bit) & 1;
    const LaneMask set = gpu::vote(is_set);
    same &= is_set != 0 ? set : ~set;
  }
  return same;
}

/// Each wavefront places its choices in order, from the first row that scan_kernel left for the block.
__global__ void __launch_bounds__(kPlanBlock)
    place_kernel(PlanShape shape, const std::int32_t* index, const std::int32_t* row_EB, std::int32_t* row_of,
                 std::int32_t* slot_of) {
  extern __shared__ int next_WE[];  // the next row of each expert, by wavefront
  for (int i = threadIdx.x; i < kWaves * shape.experts; i += kPlanBlock) next_WE[i] = 0;
  __syncthreads();
  const int wave = threadIdx.x / kWaveLanes;
  const int lane = threadIdx.x % kWaveLanes;
  int* next = next_WE + wave * shape.experts;
  const int first = static_cast<int>(blockIdx.x) * kChoicesPerBlock + wave * kChoicesPerWave;
  const int last = min(shape.slots, first + kChoicesPerWave);
  for (int i = first + lane; i < last; i += kWaveLanes) atomicAdd(&next[index[i]], 1);
  __syncthreads();
  for (int e = threadIdx.x; e < shape.experts; e += kPlanBlock) {
    int row = row_EB[std::int64_t{e} * gridDim.x + blockIdx.x];
    for (int w = 0; w < kWaves; ++w) {
      const int count = next_WE[w * shape.experts + e];
      next_WE[w * shape.experts + e] = row;
      row += count;
    }
  }
  __syncthreads();
  for (int round = first; round < last; round += kWaveLanes) {
    const int i = round + lane;
    const int is_choice = i < last ? 1 : 0;
    const int expert = is_choice != 0 ? index[i] : 0;
    const LaneMask same = lanes_of_expert(expert, shape.experts, is_choice);
    const LaneMask before = same & gpu::lanes_below(lane);
    const int row = next[expert] + gpu::count_bits(before);
    gpu::wave_sync();
    if (is_choice != 0) {
      row_of[i] = row;
      slot_of[row] = i;
      // The last of them leaves the row after its own.
      if ((same & ~before) == (LaneMask{1} << lane)) next[expert] = row + 1;
    }
    gpu::wave_sync();
  }
}

// --- rows
// --------------------------------------------------------------------------------------------------------------

constexpr int kBlock = 256;
constexpr int kTokenLanes = 32;
constexpr int kTokensPerBlock = kBlock / kTokenLanes;

/// Each token is read once and written top_k times: (1 + K) · T rows of traffic, where reading by row takes 2 · K · T.
template <typename T, typename P>
__global__ void __launch_bounds__(kBlock) scatter_kernel(PermuteShape shape, const T* __restrict__ x,
                                                         const std::int32_t* __restrict__ row_of, T* __restrict__ x_R) {
  constexpr int kUnroll = 4;
  constexpr int kStep = kTokenLanes * P::kSize;
  const std::int64_t token = std::int64_t{blockIdx.x} * kTokensPerBlock + threadIdx.x / kTokenLanes;
  if (token >= shape.tokens) return;
  const T* from = x + token * shape.width;
  const std::int32_t* rows = row_of + token * shape.top_k;
  for (int begin = static_cast<int>(threadIdx.x) % kTokenLanes * P::kSize; begin < shape.width;
       begin += kUnroll * kStep) {
    P pack[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (begin + u * kStep < shape.width) pack[u] = P::load(from + begin + u * kStep);
    }
    for (int k = 0; k < shape.top_k; ++k) {
      T* to = x_R + std::int64_t{rows[k]} * shape.width;
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        if (begin + u * kStep < shape.width) pack[u].store(to + begin + u * kStep);
      }
    }
  }
}

template <typename T, typename P>
__global__ void __launch_bounds__(kBlock)
    gather_sum_kernel(PermuteShape shape, const T* __restrict__ y_R, const std::int32_t* __restrict__ row_of,
                      Write write, T* __restrict__ y) {
  const std::int64_t token = std::int64_t{blockIdx.x} * kTokensPerBlock + threadIdx.x / kTokenLanes;
  if (token >= shape.tokens) return;
  const std::int32_t* rows = row_of + token * shape.top_k;
  T* to = y + token * shape.width;
  for (int column = static_cast<int>(threadIdx.x) % kTokenLanes * P::kSize; column < shape.width;
       column += kTokenLanes * P::kSize) {
    float sum[P::kSize] = {};
#pragma unroll 4
    for (int k = 0; k < shape.top_k; ++k) {
      const P pack = P::load(y_R + std::int64_t{rows[k]} * shape.width + column);
#pragma unroll
      for (int j = 0; j < P::kSize; ++j) sum[j] += pack.at(j);
    }
    if (write == Write::kAccumulate) {
      const P before = P::load(to + column);
#pragma unroll
      for (int j = 0; j < P::kSize; ++j) sum[j] += before.at(j);
    }
    P::from(sum).store(to + column);
  }
}

__global__ void __launch_bounds__(kBlock)
    gather_values_kernel(std::int64_t count, const float* __restrict__ values,
                         const std::int32_t* __restrict__ position, float* __restrict__ out) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kBlock + threadIdx.x;
  if (i < count) out[i] = values[position[i]];
}

int plan_blocks(PlanShape shape) {
  return static_cast<int>(blocks_for(shape.slots, kChoicesPerBlock));
}

template <typename T>
bool is_packed(PermuteShape shape, const T* rows, const T* tokens) {
  const auto bytes = static_cast<std::int64_t>(sizeof(T)) * shape.width;
  return gpu::is_packed(rows, bytes) && gpu::is_packed(tokens, bytes);
}

}  // namespace

std::int64_t permute_plan_scratch(PlanShape shape) {
  return std::int64_t{shape.experts} * plan_blocks(shape);
}

void launch_permute_plan(PlanShape shape, const std::int32_t* index, std::int32_t* scratch, std::int32_t* offsets,
                         std::int32_t* row_of, std::int32_t* slot_of, gpu::Stream stream) {
  if (shape.slots == 0) {
    PRIMUS_CUDA_CHECK(gpu::fill_bytes(offsets, 0, sizeof(std::int32_t) * (shape.experts + 1), stream));
    return;
  }
  const int blocks = plan_blocks(shape);
  const std::size_t counters = sizeof(int) * shape.experts;
  count_kernel<<<blocks, kPlanBlock, counters, stream>>>(shape, index, scratch);
  scan_kernel<<<1, kScanBlock, 0, stream>>>(shape, blocks, scratch, offsets);
  place_kernel<<<blocks, kPlanBlock, kWaves * counters, stream>>>(shape, index, scratch, row_of, slot_of);
  PRIMUS_CUDA_CHECK(gpu::last_error());
}

template <typename T>
void launch_permute_rows(PermuteShape shape, const T* x, const std::int32_t* row_of, T* x_R, gpu::Stream stream) {
  if (shape.tokens == 0) return;
  const unsigned blocks = blocks_for(shape.tokens, kTokensPerBlock);
  if (is_packed(shape, x_R, x)) {
    scatter_kernel<T, Pack<T>><<<blocks, kBlock, 0, stream>>>(shape, x, row_of, x_R);
  } else {
    scatter_kernel<T, Single<T>><<<blocks, kBlock, 0, stream>>>(shape, x, row_of, x_R);
  }
  PRIMUS_CUDA_CHECK(gpu::last_error());
}

template <typename T>
void launch_unpermute_sum(PermuteShape shape, const T* y_R, const std::int32_t* row_of, Write write, T* y,
                          gpu::Stream stream) {
  if (shape.tokens == 0) return;
  const unsigned blocks = blocks_for(shape.tokens, kTokensPerBlock);
  if (is_packed<T>(shape, y_R, y)) {
    gather_sum_kernel<T, Pack<T>><<<blocks, kBlock, 0, stream>>>(shape, y_R, row_of, write, y);
  } else {
    gather_sum_kernel<T, Single<T>><<<blocks, kBlock, 0, stream>>>(shape, y_R, row_of, write, y);
  }
  PRIMUS_CUDA_CHECK(gpu::last_error());
}

void launch_gather_values(std::int64_t count, const float* values, const std::int32_t* position, float* out,
                          gpu::Stream stream) {
  if (count == 0) return;
  gather_values_kernel<<<blocks_for(count, kBlock), kBlock, 0, stream>>>(count, values, position, out);
  PRIMUS_CUDA_CHECK(gpu::last_error());
}

#define PRIMUS_INSTANTIATE(T)                                                                         \
  template void launch_permute_rows<T>(PermuteShape, const T*, const std::int32_t*, T*, gpu::Stream); \
  template void launch_unpermute_sum<T>(PermuteShape, const T*, const std::int32_t*, Write, T*, gpu::Stream);
PRIMUS_INSTANTIATE(float)
PRIMUS_INSTANTIATE(gpu::Bf16)

}  // namespace primus::ops::cuda
