// Grouped products in plain tiles: any element type, alignment, stride and device, offsets on the device. What the
// tensor cores' kernels do not take; it is some twenty times slower than they are.
#include "ops/gemm/gemm_grouped.hpp"

#include "ops/gpu/device.cuh"

namespace primus::ops::cuda {
namespace {

using gpu::blocks_for;

constexpr int kTile = 64;    // rows and columns of a block's tile
constexpr int kDepth = 16;   // of the summed dimension at a time
constexpr int kBlock = 256;  // 16 × 16 threads, 4 × 4 values each
constexpr int kSide = 4;
constexpr int kThreadSide = kTile / kSide;
constexpr int kAddingThreads = 1024;

/// Element (i, j) at data[i · row + j · column].
template <typename T>
struct View {
  T* data;
  std::int64_t row, column;
  __device__ T& at(std::int64_t i, std::int64_t j) const { return data[i * row + j * column]; }
};

struct Extents {
  std::int64_t m, n, k;
};

/// The tile of c (+)= a · b that begins at (row, column); all threads of the block call it.
template <typename T, typename C>
__device__ void multiply_tile(Extents size, View<const T> a, View<const T> b, View<C> c, std::int64_t row,
                              std::int64_t column, Write write) {
  __shared__ float a_tile[kDepth][kTile + 1];
  __shared__ float b_tile[kDepth][kTile + 1];
  const int thread_row = static_cast<int>(threadIdx.x) / kThreadSide;
  const int thread_column = static_cast<int>(threadIdx.x) % kThreadSide;
  float sum[kSide][kSide] = {};
  for (std::int64_t k = 0; k < size.k; k += kDepth) {
    for (int i = threadIdx.x; i < kTile * kDepth; i += kBlock) {
      const int depth = i % kDepth;
      const int line = i / kDepth;
      const bool in_depth = k + depth < size.k;
      a_tile[depth][line] = in_depth && row + line < size.m ? gpu::to_float(a.at(row + line, k + depth)) : 0.0F;
      b_tile[depth][line] = in_depth && column + line < size.n ? gpu::to_float(b.at(k + depth, column + line)) : 0.0F;
    }
    __syncthreads();
    for (int depth = 0; depth < kDepth; ++depth) {
      for (int i = 0; i < kSide; ++i) {
        for (int j = 0; j < kSide; ++j) {
          sum[i][j] += a_tile[depth][thread_row + i * kThreadSide] * b_tile[depth][thread_column + j * kThreadSide];
        }
      }
    }
    __syncthreads();
  }
  for (int i = 0; i < kSide; ++i) {
    for (int j = 0; j < kSide; ++j) {
      const std::int64_t m = row + thread_row + i * kThreadSide;
      const std::int64_t n = column + thread_column + j * kThreadSide;
      if (m >= size.m || n >= size.n) continue;
      C& target = c.at(m, n);
      target = gpu::from_float<C>(write == Write::kAccumulate ? gpu::to_float(target) + sum[i][j] : sum[i][j]);
    }
  }
}

/// result rows = left rows · op(right[e]); blocks beyond the last tile of the last group have nothing to do.
template <GroupedProduct kProduct, typename T>
__global__ void __launch_bounds__(kBlock) by_rows_kernel(GroupedShape shape, GroupedLinear<T> x) {
  std::int64_t tile = blockIdx.x;
  int e = 0;
  std::int64_t rows = 0;
  for (; e < shape.experts; ++e) {
    rows = shape.offsets[e + 1] - shape.offsets[e];
    const std::int64_t tiles = (rows + kTile - 1) / kTile;
    if (tile < tiles) break;
    tile -= tiles;
  }
  if (e == shape.experts) return;
  constexpr bool kIsForward = kProduct == GroupedProduct::kForward;
  const std::int64_t begin = shape.offsets[e];
  const Extents size{rows, kIsForward ? shape.outputs : shape.inputs, kIsForward ? shape.inputs : shape.outputs};
  const T* weight = x.right + static_cast<std::int64_t>(shape.outputs) * shape.inputs * e;
  const View<const T> right =
      kIsForward ? View<const T>{weight, 1, x.right_stride} : View<const T>{weight, x.right_stride, 1};
  multiply_tile<T, T>(size, {x.left + begin * x.left_stride, x.left_stride, 1}, right,
                      {x.result + begin * x.result_stride, x.result_stride, 1}, tile * kTile,
                      std::int64_t{blockIdx.y} * kTile, Write::kOverwrite);
}

template <typename T>
__global__ void __launch_bounds__(kBlock) wgrad_kernel(GroupedShape shape, GroupedWgrad<T> x, Write write) {
  const int e = static_cast<int>(blockIdx.z);
  const std::int64_t begin = shape.offsets[e];
  const std::int64_t rows = shape.offsets[e + 1] - begin;
  if (rows == 0) return;
  float* gradient = x.result + static_cast<std::int64_t>(shape.outputs) * shape.inputs * e;
  multiply_tile<T, float>({shape.outputs, shape.inputs, rows}, {x.left + begin * x.left_stride, 1, x.left_stride},
                          {x.right + begin * x.right_stride, x.right_stride, 1}, {gradient, x.result_stride, 1},
                          std::int64_t{blockIdx.x} * kTile, std::int64_t{blockIdx.y} * kTile, write);
}

__global__ void __launch_bounds__(kBlock) zero_empty_kernel(GroupedShape shape, float* main_grad) {
  const int e = static_cast<int>(blockIdx.y);
  if (shape.offsets[e + 1] != shape.offsets[e]) return;
  const std::int64_t count = static_cast<std::int64_t>(shape.outputs) * shape.inputs;
  const std::int64_t threads = std::int64_t{gridDim.x} * kBlock;
  float* gradient = main_grad + count * e;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kBlock + threadIdx.x; i < count; i += threads) gradient[i] = 0.0F;
}

/// One block, its threads' sums added in a fixed order.
__global__ void __launch_bounds__(kAddingThreads)
    add_parts_kernel(std::int64_t count, const double* parts, double* sum) {
  __shared__ double sums[kAddingThreads / 32];
  double lane[4] = {0.0, 0.0, 0.0, 0.0};
  for (std::int64_t i = threadIdx.x; i < count; i += 4 * kAddingThreads) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (i + j * kAddingThreads < count) lane[j] += parts[i + j * kAddingThreads];
    }
  }
  const double own = gpu::lane_sum<32>((lane[0] + lane[1]) + (lane[2] + lane[3]));
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = own;
  __syncthreads();
  if (threadIdx.x != 0) return;
  double total = 0.0;
  for (const double value : sums) total += value;
  *sum += total;
}

