// The gradient without atomics: tokens sorted by id are dealt out in chunks of equal length, so that a token which
// stands for a tenth of the text costs no more than any other. A run of one id that lies inside a chunk is added to its
// row at once; parts of runs that cross chunks go to scratch and are added in the order of the chunks.
#include "ops/embedding/embedding_cuda.hpp"
#include "ops/gpu/device.cuh"

#include <type_traits>

namespace primus::ops::cuda {
namespace {

using gpu::blocks_for;
using gpu::Pack;
using gpu::Single;

constexpr int kBlock = 256;
constexpr int kTokenLanes = 32;
constexpr int kTokensPerBlock = kBlock / kTokenLanes;
constexpr int kChunk = 32;    // sorted tokens of one block
constexpr int kPrefetch = 8;  // of their rows in flight
constexpr int kParts = 2;     // of a chunk that go to scratch
enum Part { kHead, kTail };   // of a run from the chunk before; of one that goes on in the next

__device__ int checked_id(const std::int64_t* ids, int token, int vocabulary) {
  const std::int64_t id = ids[token];
  if (id < 0 || id >= vocabulary) gpu::trap();
  return static_cast<int>(id);
}

template <typename T, typename P>
__global__ void __launch_bounds__(kBlock) forward_kernel(EmbeddingShape shape, const std::int64_t* __restrict__ ids,
                                                         const T* __restrict__ w, T* __restrict__ x) {
  constexpr int kUnroll = 4;
  constexpr int kStep = kTokenLanes * P::kSize;
  const int token = static_cast<int>(blockIdx.x) * kTokensPerBlock + static_cast<int>(threadIdx.x) / kTokenLanes;
  if (token >= shape.tokens) return;
  const T* from = w + std::int64_t{checked_id(ids, token, shape.vocabulary)} * shape.hidden;
  T* to = x + std::int64_t{token} * shape.hidden;
  for (int begin = static_cast<int>(threadIdx.x) % kTokenLanes * P::kSize; begin < shape.hidden;
       begin += kUnroll * kStep) {
    P pack[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (begin + u * kStep < shape.hidden) pack[u] = P::load(from + begin + u * kStep);
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (begin + u * kStep < shape.hidden) pack[u].store(to + begin + u * kStep);
    }
  }
}

__global__ void __launch_bounds__(kBlock)
    digit_kernel(EmbeddingShape shape, const std::int64_t* __restrict__ ids, const std::int32_t* __restrict__ order,
                 int shift, std::int32_t* __restrict__ digit) {
  const int r = static_cast<int>(blockIdx.x) * kBlock + static_cast<int>(threadIdx.x);
  if (r >= shape.tokens) return;
  const int token = order != nullptr ? order[r] : r;
  digit[r] = (checked_id(ids, token, shape.vocabulary) >> shift) % kDigits;
}

__global__ void __launch_bounds__(kBlock)
    compose_kernel(int tokens, const std::int32_t* __restrict__ slot_of, const std::int32_t* __restrict__ order_in,
                   std::int32_t* __restrict__ order_out) {
  const int r = static_cast<int>(blockIdx.x) * kBlock + static_cast<int>(threadIdx.x);
  if (r < tokens) order_out[r] = order_in[slot_of[r]];
}

/// Sorted tokens: the ids' view of them.
struct Sorted {
  const std::int64_t* ids;
  const std::int32_t* order;

