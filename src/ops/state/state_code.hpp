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
  static constexpr std::uint32_t kFirstNormal = 1U << kFraction;                                  // as a code
  static constexpr std::uint32_t kSmallestBits = static_cast<std::uint32_t>(128 - kBias) << 23U;  // its value, as fp32
  static constexpr float kSmallest = std::bit_cast<float>(kSmallestBits);
  static constexpr int kSignShift = 32 - 8 * static_cast<int>(sizeof(Code));
  /// From this type's exponent bias to fp32's, and back.
  static constexpr float kBiasUp = std::bit_cast<float>(static_cast<std::uint32_t>(127 + 127 - kBias) << 23U);
  static constexpr float kBiasDown = std::bit_cast<float>(static_cast<std::uint32_t>(kBias) << 23U);
  static constexpr std::uint32_t kLargestBits = (kLargestCode + kRebias) << kDropped;

  /// Of a code without its sign: what the code is as the upper bits of an fp32 number, with another exponent's bias.
  PRIMUS_HOST_DEVICE static float magnitude(std::uint32_t code) {
#ifdef PRIMUS_DEVICE_PASS
    return std::bit_cast<float>(code << kDropped) * kBiasUp;
#else
    // The same without a subnormal fp32 number, which a processor may take for zero. Below the smallest normal number
    // codes are steps; with that number added a step is a unit of its fraction, and the difference is exact.
    const bool is_small = code < kFirstNormal;
    const std::uint32_t normal = code + kRebias + (is_small ? kFirstNormal : 0U);
    return std::bit_cast<float>(normal << kDropped) - (is_small ? kSmallest : 0.0F);
#endif
  }

  /// 0 <= `x` <= largest(), rounded to one of its two neighbours by 32 random bits: a carry into the bits that stay.
  PRIMUS_HOST_DEVICE static std::uint32_t code_of(float x, std::uint32_t random) {
    const std::uint32_t chance = random >> (32 - kDropped);
#ifdef PRIMUS_DEVICE_PASS
    return (std::bit_cast<std::uint32_t>(x * kBiasDown) + chance) >> kDropped;
#else
    // As above; the sum of a small number and the smallest normal one is rounded where the subnormal one would be.
    const bool is_small = std::bit_cast<std::uint32_t>(x) < kSmallestBits;
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(x + (is_small ? kSmallest : 0.0F));
    return ((bits + chance) >> kDropped) - kRebias - (is_small ? kFirstNormal : 0U);
#endif
  }

  PRIMUS_HOST_DEVICE static constexpr float largest() {
    return std::bit_cast<float>(kLargestBits);
  }

  PRIMUS_HOST_DEVICE static float load(std::uint32_t code, float scale, StateForm form) {
    const float size = magnitude(code & (kSign - 1)) * scale;
    if (form == StateForm::kRoot) return size * size;
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(size) | (code & kSign) << kSignShift);
  }

  /// `x`: what is stored (of kRoot, the root), times `inverse`, the block's 1 / scale.
  PRIMUS_HOST_DEVICE static std::uint32_t store(float x, float inverse, std::uint32_t random, StateForm form) {
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
    const std::uint32_t code = code_of(std::bit_cast<float>(bits & 0x7FFFFFFFU) * inverse, random);
    if (form == StateForm::kRoot) return code == 0 && bits != 0 ? 1U : code;
    return code | (bits >> kSignShift & kSign);
  }

  /// The block's scale by its largest magnitude: the smallest power of two that lets it in, 0 for a block of zeros.
  /// Scaling rounds nothing.
  PRIMUS_HOST_DEVICE static float scale_of(float largest_magnitude) {
    constexpr std::uint32_t kFractionBits = 0x7FFFFFU;
    constexpr std::uint32_t kExponent = (kLargestBits & ~kFractionBits) - (127U << 23U);
    // A fraction above the largest number's carries into the exponent.
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(largest_magnitude);
    const std::uint32_t power = (bits + (kFractionBits - (kLargestBits & kFractionBits))) & ~kFractionBits;
    const std::uint32_t scale = power > kExponent + kTiny ? power - kExponent : kTiny;
    return bits == 0 ? 0.0F : std::bit_cast<float>(scale);
  }

  /// 1 / scale, exactly; 0 for 0.
  PRIMUS_HOST_DEVICE static float inverse_of(float scale) {
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(scale);
    return bits == 0 ? 0.0F : std::bit_cast<float>((254U << 23U) - bits);
  }

 private:
  static constexpr std::uint32_t kTiny = 1U << 23U;  // 2^-126
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

/// Keys the rounding of one tensor's state in one step; `which` of its states it is (0 to 2).
struct Rounding {
  std::uint64_t key = 0;
  int which = 0;
};

/// Of step `num_steps` of a parameter.
PRIMUS_HOST_DEVICE inline Rounding rounding_of(std::uint64_t parameter_key, std::int64_t num_steps, int which) {
  return {parameter_key + static_cast<std::uint64_t>(num_steps) * 0xD1342543DE82EF95ULL, which};
}

/// Random bits of elements that share the upper 32 bits of their index: a hash in 32-bit steps, which is what vectors
/// and GPUs multiply fast. One hash serves all states of an element: two take its halves first, the third a multiple.
class RoundingStream {
 public:
  PRIMUS_HOST_DEVICE RoundingStream(Rounding rounding, std::int64_t index) : which_(rounding.which) {
    const std::uint64_t own = (rounding.key ^ (static_cast<std::uint64_t>(index) >> 32U)) * 0x9E3779B97F4A7C15ULL;
    first_ = static_cast<std::uint32_t>(own >> 32U);
    second_ = static_cast<std::uint32_t>(own);
  }

  PRIMUS_HOST_DEVICE std::uint32_t bits(std::uint32_t low_index) const {
    std::uint32_t x = low_index ^ first_;
    x = (x ^ (x >> 16U)) * 0x7FEB352DU;
    x = (x ^ (x >> 15U)) * 0x846CA68BU + second_;
    x = (x ^ (x >> 16U)) * 0x9E3779B1U;
    if (which_ == 0) return x;
    return which_ == 1 ? (x << 16U | x >> 16U) : x * 0x85EBCA6BU;
  }

 private:
  std::uint32_t first_ = 0;
  std::uint32_t second_ = 0;
  int which_;
};

}  // namespace primus::ops
