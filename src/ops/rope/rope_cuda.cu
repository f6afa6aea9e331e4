// A block takes one token, a wavefront's 32 lanes one of its heads: addresses cost a few instructions a head, none an
// element. Everything is read and written once; k_pe, which all heads share, comes from the L1 cache.
#include "ops/gpu/device.cuh"
#include "ops/rope/rope_cuda.hpp"

namespace primus::ops::cuda {
namespace {

using gpu::blocks_for;
using gpu::Pack;
using gpu::Single;

constexpr int kBlock = 256;
constexpr int kLanes = 32;
constexpr int kGroups = kBlock / kLanes;

template <typename T>
__device__ T* at(const Heads<T>& x, std::int64_t row, int head) {
  return x.data + row * x.row_stride + head * x.head_stride;
}

/// Pairs that a thread rotates at a time, as 16-byte packs (P = Pack) or one by one (P = Single).
template <typename P, PairLayout layout>
struct Pairs {
  static constexpr int kCount = layout == PairLayout::kHalves || P::kSize == 1 ? P::kSize : P::kSize / 2;
  float first[kCount];
  float second[kCount];

  /// Group g of a head whose rotary elements begin at `head`.
  template <typename T>
  __device__ static Pairs load(const T* head, int g, int pairs) {
    Pairs x;
    if constexpr (layout == PairLayout::kInterleaved && P::kSize > 1) {
      const P both = P::load(head + g * P::kSize);
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        x.first[i] = both.at(2 * i);
        x.second[i] = both.at(2 * i + 1);
      }
    } else {
      const int place = layout == PairLayout::kHalves ? g * kCount : 2 * g;
      const P a = P::load(head + place);
      const P b = P::load(head + place + (layout == PairLayout::kHalves ? pairs : 1));
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        x.first[i] = a.at(i);
        x.second[i] = b.at(i);
      }
    }
    return x;
  }

  template <typename T>
  __device__ void store(T* head, int g, int pairs) const {
    if constexpr (layout == PairLayout::kInterleaved && P::kSize > 1) {
      float both[P::kSize];
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        both[2 * i] = first[i];
        both[2 * i + 1] = second[i];
      }
      P::from(both).store(head + g * P::kSize);
    } else {
      const int place = layout == PairLayout::kHalves ? g * kCount : 2 * g;
      P::from(first).store(head + place);
      P::from(second).store(head + place + (layout == PairLayout::kHalves ? pairs : 1));
    }
  }

  /// By the angles of a position; sign −1: back.
  __device__ void rotate(const RopeTables& tables, int position, int g, float sign) {
    const std::int64_t place = std::int64_t{position} * tables.pairs + g * kCount;
    float cos[kCount];
    float sin[kCount];
    load_table(tables.cos + place, cos);
    load_table(tables.sin + place, sin);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const float a = first[i];
      const float b = second[i];
      first[i] = a * cos[i] - sign * b * sin[i];
      second[i] = b * cos[i] + sign * a * sin[i];
    }
  }

 private:
  __device__ static void load_table(const float* from, float (&value)[kCount]) {
    if constexpr (kCount % 4 == 0) {
#pragma unroll
      for (int q = 0; q < kCount / 4; ++q) {
        const auto pack = Pack<float>::load(from + 4 * q);
#pragma unroll
        for (int i = 0; i < 4; ++i) value[4 * q + i] = pack.at(i);
      }
    } else {
#pragma unroll
      for (int i = 0; i < kCount; ++i) value[i] = from[i];
    }
  }
};

/// A row of threads (x: groups of pairs) for each head of each token.
template <typename T, typename P, PairLayout layout>
__global__ void __launch_bounds__(kBlock)
    rope_kernel(std::int64_t rows, int heads, RopeTables tables, float sign, Heads<T> x) {
  using X = Pairs<P, layout>;
  const std::int64_t row = std::int64_t{blockIdx.x} * blockDim.y + threadIdx.y;
  if (row >= rows) return;
  const std::int64_t token = row / heads;
  T* head = at(x, token, static_cast<int>(row - token * heads));
  const auto position = static_cast<int>(token % tables.sequence);
  for (int g = threadIdx.x; g < tables.pairs / X::kCount; g += blockDim.x) {
    auto pairs = X::load(head, g, tables.pairs);
    pairs.rotate(tables, position, g, sign);
    pairs.store(head, g, tables.pairs);
  }
}