  __device__ int id(int place) const { return static_cast<int>(ids[order[place]]); }
};

template <typename P>
__device__ void add_to(float* row, int column, const float (&sum)[P::kSize]) {
  if constexpr (P::kSize == 1) {
    row[column] += sum[0];
  } else {
#pragma unroll
    for (int q = 0; q < P::kSize / 4; ++q) {
      const auto before = Pack<float>::load(row + column + 4 * q);
      Pack<float>::from({before.at(0) + sum[4 * q], before.at(1) + sum[4 * q + 1], before.at(2) + sum[4 * q + 2],
                         before.at(3) + sum[4 * q + 3]})
          .store(row + column + 4 * q);
    }
  }
}

template <typename P>
__device__ void put(float* row, int column, const float (&sum)[P::kSize]) {
#pragma unroll
  for (int i = 0; i < P::kSize; ++i) row[column + i] = sum[i];
}

template <typename T, typename P>
__global__ void __launch_bounds__(kBlock)
    chunk_kernel(EmbeddingShape shape, Sorted sorted, const T* __restrict__ dx, float* scratch, float* main_grad) {
  __shared__ int token_of[kChunk];
  __shared__ int id_of[kChunk + 2];  // of the place before the chunk, its own, the one after it; -1: none
  const int first = static_cast<int>(blockIdx.x) * kChunk;
  const int length = min(kChunk, shape.tokens - first);
  for (int i = threadIdx.x; i < length + 2; i += kBlock) {
    const int place = first + i - 1;
    id_of[i] = place >= 0 && place < shape.tokens ? sorted.id(place) : -1;
    if (i < length) token_of[i] = sorted.order[first + i];
  }
  __syncthreads();
  const int column = (static_cast<int>(blockIdx.y) * kBlock + static_cast<int>(threadIdx.x)) * P::kSize;
  if (column >= shape.hidden) return;
  float* parts = scratch + std::int64_t{blockIdx.x} * kParts * shape.hidden;
  float sum[P::kSize] = {};
  bool is_head = id_of[0] == id_of[1];
  for (int begin = 0; begin < length; begin += kPrefetch) {
    P pack[kPrefetch];
#pragma unroll
    for (int u = 0; u < kPrefetch; ++u) {
      if (begin + u < length) pack[u] = P::load(dx + std::int64_t{token_of[begin + u]} * shape.hidden + column);
    }
#pragma unroll
    for (int u = 0; u < kPrefetch; ++u) {
      const int i = begin + u;
      if (i >= length) break;
#pragma unroll
      for (int j = 0; j < P::kSize; ++j) sum[j] += pack[u].at(j);
      const int id = id_of[i + 1];
      const bool goes_on = id_of[i + 2] == id;
      if (goes_on && i + 1 < length) continue;
      if (is_head) {
        put<P>(parts + kHead * shape.hidden, column, sum);
      } else if (goes_on) {
        put<P>(parts + kTail * shape.hidden, column, sum);
      } else {
        add_to<P>(main_grad + std::int64_t{id} * shape.hidden, column, sum);
      }
      is_head = false;
#pragma unroll
      for (int j = 0; j < P::kSize; ++j) sum[j] = 0.0F;
    }
  }
}

/// The first chunk after `chunk` whose first token has another id: found by halving, because ids are sorted.
__device__ int end_of_run(const Sorted& sorted, int chunk, int chunks, int id) {
  int low = chunk + 1;
  int high = chunks;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (sorted.id(middle * kChunk) == id) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

/// Runs that begin in this chunk and end in a later one.
template <typename P>
__global__ void __launch_bounds__(kBlock)
    join_kernel(EmbeddingShape shape, Sorted sorted, const float* __restrict__ scratch, float* main_grad) {
  const int chunk = blockIdx.x;
  const int last = (chunk + 1) * kChunk - 1;
  if (last + 1 >= shape.tokens) return;
  const int id = sorted.id(last);
  const bool begins_before = chunk > 0 && sorted.id(chunk * kChunk - 1) == id;
  if (sorted.id(last + 1) != id || begins_before) return;
  const int column = (static_cast<int>(blockIdx.y) * kBlock + static_cast<int>(threadIdx.x)) * P::kSize;
  if (column >= shape.hidden) return;
  const std::int64_t stride = std::int64_t{kParts} * shape.hidden;
  const float* head = scratch + kHead * shape.hidden + column;
  float sum[P::kSize];
#pragma unroll
  for (int j = 0; j < P::kSize; ++j) sum[j] = scratch[chunk * stride + kTail * shape.hidden + column + j];
  const int end = end_of_run(sorted, chunk, static_cast<int>(gridDim.x), id);
#pragma unroll 4
  for (int c = chunk + 1; c < end; ++c) {
#pragma unroll
    for (int j = 0; j < P::kSize; ++j) sum[j] += head[c * stride + j];
  }
  add_to<P>(main_grad + std::int64_t{id} * shape.hidden, column, sum);
}

template <typename T>
bool is_packed(EmbeddingShape shape, const T* rows, const T* others) {
  const auto bytes = static_cast<std::int64_t>(sizeof(T)) * shape.hidden;
  return gpu::is_packed(rows, bytes) && gpu::is_packed(others, bytes);
}

template <typename T, typename P>
void launch_backward(EmbeddingShape shape, Sorted sorted, const T* dx, float* scratch, float* main_grad,
                     gpu::Stream stream) {
  const dim3 grid(blocks_for(shape.tokens, kChunk), blocks_for(shape.hidden, kBlock * P::kSize));
  chunk_kernel<T, P><<<grid, kBlock, 0, stream>>>(shape, sorted, dx, scratch, main_grad);
  // A run that is joined is long or rare: more blocks, of narrower columns, for each.
  using Narrow = std::conditional_t<P::kSize == 1, Single<float>, Pack<float>>;
  const dim3 narrow(grid.x, blocks_for(shape.hidden, kBlock * Narrow::kSize));
  join_kernel<Narrow><<<narrow, kBlock, 0, stream>>>(shape, sorted, scratch, main_grad);
}

}  // namespace

template <typename T>
void launch_embedding_forward(EmbeddingShape shape, const std::int64_t* ids, const T* w, T* x, gpu::Stream stream) {
  if (shape.tokens == 0 || shape.hidden == 0) return;
  const unsigned blocks = blocks_for(shape.tokens, kTokensPerBlock);
  if (is_packed<T>(shape, w, x)) {
    forward_kernel<T, Pack<T>><<<blocks, kBlock, 0, stream>>>(shape, ids, w, x);
  } else {
    forward_kernel<T, Single<T>><<<blocks, kBlock, 0, stream>>>(shape, ids, w, x);
  }
  PRIMUS_CUDA_CHECK(gpu::last_error());
}

void launch_id_digits(EmbeddingShape shape, const std::int64_t* ids, const std::int32_t* order, int shift,
                      std::int32_t* digit, gpu::Stream stream) {
  if (shape.tokens == 0) return;
  digit_kernel<<<blocks_for(shape.tokens, kBlock), kBlock, 0, stream>>>(shape, ids, order, shift, digit);
  PRIMUS_CUDA_CHECK(gpu::last_error());
}

void launch_compose_order(int tokens, const std::int32_t* slot_of, const std::int32_t* order_in,
                          std::int32_t* order_out, gpu::Stream stream) {
  if (tokens == 0) return;
  compose_kernel<<<blocks_for(tokens, kBlock), kBlock, 0, stream>>>(tokens, slot_of, order_in, order_out);
  PRIMUS_CUDA_CHECK(gpu::last_error());
}

std::int64_t embedding_backward_scratch(EmbeddingShape shape) {
  return std::int64_t{blocks_for(shape.tokens, kChunk)} * kParts * shape.hidden;
}

template <typename T>
void launch_embedding_backward(EmbeddingShape shape, const std::int64_t* ids, const std::int32_t* order, const T* dx,
                               float* scratch, float* main_grad, gpu::Stream stream) {
  if (shape.tokens == 0 || shape.hidden == 0) return;
  const Sorted sorted{ids, order};
  if (is_packed<T>(shape, dx, dx) && gpu::is_packed(main_grad, 0)) {
    launch_backward<T, Pack<T>>(shape, sorted, dx, scratch, main_grad, stream);
  } else {
    launch_backward<T, Single<T>>(shape, sorted, dx, scratch, main_grad, stream);
  }
  PRIMUS_CUDA_CHECK(gpu::last_error());
}

#define PRIMUS_INSTANTIATE(T)                                                                                    \
  template void launch_embedding_forward<T>(EmbeddingShape, const std::int64_t*, const T*, T*, gpu::Stream);     \
  template void launch_embedding_backward<T>(EmbeddingShape, const std::int64_t*, const std::int32_t*, const T*, \
                                             float*, float*, gpu::Stream);
PRIMUS_INSTANTIATE(float)
PRIMUS_INSTANTIATE(gpu::Bf16)

}  // namespace primus::ops::cuda
