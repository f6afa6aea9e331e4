#include "checkpoint/convert.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/error.hpp"
#include "checkpoint/element_type.hpp"

namespace primus::checkpoint {
namespace {

template <int kExponentBits, int kMantissaBits>
struct Small {
  static constexpr int kBias = (1 << (kExponentBits - 1)) - 1;
  static constexpr std::uint64_t kInfinity = ((std::uint64_t{1} << kExponentBits) - 1) << kMantissaBits;

  /// Rounded from fp64, in which every value of the other types is exact: one rounding, whatever the source.
  static std::uint16_t from(double value) {
    const auto bits = std::bit_cast<std::uint64_t>(value);
    const auto sign = static_cast<std::uint16_t>(bits >> 63 << (kExponentBits + kMantissaBits));
    if (std::isnan(value)) return static_cast<std::uint16_t>(sign | kInfinity | (1U << (kMantissaBits - 1)));
    if (std::isinf(value)) return static_cast<std::uint16_t>(sign | kInfinity);
    const double magnitude = std::fabs(value);
    int exponent = 0;
    std::frexp(magnitude, &exponent);
    // Below the smallest normal number the spacing stays that of the smallest exponent.
    const int lowest = 1 - kBias;
    const int used = std::max(exponent - 1, lowest);
    const double scaled = std::ldexp(magnitude, kMantissaBits - used);
    const auto rounded = static_cast<std::uint64_t>(std::nearbyint(scaled));  // ties to even, the default mode
    const std::uint64_t hidden = std::uint64_t{1} << kMantissaBits;
    if (rounded < hidden) return static_cast<std::uint16_t>(sign | rounded);  // subnormal or zero
    // A mantissa rounded up to the next power of two carries into the exponent by itself.
    const std::uint64_t result = (static_cast<std::uint64_t>(used + kBias) << kMantissaBits) + (rounded - hidden);
    return static_cast<std::uint16_t>(sign | std::min(result, kInfinity));
  }

  static double to(std::uint16_t stored) {
    const int sign = stored >> (kExponentBits + kMantissaBits);
    const int exponent = (stored >> kMantissaBits) & ((1 << kExponentBits) - 1);
    const int mantissa = stored & ((1 << kMantissaBits) - 1);
    double magnitude = 0.0;
    if (exponent == (1 << kExponentBits) - 1) {
      magnitude = mantissa != 0 ? std::nan("") : HUGE_VAL;
    } else if (exponent == 0) {
      magnitude = std::ldexp(mantissa, 1 - kBias - kMantissaBits);
    } else {
      magnitude = std::ldexp((1 << kMantissaBits) + mantissa, exponent - kBias - kMantissaBits);
    }
    return sign != 0 ? -magnitude : magnitude;
  }
};

using Half = Small<5, 10>;
using Brain = Small<8, 7>;

template <typename T>
T load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

double load_as(DType type, const std::byte* at) {
  switch (type) {
    case DType::kFloat64:
      return load<double>(at);
    case DType::kFloat32:
      return load<float>(at);
    case DType::kFloat16:
      return Half::to(load<std::uint16_t>(at));
    default:
      return std::bit_cast<float>(static_cast<std::uint32_t>(load<std::uint16_t>(at)) << 16);  // bf16
  }
}

template <typename T>
void store(T value, std::byte* at) {
  std::memcpy(at, &value, sizeof value);
}

void store_as(DType type, double value, std::byte* at) {
  switch (type) {
    case DType::kFloat64:
      store(value, at);
      return;
    case DType::kFloat32:
      store(static_cast<float>(value), at);
      return;
    case DType::kFloat16:
      store(Half::from(value), at);
      return;
    default:
      store(Brain::from(value), at);
      return;
  }
}

// The two conversions that whole checkpoints go through.
void widen_bfloat16(std::span<const std::byte> in, std::span<std::byte> out) {
  for (std::size_t i = 0; i < in.size() / 2; ++i) {
    store(static_cast<std::uint32_t>(load<std::uint16_t>(in.data() + 2 * i)) << 16, out.data() + 4 * i);
  }
}

std::int64_t narrow_to_bfloat16(std::span<const std::byte> in, std::span<std::byte> out) {
  std::int64_t num_overflowed = 0;
  for (std::size_t i = 0; i < in.size() / 4; ++i) {
    const auto bits = load<std::uint32_t>(in.data() + 4 * i);
    const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
    const bool is_nan = magnitude > 0x7F800000U;
    const std::uint32_t rounded = is_nan ? bits | 0x400000U : bits + 0x7FFFU + ((bits >> 16) & 1U);
    num_overflowed += magnitude < 0x7F800000U && (rounded & 0x7FFFFFFFU) >= 0x7F800000U ? 1 : 0;
    store(static_cast<std::uint16_t>(rounded >> 16), out.data() + 2 * i);
  }
  return num_overflowed;
}

}  // namespace

Converted convert(DType from, std::span<const std::byte> in, DType to, std::span<std::byte> out) {
  const auto count = static_cast<std::int64_t>(in.size()) / size_bytes(from);
  PRIMUS_CHECK(static_cast<std::int64_t>(out.size()) == count * size_bytes(to), "{} elements into {} bytes", count,
               out.size());
  if (from == to) {
    if (!in.empty()) std::memcpy(out.data(), in.data(), in.size());
    return {};
  }
  PRIMUS_CHECK(is_floating(from) && is_floating(to), "{} to {}", primus::name(from), primus::name(to));
  if (from == DType::kBFloat16 && to == DType::kFloat32) {
    widen_bfloat16(in, out);
    return {};
  }
  if (from == DType::kFloat32 && to == DType::kBFloat16) return {narrow_to_bfloat16(in, out)};
  Converted converted;
  for (std::int64_t i = 0; i < count; ++i) {
    const double value = load_as(from, in.data() + i * size_bytes(from));
    std::byte* place = out.data() + i * size_bytes(to);
    store_as(to, value, place);
    if (std::isfinite(value) && !std::isfinite(load_as(to, place))) ++converted.num_overflowed;
  }
  return converted;
}

}  // namespace primus::checkpoint
