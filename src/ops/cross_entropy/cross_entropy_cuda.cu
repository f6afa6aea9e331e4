// A block takes one token. It reads the row once with an online softmax (each thread keeps its own maximum and sum),
// and keeps it in shared memory where it fits: 102,400 bf16 logits do on Hopper. Longer rows are read again, then
// mostly from the L2.
#include <cfloat>

#include "ops/cross_entropy/cross_entropy_cuda.hpp"
#include "ops/gpu/device.cuh"

namespace primus::ops::cuda {
namespace {

using gpu::Pack;
using gpu::Single;

constexpr int kLargeBlock = 1024;
constexpr int kForwardBlock = 512;  // several blocks a multiprocessor: one reads while another adds up
constexpr int kSmallBlock = 128;
constexpr std::int64_t kSmallRowBytes = 32 * 1024;
constexpr int kUnroll = 4;
constexpr std::int64_t kTotalsBytes = 2 * sizeof(float) * kLargeBlock / 32;  // shared memory of block_totals

enum class Keep { kNothing, kInShared };

/// exp of what is not above 0, by the hardware's power of two alone: what lies below 2^-126 becomes 0.
__device__ float exp_of(float x) {
  constexpr float kLog2E = 1.4426950408889634F;
  return gpu::fast_exp2(x * kLog2E);
}

/// Σ exp(x − maximum) beside the maximum. From −FLT_MAX, so that −inf needs no test; a NaN arrives in the sum.
struct Totals {
  float maximum = -FLT_MAX;
  float sum = 0.0F;

