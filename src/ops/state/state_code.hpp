#pragma once
// How one value of optimizer state becomes few bits and comes back (state.hpp says why): shared by host and device.
#include <bit>
#include <cstdint>

#include "ops/gpu/host_device.hpp"

namespace primus::ops {

/// kRoot: the square root is what is stored, for values that are never negative and span many powers of ten; one that
/// is not 0 never becomes 0.
enum class StateForm { kPlain, kRoot };

/// A type with fewer bits than fp32, by the width of its fraction and the bias of its exponent.
template <typename CodeType, int kFraction, int kBias, std::uint32_t kLargestCode>
struct StateCode {
  using Code = CodeType;
  static constexpr int kDropped = 23 - kFraction;  // bits of an fp32 fraction that it lacks
  static constexpr std::uint32_t kRebias = static_cast<std::uint32_t>(127 - kBias) << kFraction;
  static constexpr std::uint32_t kSign = 1U << (8 * sizeof(Code) - 1);
  static constexpr std::uint32_t kSmallestNormal = static_cast<std::uint32_t>(128 - kBias) << 23U;  // fp32 bits
  /// Step of the numbers below the smallest normal one, and its inverse: powers of two.
  static constexpr float kStep = std::bit_cast<float>(static_cast<std::uint32_t>(128 - kBias - kFraction) << 23U);
  static constexpr float kStepsInOne = std::bit_cast<float>(static_cast<std::uint32_t>(126 + kBias + kFraction) << 23U);

  /// Of a code without its sign.
  PRIMUS_HOST_DEVICE static float magnitude(std::uint32_t code) {
    const float subnormal = static_cast<float>(code) * kStep;
    const float normal = std::bit_cast<float>((code + kRebias) << kDropped);
    return code >> kFraction == 0 ? subnormal : normal;
  }

  PRIMUS_HOST_DEVICE static constexpr float largest() {
    return std::bit_cast<float>((kLargestCode + kRebias) << kDropped);
  }

  /// `x` >= 0, rounded to one of its two neighbours by 32 random bits. Codes of normal and subnormal numbers follow on
  /// each other.
  PRIMUS_HOST_DEVICE static std::uint32_t code_of(float x, std::uint32_t random) {
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
    const std::uint32_t chance = random >> (32 - kDropped);
    const std::uint32_t normal = ((bits + chance) >> kDropped) - kRebias;
    const float steps = x * kStepsInOne + static_cast<float>(random >> 8U) * 0x1p-24F;
    const std::uint32_t code = bits < kSmallestNormal ? static_cast<std::uint32_t>(steps) : normal;
    return code < kLargestCode ? code : kLargestCode;
  }

  PRIMUS_HOST_DEVICE static float load(std::uint32_t code, float scale, StateForm form) {
    const float size = magnitude(code & (kSign - 1)) * scale;
    const float value = (code & kSign) != 0 ? -size : size;
    return form == StateForm::kRoot ? value * value : value;
  }

  /// `x`: what is stored (of kRoot, the root), times `inverse`, the block's 1 / scale.
  PRIMUS_HOST_DEVICE static std::uint32_t store(float x, float inverse, std::uint32_t random, StateForm form) {
    const float size = x < 0.0F ? -x : x;
    const std::uint32_t code = code_of(size * inverse, random);
    const bool is_lost = form == StateForm::kRoot && x > 0.0F && code == 0;
    return (is_lost ? 1U : code) | (x < 0.0F ? kSign : 0U);
  }

  /// The block's scale by its largest magnitude: the smallest power of two that lets it in. Scaling rounds nothing.
  PRIMUS_HOST_DEVICE static float scale_of(float largest_magnitude) {
    const float ratio = largest_magnitude / largest();
    return std::bit_cast<float>((std::bit_cast<std::uint32_t>(ratio) + 0x7FFFFFU) & 0x7F800000U);
  }
};
using E4m3Code = StateCode<std::uint8_t, 3, 7, 0x7E>;       // largest 448; 0x7F is NaN
using HalfCode = StateCode<std::uint16_t, 10, 15, 0x7BFF>;  // largest 65504

/// bf16 by its bits, rounded by chance.
PRIMUS_HOST_DEVICE inline std::uint16_t bf16_code(float x, std::uint32_t random) {
  return static_cast<std::uint16_t>((std::bit_cast<std::uint32_t>(x) + (random >> 16U)) >> 16U);
}
PRIMUS_HOST_DEVICE inline float bf16_value(std::uint16_t code) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(code) << 16U);
}

/// The key that step `num_steps` rounds state number `which` of a parameter by.
PRIMUS_HOST_DEVICE inline std::uint64_t rounding_key(std::uint64_t parameter_key, std::int64_t num_steps, int which) {
  return parameter_key +
         (static_cast<std::uint64_t>(num_steps) * 3U + static_cast<std::uint64_t>(which)) * 0xD1342543DE82EF95ULL;
}

/// Random bits of elements that share the upper 32 bits of their index: a hash in 32-bit steps, which is what vectors
/// and GPUs multiply fast.
struct RoundingStream {
  std::uint32_t first, second;

  PRIMUS_HOST_DEVICE static RoundingStream of(std::uint64_t key, std::int64_t index) {
    const std::uint64_t own = (key ^ (static_cast<std::uint64_t>(index) >> 32U)) * 0x9E3779B97F4A7C15ULL;
    return {static_cast<std::uint32_t>(own >> 32U), static_cast<std::uint32_t>(own)};
  }

  PRIMUS_HOST_DEVICE std::uint32_t bits(std::uint32_t low_index) const {
    std::uint32_t x = low_index ^ first;
    x = (x ^ (x >> 16U)) * 0x7FEB352DU;
    x = (x ^ (x >> 15U)) * 0x846CA68BU;
    x = (x ^ (x >> 16U)) + second;
    x = (x ^ (x >> 15U)) * 0x9E3779B1U;
    return x ^ (x >> 16U);
  }
};

}  // namespace primus::ops