template <GroupedProduct kProduct, typename T>
void launch_by_rows(const GroupedShape& shape, const GroupedLinear<T>& x, gpu::Stream stream) {
  const int columns = kProduct == GroupedProduct::kForward ? shape.outputs : shape.inputs;
  if (shape.rows == 0 || columns == 0 || shape.experts == 0) return;
  // Each group rounds its last tile up.
  const dim3 grid(blocks_for(shape.rows, kTile) + static_cast<unsigned>(shape.experts), blocks_for(columns, kTile));
  by_rows_kernel<kProduct, T><<<grid, kBlock, 0, stream>>>(shape, x);
  PRIMUS_CUDA_CHECK(gpu::last_error());
}

}  // namespace

template <typename T>
void launch_grouped_forward(const GroupedShape& shape, const GroupedLinear<T>& x, gpu::Stream stream) {
  launch_by_rows<GroupedProduct::kForward, T>(shape, x, stream);
}

template <typename T>
void launch_grouped_dgrad(const GroupedShape& shape, const GroupedLinear<T>& x, gpu::Stream stream) {
  launch_by_rows<GroupedProduct::kDgrad, T>(shape, x, stream);
}

template <typename T>
void launch_grouped_wgrad(const GroupedShape& shape, const GroupedWgrad<T>& x, Write write, gpu::Stream stream) {
  if (shape.rows == 0 || shape.outputs == 0 || shape.inputs == 0 || shape.experts == 0) return;
  const dim3 grid(blocks_for(shape.outputs, kTile), blocks_for(shape.inputs, kTile),
                  static_cast<unsigned>(shape.experts));
  wgrad_kernel<T><<<grid, kBlock, 0, stream>>>(shape, x, write);
  PRIMUS_CUDA_CHECK(gpu::last_error());
}

void launch_add_parts(std::int64_t count, const double* parts, double* sum, gpu::Stream stream) {
  if (count == 0) return;
  add_parts_kernel<<<1, kAddingThreads, 0, stream>>>(count, parts, sum);
  PRIMUS_CUDA_CHECK(gpu::last_error());
}

void launch_zero_empty_groups(const GroupedShape& shape, float* main_grad, gpu::Stream stream) {
  constexpr unsigned kBlocksEach = 16;
  zero_empty_kernel<<<dim3(kBlocksEach, static_cast<unsigned>(shape.experts)), kBlock, 0, stream>>>(shape, main_grad);
  PRIMUS_CUDA_CHECK(gpu::last_error());
}

template void launch_grouped_forward<float>(const GroupedShape&, const GroupedLinear<float>&, gpu::Stream);
template void launch_grouped_forward<gpu::Bf16>(const GroupedShape&, const GroupedLinear<gpu::Bf16>&, gpu::Stream);
template void launch_grouped_dgrad<float>(const GroupedShape&, const GroupedLinear<float>&, gpu::Stream);
template void launch_grouped_dgrad<gpu::Bf16>(const GroupedShape&, const GroupedLinear<gpu::Bf16>&, gpu::Stream);
template void launch_grouped_wgrad<float>(const GroupedShape&, const GroupedWgrad<float>&, Write, gpu::Stream);
template void launch_grouped_wgrad<gpu::Bf16>(const GroupedShape&, const GroupedWgrad<gpu::Bf16>&, Write, gpu::Stream);

}  // namespace primus::ops::cuda