template <typename P, typename T>
__device__ void copy(const T* from, int lane, int count, T* to) {
  for (int i = lane * P::kSize; i < count; i += kLanes * P::kSize) P::load(from + i).store(to + i);
}

template <typename T, typename P, PairLayout layout>
__global__ void __launch_bounds__(kBlock)
    assemble_forward_kernel(RopeShape shape, RopeTables tables, AssembleForward<T> a) {
  using X = Pairs<P, layout>;
  const std::int64_t token = blockIdx.x;
  const auto position = static_cast<int>(token % tables.sequence);
  const int lane = threadIdx.x % kLanes;
  const int groups = tables.pairs / X::kCount;
  const T* k_pe = at(a.k_pe, token, 0);
  for (int head = static_cast<int>(threadIdx.x) / kLanes; head < shape.heads; head += kGroups) {
    const T* kv = at(a.kv, token, head);
    T* k = at(a.k, token, head);
    T* q = at(a.q, token, head) + shape.nope;
    copy<P>(kv, lane, shape.nope, k);
    copy<P>(kv + shape.nope, lane, shape.value, at(a.v, token, head));
    // The query's pairs, then the shared key's.
    for (int task = lane; task < 2 * groups; task += kLanes) {
      const bool is_query = task < groups;
      const int g = is_query ? task : task - groups;
      auto pairs = X::load(is_query ? q : k_pe, g, tables.pairs);
      pairs.rotate(tables, position, g, 1.0F);
      pairs.store(is_query ? q : k + shape.nope, g, tables.pairs);
    }
  }
}

template <typename T, typename P, PairLayout layout>
__global__ void __launch_bounds__(kBlock)
    assemble_backward_kernel(RopeShape shape, RopeTables tables, AssembleBackward<T> a) {
  using X = Pairs<P, layout>;
  extern __shared__ float shared[];  // rotary elements of dk [A, P], then their sum [P]
  const std::int64_t token = blockIdx.x;
  const auto position = static_cast<int>(token % tables.sequence);
  const int lane = threadIdx.x % kLanes;
  const int groups = tables.pairs / X::kCount;
  const int rotary = 2 * tables.pairs;
  for (int head = static_cast<int>(threadIdx.x) / kLanes; head < shape.heads; head += kGroups) {
    const T* dk = at(a.dk, token, head);
    T* dkv = at(a.dkv, token, head);
    T* dq = at(a.dq, token, head) + shape.nope;
    for (int i = lane * P::kSize; i < rotary; i += kLanes * P::kSize) {
      const P pack = P::load(dk + shape.nope + i);
#pragma unroll
      for (int j = 0; j < P::kSize; ++j) shared[head * rotary + i + j] = pack.at(j);
    }
    copy<P>(dk, lane, shape.nope, dkv);
    copy<P>(at(a.dv, token, head), lane, shape.value, dkv + shape.nope);
    for (int g = lane; g < groups; g += kLanes) {
      auto pairs = X::load(dq, g, tables.pairs);
      pairs.rotate(tables, position, g, -1.0F);
      pairs.store(dq, g, tables.pairs);
    }
  }
  __syncthreads();
  float* total = shared + shape.heads * rotary;
  for (int i = threadIdx.x; i < rotary; i += kBlock) {
    float sum = 0.0F;
    for (int head = 0; head < shape.heads; ++head) sum += shared[head * rotary + i];
    total[i] = sum;
  }
  __syncthreads();
  // Rotating back is linear: the heads' sum is rotated once, and rounded once.
  for (int pair = threadIdx.x; pair < tables.pairs; pair += kBlock) {
    auto pairs = Pairs<Single<float>, layout>::load(total, pair, tables.pairs);
    pairs.rotate(tables, position, pair, -1.0F);
    const Pairs<Single<T>, layout> rounded{{pairs.first[0]}, {pairs.second[0]}};
    rounded.store(at(a.dk_pe, token, 0), pair, tables.pairs);
  }
}

template <typename T>
bool is_packed(const Heads<T>& x) {
  constexpr auto kBytes = static_cast<std::int64_t>(sizeof(T));
  return gpu::is_packed(x.data, kBytes * x.row_stride) && gpu::is_packed(x.data, kBytes * x.head_stride);
}

/// Are the pieces of a head made of whole packs?
template <typename T>
bool holds_packs(const RopeTables& tables, int nope, int value) {
  constexpr int kSize = Pack<T>::kSize;
  return tables.pairs % kSize == 0 && nope % kSize == 0 && value % kSize == 0 && gpu::is_packed(tables.cos, 0) &&
         gpu::is_packed(tables.sin, 0);
}

