#pragma once
// Counter-based random numbers: the value at an index depends on seed, stream name and index only, never on who draws
// it or in which order, so that every parallel layout starts from the same model (D3, D4).
#include <array>
#include <cstdint>
#include <numbers>
#include <string_view>

namespace primus {

/// FNV-1a, 64 bits: names a stream. Stable across machines and releases (checkpoints depend on it).
constexpr std::uint64_t stream_id(std::string_view name) {
  std::uint64_t hash = 0xcbf29ce484222325ULL;
  for (const char c : name) {
    hash ^= static_cast<unsigned char>(c);
    hash *= 0x100000001b3ULL;
  }
  return hash;
}

/// Philox4x32-10 (Salmon et al., SC'11): 128 random bits for a 64-bit key and a 128-bit counter.
class Philox {
 public:
  /// Generator of one stream: `seed` keys it, `stream` is the upper half of its counter.
  constexpr Philox(std::uint64_t seed, std::uint64_t stream) : seed_(seed), stream_(stream) {}
  constexpr Philox(std::uint64_t seed, std::string_view name) : Philox(seed, stream_id(name)) {}

  /// Four 32-bit words of block `block`.
  constexpr std::array<std::uint32_t, 4> words(std::uint64_t block) const {
    std::array<std::uint32_t, 4> c = {low(block), high(block), low(stream_), high(stream_)};
    std::uint32_t k0 = low(seed_);
    std::uint32_t k1 = high(seed_);
    for (int round = 0; round < 10; ++round) {
      const std::uint64_t p0 = 0xD2511F53ULL * c[0];
      const std::uint64_t p1 = 0xCD9E8D57ULL * c[2];
      c = {high(p1) ^ c[1] ^ k0, low(p1), high(p0) ^ c[3] ^ k1, low(p0)};
      k0 += 0x9E3779B9U;
      k1 += 0xBB67AE85U;
    }
    return c;
  }

  /// Uniform in (0, 1), 32 random bits, of global element `index`.
  constexpr double uniform(std::uint64_t index) const { return unit(words(index / 4)[index % 4]); }

  /// Standard normal of global element `index` (Box-Muller; elements 2i and 2i+1 share a pair of words).
  double normal(std::uint64_t index) const;

  /// The same with the functions of `Math`, for devices that have their own.
  template <typename Math>
  constexpr double normal_with(std::uint64_t index) const {
    const std::array<std::uint32_t, 4> block = words(index / 4);
    const std::size_t pair = (index % 4) / 2 * 2;
    const double radius = Math::sqrt(-2.0 * Math::log(unit(block[pair])));
    const double angle = 2.0 * std::numbers::pi * unit(block[pair + 1]);
    return index % 2 == 0 ? radius * Math::cos(angle) : radius * Math::sin(angle);
  }

 private:
  static constexpr double unit(std::uint32_t word) { return (word + 0.5) * 0x1.0p-32; }
  static constexpr std::uint32_t low(std::uint64_t v) { return static_cast<std::uint32_t>(v); }
  static constexpr std::uint32_t high(std::uint64_t v) { return static_cast<std::uint32_t>(v >> 32); }

  std::uint64_t seed_;
  std::uint64_t stream_;
};

}  // namespace primus
