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

/// Heads that a group of lanes has in flight.
constexpr int kHeads = 2;

/// A group of pairs of one of the heads in flight, first_head + h · kGroups: first a head's query's, then (kinds = 2)
/// the shared key's.
struct RotaryTask {
  int head, g;
  bool is_there, is_query;

  __device__ RotaryTask(int task, int first_head, int groups, int kinds, int heads) {
    const int per_head = kinds * groups;
    const int h = task / per_head;
    const int rest = task - h * per_head;
    head = first_head + h * kGroups;
    is_there = h < kHeads && head < heads;
    is_query = rest < groups;
    g = is_query ? rest : rest - groups;
  }
};

template <typename T, typename P, PairLayout layout>
__global__ void __launch_bounds__(kBlock)
    assemble_forward_kernel(RopeShape shape, RopeTables tables, AssembleForward<T> a) {
  using X = Pairs<P, layout>;
  const std::int64_t token = blockIdx.x;
  const auto position = static_cast<int>(token % tables.sequence);
  const int lane = threadIdx.x % kLanes;
  const int groups = tables.pairs / X::kCount;
  const int width = shape.nope + shape.value;
  const T* k_pe = at(a.k_pe, token, 0);
  for (int first = static_cast<int>(threadIdx.x) / kLanes; first < shape.heads; first += kHeads * kGroups) {
    for (int task = lane; task < kHeads * 2 * groups; task += kLanes) {
      const RotaryTask at_hand(task, first, groups, 2, shape.heads);
      if (!at_hand.is_there) break;
      T* q = at(a.q, token, at_hand.head) + shape.nope;
      auto pairs = X::load(at_hand.is_query ? q : k_pe, at_hand.g, tables.pairs);
      pairs.rotate(tables, position, at_hand.g, 1.0F);
      pairs.store(at_hand.is_query ? q : at(a.k, token, at_hand.head) + shape.nope, at_hand.g, tables.pairs);
    }
    for (int i = lane * P::kSize; i < width; i += kLanes * P::kSize) {
      P pack[kHeads];
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        if (first + h * kGroups < shape.heads) pack[h] = P::load(at(a.kv, token, first + h * kGroups) + i);
      }
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        const int head = first + h * kGroups;
        if (head >= shape.heads) break;
        pack[h].store(i < shape.nope ? at(a.k, token, head) + i : at(a.v, token, head) + (i - shape.nope));
      }
    }
  }
}

/// One pack of dk (from its start) and dv (behind it), of every head of this group of lanes, to its place in dkv; packs
/// of the rotary elements go into `sum`.
template <typename T, typename P>
__device__ void spread_pack(const RopeShape& shape, const AssembleBackward<T>& a, std::int64_t token, int group, int i,
                            int key_width, float (&sum)[P::kSize]) {
  const bool is_value = i >= key_width;
  const bool is_rotary = !is_value && i >= shape.nope;
  const int to = is_value ? i - key_width + shape.nope : i;
  for (int first = group; first < shape.heads; first += kHeads * kGroups) {
    P pack[kHeads];
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      const int head = first + h * kGroups;
      if (head >= shape.heads) break;
      pack[h] = P::load(is_value ? at(a.dv, token, head) + (i - key_width) : at(a.dk, token, head) + i);
    }
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      const int head = first + h * kGroups;
      if (head >= shape.heads) break;
      if (is_rotary) {
#pragma unroll
        for (int j = 0; j < P::kSize; ++j) sum[j] += pack[h].at(j);
      } else {
        pack[h].store(at(a.dkv, token, head) + to);
      }
    }
  }
}

template <typename T, typename P, PairLayout layout>
__global__ void __launch_bounds__(kBlock)
    assemble_backward_kernel(RopeShape shape, RopeTables tables, AssembleBackward<T> a) {
  using X = Pairs<P, layout>;
  using One = Pairs<Single<float>, layout>;
  extern __shared__ float sums[];  // [kGroups, P]: of the shared key's gradient, by groups of lanes
  const std::int64_t token = blockIdx.x;
  const auto position = static_cast<int>(token % tables.sequence);
  const int lane = threadIdx.x % kLanes;
  const int group = threadIdx.x / kLanes;
  const int groups = tables.pairs / X::kCount;
  const int rotary = 2 * tables.pairs;
  const int key_width = shape.nope + rotary;
  for (int i = lane * P::kSize; i < key_width + shape.value; i += kLanes * P::kSize) {
    float sum[P::kSize] = {};
    spread_pack<T, P>(shape, a, token, group, i, key_width, sum);
    if (i < shape.nope || i >= key_width) continue;
#pragma unroll
    for (int j = 0; j < P::kSize; ++j) sums[group * rotary + i - shape.nope + j] = sum[j];
  }
  for (int first = group; first < shape.heads; first += kHeads * kGroups) {
    for (int task = lane; task < kHeads * groups; task += kLanes) {
      const RotaryTask at_hand(task, first, groups, 1, shape.heads);
      if (!at_hand.is_there) break;
      T* dq = at(a.dq, token, at_hand.head) + shape.nope;
      auto pairs = X::load(dq, at_hand.g, tables.pairs);
      pairs.rotate(tables, position, at_hand.g, -1.0F);
      pairs.store(dq, at_hand.g, tables.pairs);
    }
  }
  __syncthreads();
  // Rotating back is linear: the heads' sum is rotated once, and rounded once.
  for (int pair = threadIdx.x; pair < tables.pairs; pair += kBlock) {
    One total{{0.0F}, {0.0F}};
    for (int g = 0; g < kGroups; ++g) {
      const auto part = One::load(sums + g * rotary, pair, tables.pairs);
      total.first[0] += part.first[0];
      total.second[0] += part.second[0];
    }
    total.rotate(tables, position, pair, -1.0F);
    const Pairs<Single<T>, layout> rounded{{total.first[0]}, {total.second[0]}};
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
    const std::size_t bytes = sizeof(float) * 2 * tables.pairs * kGroups;
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