  template <typename P>
  __device__ void add(const P& pack) {
    float largest = pack.at(0);
#pragma unroll
    for (int i = 1; i < P::kSize; ++i) largest = fmaxf(largest, pack.at(i));
    if (largest > maximum) {
      sum *= exp_of(maximum - largest);
      maximum = largest;
    }
#pragma unroll
    for (int i = 0; i < P::kSize; ++i) sum += exp_of(pack.at(i) - maximum);
  }
};

/// Of the whole block, the same bits in every thread.
__device__ Totals block_totals(Totals own) {
  __shared__ float maxima[kLargeBlock / 32];
  __shared__ float sums[kLargeBlock / 32];
  const int waves = static_cast<int>(blockDim.x) / 32;
  Totals all;
  all.maximum = gpu::lane_max<32>(own.maximum);
  own.sum = gpu::lane_sum<32>(own.sum * exp_of(own.maximum - all.maximum));
  if (threadIdx.x % 32 == 0) {
    maxima[threadIdx.x / 32] = all.maximum;
    sums[threadIdx.x / 32] = own.sum;
  }
  __syncthreads();
  for (int i = 0; i < waves; ++i) all.maximum = fmaxf(all.maximum, maxima[i]);
  for (int i = 0; i < waves; ++i) all.sum += sums[i] * exp_of(maxima[i] - all.maximum);
  return all;
}

__device__ std::int64_t checked_label(const std::int64_t* label, std::int64_t token, std::int64_t vocabulary) {
  const std::int64_t value = label[token];
  if (value < 0 || value >= vocabulary) gpu::trap();
  return value;
}

/// This thread's packs of a row.
template <typename P, Keep keep, typename T>
__device__ Totals totals_of(const T* row, int packs, P* kept) {
  Totals totals;
  const int step = static_cast<int>(blockDim.x);
  for (int first = threadIdx.x; first < packs; first += kUnroll * step) {
    P pack[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (first + u * step < packs) pack[u] = P::load(row + std::int64_t{first + u * step} * P::kSize);
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (first + u * step >= packs) break;
      totals.add(pack[u]);
      if constexpr (keep == Keep::kInShared) kept[first + u * step] = pack[u];
    }
  }
  return totals;
}

/// log Σ exp x − logit, in an order that cancels nothing when the logit is the maximum.
__device__ float loss_of(const Totals& totals, float logit) {
  return logf(totals.sum) + (totals.maximum - logit);
}

template <typename T, typename P>
__global__ void __launch_bounds__(kForwardBlock)
    forward_kernel(LossShape shape, const T* __restrict__ logits, const std::int64_t* __restrict__ label,
                   float* __restrict__ loss) {
  const std::int64_t token = blockIdx.x;
  const T* row = logits + token * shape.vocabulary;
  const auto packs = static_cast<int>(shape.vocabulary / P::kSize);
  const Totals totals = block_totals(totals_of<P, Keep::kNothing>(row, packs, static_cast<P*>(nullptr)));
  if (threadIdx.x != 0) return;
  loss[token] = loss_of(totals, gpu::to_float(row[checked_label(label, token, shape.vocabulary)]));
}

template <typename T, typename P, Keep keep>
__global__ void __launch_bounds__(kLargeBlock)
    backward_kernel(LossShape shape, T* logits, const std::int64_t* __restrict__ label, const float* __restrict__ grad,
                    float* __restrict__ loss) {
  extern __shared__ uint4 shared[];
  auto* kept = reinterpret_cast<P*>(shared);
  const std::int64_t token = blockIdx.x;
  T* row = logits + token * shape.vocabulary;
  const auto packs = static_cast<int>(shape.vocabulary / P::kSize);
  const std::int64_t target = checked_label(label, token, shape.vocabulary);
  const float logit = gpu::to_float(row[target]);  // before anybody overwrites it: the totals take a barrier
  const float dloss = grad[token];
  const Totals totals = block_totals(totals_of<P, keep>(row, packs, kept));
  if (threadIdx.x == 0) loss[token] = loss_of(totals, logit);
  const float factor = dloss / totals.sum;
  const int step = static_cast<int>(blockDim.x);
  for (int first = threadIdx.x; first < packs; first += kUnroll * step) {
    P pack[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int p = first + u * step;
      if (p >= packs) break;
      if constexpr (keep == Keep::kInShared) {
        pack[u] = kept[p];
      } else {
        pack[u] = P::load(row + std::int64_t{p} * P::kSize);
      }
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int p = first + u * step;
      if (p >= packs) break;
      float value[P::kSize];
#pragma unroll
      for (int i = 0; i < P::kSize; ++i) value[i] = exp_of(pack[u].at(i) - totals.maximum) * factor;
      P::from(value).store(row + std::int64_t{p} * P::kSize);
    }
  }
  // The thread that wrote the label's pack puts its one element right.
  if (target / P::kSize % step == threadIdx.x) {
    row[target] = gpu::from_float<T>(fmaf(exp_of(logit - totals.maximum), factor, -dloss));
  }
}

int block_of(std::int64_t row_bytes, int large) {
  return row_bytes >= kSmallRowBytes ? large : kSmallBlock;
}

template <typename T>
bool is_packed(LossShape shape, const T* logits) {
  return gpu::is_packed(logits, static_cast<std::int64_t>(sizeof(T)) * shape.vocabulary);
}

/// Can a block keep a row?
bool fits_shared(std::int64_t row_bytes) {
  int largest = 0;
  PRIMUS_CUDA_CHECK(gpu::largest_shared(largest));
  return row_bytes + kTotalsBytes <= largest;
}

template <typename T, typename P, Keep keep>
void launch_backward(LossShape shape, T* logits, const std::int64_t* label, const float* grad, float* loss,
                     gpu::Stream stream) {
  const std::int64_t row_bytes = static_cast<std::int64_t>(sizeof(T)) * shape.vocabulary;
  const std::size_t shared = keep == Keep::kInShared ? row_bytes : 0;
  const auto kernel = backward_kernel<T, P, keep>;
  PRIMUS_CUDA_CHECK(gpu::allow_shared(kernel, shared));
  kernel<<<static_cast<unsigned>(shape.tokens), block_of(row_bytes, kLargeBlock), shared, stream>>>(shape, logits,
                                                                                                    label, grad, loss);
}

}  // namespace

template <typename T>
void launch_cross_entropy(LossShape shape, const T* logits, const std::int64_t* label, float* loss,
                          gpu::Stream stream) {
  if (shape.tokens == 0) return;
  const auto tokens = static_cast<unsigned>(shape.tokens);
  const int block = block_of(static_cast<std::int64_t>(sizeof(T)) * shape.vocabulary, kForwardBlock);
  if (is_packed(shape, logits)) {
    forward_kernel<T, Pack<T>><<<tokens, block, 0, stream>>>(shape, logits, label, loss);
  } else {
    forward_kernel<T, Single<T>><<<tokens, block, 0, stream>>>(shape, logits, label, loss);
  }
  PRIMUS_CUDA_CHECK(gpu::last_error());
}

template <typename T>
void launch_cross_entropy_backward(LossShape shape, T* logits, const std::int64_t* label, const float* grad,
                                   float* loss, gpu::Stream stream) {
  if (shape.tokens == 0) return;
  const std::int64_t row_bytes = static_cast<std::int64_t>(sizeof(T)) * shape.vocabulary;
  if (!is_packed(shape, logits)) {
    launch_backward<T, Single<T>, Keep::kNothing>(shape, logits, label, grad, loss, stream);
  } else if (fits_shared(row_bytes)) {
    launch_backward<T, Pack<T>, Keep::kInShared>(shape, logits, label, grad, loss, stream);
  } else {
    launch_backward<T, Pack<T>, Keep::kNothing>(shape, logits, label, grad, loss, stream);
  }
  PRIMUS_CUDA_CHECK(gpu::last_error());
}

#define PRIMUS_INSTANTIATE(T)                                                                           \
  template void launch_cross_entropy<T>(LossShape, const T*, const std::int64_t*, float*, gpu::Stream); \
  template void launch_cross_entropy_backward<T>(LossShape, T*, const std::int64_t*, const float*, float*, gpu::Stream);
PRIMUS_INSTANTIATE(float)
PRIMUS_INSTANTIATE(gpu::Bf16)

}  // namespace primus::ops::cuda
