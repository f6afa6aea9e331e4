#pragma once
// Building blocks of kernels: 16-byte packs of elements, fp32 conversion, sums over neighbouring lanes, lane votes.
#include "ops/gpu/runtime.hpp"
#include "ops/gpu/types.hpp"

namespace primus::gpu {

/// 2^x by the hardware's own instruction; results below 2^-126 become 0.
__device__ inline float fast_exp2(float x) {
#if defined(__HIP__)
  return __builtin_amdgcn_exp2f(x);
#else
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#endif
}

// --- elements
// ---------------------------------------------------------------------------------------------------------

__device__ inline float as_float(std::uint32_t bits) {
  return __uint_as_float(bits);
}
__device__ inline std::uint32_t as_bits(float value) {
  return __float_as_uint(value);
}

__device__ inline float to_float(float value) {
  return value;
}
__device__ inline float to_float(Bf16 value) {
  return as_float(static_cast<std::uint32_t>(value.bits) << 16U);
}

/// Two fp32 values rounded to nearest even as bf16: `low` in the lower half.
__device__ inline std::uint32_t round_pair(float low, float high) {
#if defined(__HIP__)
  const auto round = [](float value) {
    const std::uint32_t bits = as_bits(value);
    return value != value ? 0x7FC0U : (bits + 0x7FFFU + ((bits >> 16U) & 1U)) >> 16U;
  };
  return round(low) | (round(high) << 16U);
#else
  std::uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
#endif
}

template <typename T>
__device__ T from_float(float value);
template <>
__device__ inline float from_float<float>(float value) {
  return value;
}
template <>
__device__ inline Bf16 from_float<Bf16>(float value) {
  return {static_cast<std::uint16_t>(round_pair(value, 0.0F))};
}

// --- packs
// ------------------------------------------------------------------------------------------------------------

/// 16 bytes of T: what one thread loads or stores at a time. Addresses are multiples of 16 bytes.
template <typename T>
struct Pack {
  static constexpr int kSize = 16 / static_cast<int>(sizeof(T));
  std::uint32_t word[4];

  __device__ static Pack load(const T* from) {
    const uint4 words = *reinterpret_cast<const uint4*>(from);
    return {{words.x, words.y, words.z, words.w}};
  }
  __device__ static Pack zero() { return {{0U, 0U, 0U, 0U}}; }
  __device__ void store(T* to) const { *reinterpret_cast<uint4*>(to) = make_uint4(word[0], word[1], word[2], word[3]); }

  /// Element i (a constant after unrolling) in fp32.
  __device__ float at(int i) const {
    if constexpr (sizeof(T) == 4) {
      return as_float(word[i]);
    } else {
      return as_float(i % 2 == 0 ? word[i / 2] << 16U : word[i / 2] & 0xFFFF0000U);
    }
  }
  /// Rounds kSize fp32 values.
  __device__ static Pack from(const float (&value)[kSize]) {
    Pack pack;
    for (int w = 0; w < 4; ++w) {
      if constexpr (sizeof(T) == 4) {
        pack.word[w] = as_bits(value[w]);
      } else {
        pack.word[w] = round_pair(value[2 * w], value[2 * w + 1]);
      }
    }
    return pack;
  }
};

/// One element with the interface of a pack: what kernels use where rows are not multiples of 16 bytes.
template <typename T>
struct Single {
  static constexpr int kSize = 1;
  T value;

  __device__ static Single load(const T* from) { return {*from}; }
  __device__ void store(T* to) const { *to = value; }
  __device__ float at(int) const { return to_float(value); }
  __device__ static Single from(const float (&rounded)[1]) { return {from_float<T>(rounded[0])}; }
};

/// Is an address (with the row length or stride beside it, in bytes) made for 16-byte packs?
inline bool is_packed(const void* data, std::int64_t bytes) {
  return (reinterpret_cast<std::uintptr_t>(data) | static_cast<std::uintptr_t>(bytes)) % 16 == 0;
}

/// Blocks that hold `items`, `per_block` each.
inline unsigned blocks_for(std::int64_t items, std::int64_t per_block) {
  return static_cast<unsigned>((items + per_block - 1) / per_block);
}

// --- lanes
// ------------------------------------------------------------------------------------------------------------

/// `value` of the lane whose number differs by `distance` within groups of kLanes neighbours (a power of two up to 32).
template <int kLanes, typename V>
__device__ V exchange(V value, int distance) {
  static_assert(kLanes <= 32, "groups must fit into every wavefront");
#if defined(__HIP__)
  return __shfl_xor(value, distance, kLanes);
#else
  return __shfl_xor_sync(0xFFFFFFFFU, value, distance, kLanes);
#endif
}

/// Sum over kLanes neighbours, the same bits in every lane. All lanes of the wavefront call it.
template <int kLanes, typename V>
__device__ V lane_sum(V value) {
  for (int distance = kLanes / 2; distance > 0; distance /= 2) value += exchange<kLanes>(value, distance);
  return value;
}

template <int kLanes, typename V>
__device__ V lane_max(V value) {
  for (int distance = kLanes / 2; distance > 0; distance /= 2) {
    const V other = exchange<kLanes>(value, distance);
    value = other > value ? other : value;
  }
  return value;
}

/// Sum of this lane's value and those of the lanes before it, among 32 neighbours.
template <typename V>
__device__ V lane_prefix_sum(V value) {
  const int lane = threadIdx.x % 32;
  for (int distance = 1; distance < 32; distance *= 2) {
#if defined(__HIP__)
    const V before = __shfl_up(value, distance, 32);
#else
    const V before = __shfl_up_sync(0xFFFFFFFFU, value, distance, 32);
#endif
    if (lane >= distance) value += before;
  }
  return value;
}

/// One bit a lane of the wavefront, by a predicate. All lanes call it.
__device__ inline LaneMask vote(int predicate) {
#if defined(__HIP__)
  return __ballot(predicate);
#else
  return __ballot_sync(0xFFFFFFFFU, predicate);
#endif
}
__device__ inline int count_bits(std::uint32_t mask) {
  return __popc(mask);
}
__device__ inline int count_bits(std::uint64_t mask) {
  return __popcll(mask);
}
/// Lanes below this one.
__device__ inline LaneMask lanes_below(int lane) {
  return (LaneMask{1} << lane) - 1;
}
/// What lanes of a wavefront wrote to shared memory is seen by its other lanes afterwards.
__device__ inline void wave_sync() {
#if defined(__HIP__)
  __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "wavefront");
  __builtin_amdgcn_wave_barrier();
#else
  __syncwarp();
#endif
}

/// Sum over the kThreads neighbouring threads that share a row, the same bits in each: lanes only, or through `scratch`
/// (blockDim.x / 32 floats of shared memory, free again after the block's next barrier) and a barrier of the block.
template <int kThreads>
__device__ float row_sum(float value, float* scratch) {
  if constexpr (kThreads <= 32) {
    return lane_sum<kThreads>(value);
  } else {
    value = lane_sum<32>(value);
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = value;
    __syncthreads();
    float sum = 0.0F;
    const float* own = scratch + threadIdx.x / kThreads * (kThreads / 32);
    for (int i = 0; i < kThreads / 32; ++i) sum += own[i];
    return sum;
  }
}

/// An impossible value: end the kernel with an error that the next call of the runtime reports.
[[noreturn]] __device__ inline void trap() {
#if defined(__HIP__)
  __builtin_trap();
#else
  __trap();
  __builtin_unreachable();
#endif
}

}  // namespace primus::gpu
