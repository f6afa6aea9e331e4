// Fast path: kThreads threads keep one row in registers as packs of 16 bytes, so x is read once. Any other width,
// stride or alignment takes the plain path, which reads twice.
#include "ops/gpu/device.cuh"
#include "ops/rms_norm/rms_norm_cuda.hpp"

namespace primus::ops::cuda {
namespace {

using gpu::blocks_for;
using gpu::Pack;

constexpr int kPlainThreads = 256;
// Rows are dealt to a fixed number of blocks, so that the weight gradient's bits do not depend on the device: three
// blocks on each of an H200's 132 multiprocessors.
constexpr int kMaxParts = 396;

/// Threads a row, packs a thread, threads a block.
template <int kThreadsArg, int kPacksArg, int kBlockArg>
struct Layout {
  static constexpr int kThreads = kThreadsArg;
  static constexpr int kPacks = kPacksArg;
  static constexpr int kBlock = kBlockArg;
  static constexpr int kRowsPerBlock = kBlock / kThreads;
  template <typename T>
  static constexpr bool holds(int width) {
    return width <= kThreads * kPacks * Pack<T>::kSize;
  }
};

template <typename T>
bool is_packed(Rows<T> rows, int width) {
  constexpr auto kBytes = static_cast<std::int64_t>(sizeof(T));
  return gpu::is_packed(rows.data, kBytes * rows.stride) && gpu::is_packed(rows.data, kBytes * width);
}

/// Calls body(Layout) with the first of the layouts that holds a row, or gives false.
template <typename T, typename First, typename... Rest, typename Body>
bool with_layout(int width, const Body& body) {
  if (First::template holds<T>(width)) {
    body(First{});
    return true;
  }
  if constexpr (sizeof...(Rest) > 0) {
    return with_layout<T, Rest...>(width, body);
  } else {
    return false;
  }
}

/// Forward: a row in 32 lanes needs no barrier, and its 16 to 64 values are loads in flight.
template <typename T, typename Body>
bool with_forward_layout(int width, const Body& body) {
  return with_layout<T, Layout<32, 2, 128>, Layout<32, 8, 128>, Layout<256, 4, 256>>(width, body);
}

/// Backward: the weight gradient's sums stay in registers, too, so more threads share a row.
template <typename T, typename Body>
bool with_backward_layout(int width, const Body& body) {
  return with_layout<T, Layout<32, 2, 256>, Layout<128, 2, 256>, Layout<256, 4, 256>>(width, body);
}

template <typename T, typename L>
__device__ void load_row(const T* row, int width, int lane, Pack<T> (&packs)[L::kPacks]) {
#pragma unroll
  for (int p = 0; p < L::kPacks; ++p) {
    const int column = (p * L::kThreads + lane) * Pack<T>::kSize;
    packs[p] = column < width ? Pack<T>::load(row + column) : Pack<T>::zero();
  }
}

template <typename T, typename L>
__global__ void __launch_bounds__(L::kBlock)
    norm_kernel(NormShape shape, Rows<const T> x, const T* weight, float epsilon, Rstd mode, float* rstd, Rows<T> y) {
  constexpr int kSize = Pack<T>::kSize;
  __shared__ float scratch[L::kBlock / 32];
  const int lane = threadIdx.x % L::kThreads;
  const std::int64_t row = std::int64_t{blockIdx.x} * L::kRowsPerBlock + threadIdx.x / L::kThreads;
  if (row >= shape.rows) return;
  Pack<T> packs[L::kPacks];
  load_row<T, L>(x.data + row * x.stride, shape.width, lane, packs);
  float scale;
  if (mode == Rstd::kCompute) {
    float sum = 0.0F;
#pragma unroll
    for (int p = 0; p < L::kPacks; ++p) {
#pragma unroll
      for (int i = 0; i < kSize; ++i) sum += packs[p].at(i) * packs[p].at(i);
    }
    scale = rsqrtf(gpu::row_sum<L::kThreads>(sum, scratch) / static_cast<float>(shape.width) + epsilon);
    if (lane == 0) rstd[row] = scale;
  } else {
    scale = rstd[row];
  }
  T* out = y.data + row * y.stride;
#pragma unroll
  for (int p = 0; p < L::kPacks; ++p) {
    const int column = (p * L::kThreads + lane) * kSize;
    if (column >= shape.width) break;
    const Pack<T> weights = Pack<T>::load(weight + column);
    float value[kSize];
#pragma unroll
    for (int i = 0; i < kSize; ++i) value[i] = packs[p].at(i) * scale * weights.at(i);
    Pack<T>::from(value).store(out + column);
  }
}

template <typename T>
__global__ void __launch_bounds__(kPlainThreads) plain_norm_kernel(NormShape shape, Rows<const T> x, const T* weight,
                                                                   float epsilon, Rstd mode, float* rstd, Rows<T> y) {
  __shared__ float scratch[kPlainThreads / 32];
  const std::int64_t row = blockIdx.x;
  const T* in = x.data + row * x.stride;
  float scale;
  if (mode == Rstd::kCompute) {
    float sum = 0.0F;
    for (int h = threadIdx.x; h < shape.width; h += kPlainThreads) sum += gpu::to_float(in[h]) * gpu::to_float(in[h]);
    scale = rsqrtf(gpu::row_sum<kPlainThreads>(sum, scratch) / static_cast<float>(shape.width) + epsilon);
    if (threadIdx.x == 0) rstd[row] = scale;
  } else {
    scale = rstd[row];
  }
  for (int h = threadIdx.x; h < shape.width; h += kPlainThreads) {
    y.data[row * y.stride + h] = gpu::from_float<T>(gpu::to_float(in[h]) * scale * gpu::to_float(weight[h]));
  }
}

/// The block's sum of its threads' shares of the weight gradient, row group after row group.
template <typename T, typename L>
__device__ void store_partial(int width, const float (&gradient)[L::kPacks][Pack<T>::kSize], float* shared_H,
                              float* partial) {
  constexpr int kSize = Pack<T>::kSize;
  for (int group = 0; group < L::kRowsPerBlock; ++group) {
    float* to = group == L::kRowsPerBlock - 1 ? partial : shared_H;
    if (static_cast<int>(threadIdx.x) / L::kThreads == group) {
#pragma unroll
      for (int p = 0; p < L::kPacks; ++p) {
        const int column = (p * L::kThreads + static_cast<int>(threadIdx.x) % L::kThreads) * kSize;
        if (column >= width) break;
#pragma unroll
        for (int i = 0; i < kSize; ++i) to[column + i] = (group == 0 ? 0.0F : shared_H[column + i]) + gradient[p][i];
      }
    }
    __syncthreads();
  }
}

/// With g = dy · weight and n = x · rstd: dx = rstd · (g − n · mean(g · n)), dweight = Σ_rows dy · n.
template <typename T, typename L>
__global__ void __launch_bounds__(L::kBlock, L::kPacks > 2 ? 1 : 3)
    backward_kernel(NormShape shape, NormBackward<T> a) {
  constexpr int kSize = Pack<T>::kSize;
  extern __shared__ float shared_H[];
  __shared__ float scratch[2][L::kBlock / 32];
  const int lane = threadIdx.x % L::kThreads;
  const float inverse_width = 1.0F / static_cast<float>(shape.width);
  Pack<T> weights[L::kPacks];
  load_row<T, L>(a.weight, shape.width, lane, weights);
  float gradient[L::kPacks][kSize] = {};
  int turn = 0;
  // Every thread of the block makes the same number of rounds, because a row's sum may take a barrier.
  for (std::int64_t first = std::int64_t{blockIdx.x} * L::kRowsPerBlock; first < shape.rows;
       first += std::int64_t{gridDim.x} * L::kRowsPerBlock) {
    const std::int64_t row = first + threadIdx.x / L::kThreads;
    const int width = row < shape.rows ? shape.width : 0;
    T* dx = a.dx.data + row * a.dx.stride;
    Pack<T> x[L::kPacks];
    Pack<T> dy[L::kPacks];
    Pack<T> before[L::kPacks];
    load_row<T, L>(a.x.data + row * a.x.stride, width, lane, x);
    load_row<T, L>(a.dy.data + row * a.dy.stride, width, lane, dy);
    load_row<T, L>(dx, a.write == Write::kAccumulate ? width : 0, lane, before);
    const float rstd = width > 0 ? a.rstd[row] : 0.0F;
    float dot = 0.0F;
#pragma unroll
    for (int p = 0; p < L::kPacks; ++p) {
#pragma unroll
      for (int i = 0; i < kSize; ++i) {
        const float product = dy[p].at(i) * x[p].at(i) * rstd;
        gradient[p][i] += product;
        dot += product * weights[p].at(i);
      }
    }
    // Two scratch rows in turn: a thread may still read the last sum when another writes the next one.
    const float mean = gpu::row_sum<L::kThreads>(dot, scratch[turn]) * inverse_width;
    turn ^= 1;
#pragma unroll
    for (int p = 0; p < L::kPacks; ++p) {
      const int column = (p * L::kThreads + lane) * kSize;
      if (column >= width) break;
      float value[kSize];
#pragma unroll
      for (int i = 0; i < kSize; ++i) {
        value[i] = before[p].at(i) + rstd * (dy[p].at(i) * weights[p].at(i) - x[p].at(i) * rstd * mean);
      }
      Pack<T>::from(value).store(dx + column);
    }
  }
  store_partial<T, L>(shape.width, gradient, shared_H, a.partial + std::int64_t{blockIdx.x} * shape.width);
}

template <typename T>
__global__ void __launch_bounds__(kPlainThreads) plain_backward_kernel(NormShape shape, NormBackward<T> a) {
  __shared__ float scratch[kPlainThreads / 32];
  const std::int64_t row = blockIdx.x;
  const T* dy = a.dy.data + row * a.dy.stride;
  const T* x = a.x.data + row * a.x.stride;
  T* dx = a.dx.data + row * a.dx.stride;
  const float rstd = a.rstd[row];
  float dot = 0.0F;
  for (int h = threadIdx.x; h < shape.width; h += kPlainThreads) {
    dot += gpu::to_float(dy[h]) * gpu::to_float(x[h]) * rstd * gpu::to_float(a.weight[h]);
  }
  const float mean = gpu::row_sum<kPlainThreads>(dot, scratch) / static_cast<float>(shape.width);
  for (int h = threadIdx.x; h < shape.width; h += kPlainThreads) {
    const float before = a.write == Write::kAccumulate ? gpu::to_float(dx[h]) : 0.0F;
    const float g = gpu::to_float(dy[h]) * gpu::to_float(a.weight[h]);
    dx[h] = gpu::from_float<T>(before + rstd * (g - gpu::to_float(x[h]) * rstd * mean));
  }
}

/// One thread a column: the weight gradient's share of the rows of one part.
template <typename T>
__global__ void __launch_bounds__(kPlainThreads) plain_gradient_kernel(NormShape shape, NormBackward<T> a) {
  const int h = blockIdx.y * kPlainThreads + threadIdx.x;
  if (h >= shape.width) return;
  float sum = 0.0F;
  for (std::int64_t row = blockIdx.x; row < shape.rows; row += gridDim.x) {
    sum +=
        gpu::to_float(a.dy.data[row * a.dy.stride + h]) * gpu::to_float(a.x.data[row * a.x.stride + h]) * a.rstd[row];
  }
  a.partial[std::int64_t{blockIdx.x} * shape.width + h] = sum;
}

constexpr int kColumns = 32;
constexpr int kSlices = 32;

/// main_grad += Σ_parts partial, for kColumns columns a block; kSlices sums of parts, then their sum in order.
__global__ void __launch_bounds__(kColumns* kSlices)
    add_parts_kernel(int parts, int width, const float* partial, float* main_grad) {
  __shared__ float sums[kSlices][kColumns];
  const int column = threadIdx.x % kColumns;
  const int slice = threadIdx.x / kColumns;
  const int h = blockIdx.x * kColumns + column;
  float sum = 0.0F;
  if (h < width) {
    for (int part = slice; part < parts; part += kSlices) sum += partial[std::int64_t{part} * width + h];
  }
  sums[slice][column] = sum;
  __syncthreads();
  if (slice != 0 || h >= width) return;
  for (int s = 1; s < kSlices; ++s) sum += sums[s][column];
  main_grad[h] += sum;
}

template <typename T>
bool backward_is_packed(NormShape shape, const NormBackward<T>& a) {
  return is_packed(a.dy, shape.width) && is_packed(a.x, shape.width) && is_packed(a.dx, shape.width) &&
         gpu::is_packed(a.weight, 0);
}

}  // namespace

template <typename T>
void launch_rms_norm(NormShape shape, Rows<const T> x, const T* weight, float epsilon, Rstd mode, float* rstd,
                     Rows<T> y, gpu::Stream stream) {
  if (shape.rows == 0 || shape.width == 0) return;
  const bool packed = is_packed(x, shape.width) && is_packed(y, shape.width) && gpu::is_packed(weight, 0);
  const bool done = packed && with_forward_layout<T>(shape.width, [&](auto layout) {
                      using L = decltype(layout);
                      norm_kernel<T, L><<<blocks_for(shape.rows, L::kRowsPerBlock), L::kBlock, 0, stream>>>(
                          shape, x, weight, epsilon, mode, rstd, y);
                    });
  if (!done) {
    plain_norm_kernel<T>
        <<<blocks_for(shape.rows, 1), kPlainThreads, 0, stream>>>(shape, x, weight, epsilon, mode, rstd, y);
  }
  PRIMUS_CUDA_CHECK(gpu::last_error());
}

int rms_norm_gradient_parts(NormShape shape) {
  return static_cast<int>(shape.rows < kMaxParts ? shape.rows : kMaxParts);
}

template <typename T>
void launch_rms_norm_backward(NormShape shape, const NormBackward<T>& tensors, gpu::Stream stream) {
  if (shape.rows == 0 || shape.width == 0) return;
  const int parts = rms_norm_gradient_parts(shape);
  const bool done = backward_is_packed(shape, tensors) && with_backward_layout<T>(shape.width, [&](auto layout) {
                      using L = decltype(layout);
                      const std::size_t shared = L::kRowsPerBlock > 1 ? sizeof(float) * shape.width : 0;
                      backward_kernel<T, L><<<parts, L::kBlock, shared, stream>>>(shape, tensors);
                    });
  if (!done) {
    plain_backward_kernel<T><<<blocks_for(shape.rows, 1), kPlainThreads, 0, stream>>>(shape, tensors);
    const dim3 grid(parts, blocks_for(shape.width, kPlainThreads));
    plain_gradient_kernel<T><<<grid, kPlainThreads, 0, stream>>>(shape, tensors);
  }
  add_parts_kernel<<<blocks_for(shape.width, kColumns), kColumns * kSlices, 0, stream>>>(
      parts, shape.width, tensors.partial, tensors.main_grad);
  PRIMUS_CUDA_CHECK(gpu::last_error());
}

#define PRIMUS_INSTANTIATE(T)                                                                                      \
  template void launch_rms_norm<T>(NormShape, Rows<const T>, const T*, float, Rstd, float*, Rows<T>, gpu::Stream); \
  template void launch_rms_norm_backward<T>(NormShape, const NormBackward<T>&, gpu::Stream);
PRIMUS_INSTANTIATE(float)
PRIMUS_INSTANTIATE(gpu::Bf16)

}  // namespace primus::ops::cuda
