#pragma once
// Elementary functions without branches or calls, so that the compiler vectorises loops over them. It does so reliably
// in functions that take plain pointers; a pointer captured by a lambda can keep it from doing so.
// std::fma, not a·b + c: the compiler's own contraction may differ between a vector body and its scalar tail, and a
// recomputed value must equal the first one bit for bit.
#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "ops/dtype.hpp"

namespace primus::ops {

/// exp(x), at most 2 ulp off (measured: 1.01) where the result is a normal number, gradual underflow below; 0 for −inf,
/// inf from 88.73 on, NaN for NaN.
[[gnu::always_inline]] inline float fast_exp(float x) {
  // exp(x) = 2^n · exp(r) with n = round(x / ln 2) and |r| <= ln 2 / 2. Outside the clamp the result is 0 or inf
  // anyway; a NaN passes through, because both comparisons are false.
  constexpr float kLowest = -104.5F;
  constexpr float kHighest = 89.0F;
  x = x < kLowest ? kLowest : x;
  x = x > kHighest ? kHighest : x;
  constexpr float kInverseLn2 = 1.44269504088896341F;
  constexpr float kRoundToInteger = 12582912.0F;  // 1.5 · 2^23: adding it leaves the integer in the lowest bits
  const float shifted = std::fma(x, kInverseLn2, kRoundToInteger);
  const float n = shifted - kRoundToInteger;
  constexpr float kLn2High = 0.693359375F;  // few bits: n · kLn2High is exact
  constexpr float kLn2Low = -2.12194440e-4F;
  const float r = std::fma(n, -kLn2Low, std::fma(n, -kLn2High, x));
  // Minimax polynomial for (exp(r) − 1 − r) / r² (Cephes, expf).
  float p = 1.9875691500e-4F;
  p = std::fma(p, r, 1.3981999507e-3F);
  p = std::fma(p, r, 8.3334519073e-3F);
  p = std::fma(p, r, 4.1665795894e-2F);
  p = std::fma(p, r, 1.6666665459e-1F);
  p = std::fma(p, r, 5.0000001201e-1F);
  p = std::fma(p, r * r, r) + 1.0F;
  // 2^n in two factors: n = 128 has no exponent of its own, and neither have the powers of subnormal results.
  const std::int32_t exponent = std::bit_cast<std::int32_t>(shifted) - std::bit_cast<std::int32_t>(kRoundToInteger);
  const std::int32_t half = exponent >> 1;
  const auto power_of_two = [](std::int32_t e) {
    return std::bit_cast<float>((static_cast<std::uint32_t>(e) + 127U) << 23U);
  };
  return p * power_of_two(half) * power_of_two(exponent - half);
}

[[gnu::always_inline]] inline double fast_exp(double x) {
  return std::exp(x);
}

/// 1 / (1 + exp(−x)).
template <typename T>
[[gnu::always_inline]] inline T fast_sigmoid(T x) {
  return T(1) / (T(1) + fast_exp(-x));
}

/// tanh(x), at most 4 ulp off; ±1 for ±inf, NaN for NaN.
[[gnu::always_inline]] inline float fast_tanh(float x) {
  const float magnitude = std::fabs(x);
  // Near zero 1 − 2 / (exp(2|x|) + 1) would cancel: there a minimax polynomial (Cephes, tanhf).
  constexpr float kSmall = 0.625F;
  const float square = x * x;
  float p = -5.70498872745e-3F;
  p = std::fma(p, square, 2.06390887954e-2F);
  p = std::fma(p, square, -5.37397155531e-2F);
  p = std::fma(p, square, 1.33314422036e-1F);
  p = std::fma(p, square, -3.33332819422e-1F);
  const float small = std::fma(p * square, x, x);
  const float large = std::copysign(1.0F - 2.0F / (fast_exp(2.0F * magnitude) + 1.0F), x);
  return magnitude < kSmall ? small : large;
}

[[gnu::always_inline]] inline double fast_tanh(double x) {
  return std::tanh(x);
}

/// `value` in its storage type: at::BFloat16's own rounding (to nearest even, NaN to 0x7FC0), which has a branch.
template <typename T>
[[gnu::always_inline]] inline T to_storage(acc_t<T> value) {
  if constexpr (std::is_same_v<T, at::BFloat16>) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t rounded = (bits + 0x7FFFU + ((bits >> 16U) & 1U)) >> 16U;
    return {static_cast<std::uint16_t>(value != value ? 0x7FC0U : rounded), at::BFloat16::from_bits()};
  } else {
    return static_cast<T>(value);
  }
}

}  // namespace primus::ops