template <typename P, PairLayout value>
struct Variant {
  using Packing = P;
  static constexpr PairLayout kLayout = value;
};

/// Calls body(Variant) for how the elements lie.
template <typename T, typename Body>
void with_variant(bool packed, PairLayout layout, const Body& body) {
  const bool halves = layout == PairLayout::kHalves;
  if (packed && halves) return body(Variant<Pack<T>, PairLayout::kHalves>{});
  if (packed) return body(Variant<Pack<T>, PairLayout::kInterleaved>{});
  if (halves) return body(Variant<Single<T>, PairLayout::kHalves>{});
  body(Variant<Single<T>, PairLayout::kInterleaved>{});
}

}  // namespace

template <typename T>
void launch_rope(std::int64_t tokens, int heads, const RopeTables& tables, PairLayout layout, float sign, Heads<T> x,
                 gpu::Stream stream) {
  const std::int64_t rows = tokens * heads;
  if (rows == 0 || tables.pairs == 0) return;
  with_variant<T>(is_packed(x) && holds_packs<T>(tables, 0, 0), layout, [&](auto variant) {
    using V = decltype(variant);
    int lanes = 1;
    while (lanes < kLanes && lanes * Pairs<typename V::Packing, V::kLayout>::kCount < tables.pairs) lanes *= 2;
    const dim3 block(lanes, kBlock / lanes);
    rope_kernel<T, typename V::Packing, V::kLayout>
        <<<blocks_for(rows, block.y), block, 0, stream>>>(rows, heads, tables, sign, x);
  });
  PRIMUS_CUDA_CHECK(gpu::last_error());
}

template <typename T>
void launch_mla_assemble_forward(const RopeShape& shape, const RopeTables& tables, PairLayout layout,
                                 const AssembleForward<T>& tensors, gpu::Stream stream) {
  if (shape.tokens == 0) return;
  const bool packed = is_packed(tensors.kv) && is_packed(tensors.k_pe) && is_packed(tensors.q) &&
                      is_packed(tensors.k) && is_packed(tensors.v) && holds_packs<T>(tables, shape.nope, shape.value);
  with_variant<T>(packed, layout, [&](auto variant) {
    using V = decltype(variant);
    assemble_forward_kernel<T, typename V::Packing, V::kLayout>
        <<<blocks_for(shape.tokens, 1), kBlock, 0, stream>>>(shape, tables, tensors);
  });
  PRIMUS_CUDA_CHECK(gpu::last_error());
}

template <typename T>
void launch_mla_assemble_backward(const RopeShape& shape, const RopeTables& tables, PairLayout layout,
                                  const AssembleBackward<T>& tensors, gpu::Stream stream) {
  if (shape.tokens == 0) return;
  const bool packed = is_packed(tensors.dk) && is_packed(tensors.dv) && is_packed(tensors.dq) &&
                      is_packed(tensors.dkv) && holds_packs<T>(tables, shape.nope, shape.value);
  with_variant<T>(packed, layout, [&](auto variant) {
    using V = decltype(variant);
    const auto kernel = assemble_backward_kernel<T, typename V::Packing, V::kLayout>;
    const std::size_t bytes = sizeof(float) * 2 * tables.pairs * (shape.heads + 1);
    PRIMUS_CUDA_CHECK(gpu::allow_shared(kernel, bytes));
    kernel<<<blocks_for(shape.tokens, 1), kBlock, bytes, stream>>>(shape, tables, tensors);
  });
  PRIMUS_CUDA_CHECK(gpu::last_error());
}

#define PRIMUS_INSTANTIATE(T)                                                                                   \
  template void launch_rope<T>(std::int64_t, int, const RopeTables&, PairLayout, float, Heads<T>, gpu::Stream); \
  template void launch_mla_assemble_forward<T>(const RopeShape&, const RopeTables&, PairLayout,                 \
                                               const AssembleForward<T>&, gpu::Stream);                         \
  template void launch_mla_assemble_backward<T>(const RopeShape&, const RopeTables&, PairLayout,                \
                                                const AssembleBackward<T>&, gpu::Stream);
PRIMUS_INSTANTIATE(float)
PRIMUS_INSTANTIATE(gpu::Bf16)

}  // namespace primus::ops::cuda
