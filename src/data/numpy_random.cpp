#include "data/numpy_random.hpp"

#include <array>
#include <bit>

#include "base/error.hpp"

namespace primus::data {
namespace {

/// numpy.random.SeedSequence for a 64-bit seed: eight 32-bit words, well mixed even for small seeds.
std::array<std::uint32_t, 8> seed_words(std::uint64_t seed) {
  constexpr std::uint32_t kInitA = 0x43b0d7e5U, kMultA = 0x931e8875U, kInitB = 0x8b51f9ddU, kMultB = 0x58f38dedU;
  constexpr std::uint32_t kMixL = 0xca01f9ddU, kMixR = 0x4973f715U;

  std::uint32_t constant = kInitA;
  const auto hash = [&constant](std::uint32_t value, std::uint32_t multiplier) {
    value ^= constant;
    constant *= multiplier;
    value *= constant;
    return value ^ (value >> 16);
  };

  std::array<std::uint32_t, 4> pool = {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32), 0, 0};
  for (std::uint32_t& word : pool) word = hash(word, kMultA);
  for (std::size_t source = 0; source < pool.size(); ++source) {
    for (std::size_t target = 0; target < pool.size(); ++target) {
      if (source == target) continue;
      const std::uint32_t mixed = kMixL * pool[target] - kMixR * hash(pool[source], kMultA);
      pool[target] = mixed ^ (mixed >> 16);
    }
  }

  constant = kInitB;
  std::array<std::uint32_t, 8> words{};
  for (std::size_t i = 0; i < words.size(); ++i) words[i] = hash(pool[i % pool.size()], kMultB);
  return words;
}

}  // namespace

std::uint64_t NumpyRandomState::interval(std::uint64_t max) {
  if (max == 0) return 0;
  const std::uint64_t mask = ~std::uint64_t{0} >> std::countl_zero(max);
  while (true) {
    std::uint64_t word = next();
    if (max > 0xffffffffULL) word = word << 32 | next();
    if ((word & mask) <= max) return word & mask;
  }
}

NumpyGenerator::NumpyGenerator(std::uint64_t seed) {
  const std::array<std::uint32_t, 8> words = seed_words(seed);
  const auto wide = [&words](std::size_t high, std::size_t low) {
    const std::uint64_t upper = std::uint64_t{words[2 * high + 1]} << 32 | words[2 * high];
    const std::uint64_t lower = std::uint64_t{words[2 * low + 1]} << 32 | words[2 * low];
    return Word{upper} << 64 | lower;
  };
  increment_ = wide(2, 3) << 1 | 1;
  step();
  state_ += wide(0, 1);
  step();
}

void NumpyGenerator::step() {
  constexpr Word kMultiplier = Word{2549297995355413924ULL} << 64 | 4865540595714422341ULL;
  state_ = state_ * kMultiplier + increment_;
}

std::uint64_t NumpyGenerator::next64() {
  step();
  const auto high = static_cast<std::uint64_t>(state_ >> 64);
  const auto low = static_cast<std::uint64_t>(state_);
  return std::rotr(high ^ low, static_cast<int>(high >> 58));
}

std::uint32_t NumpyGenerator::next32() {
  if (buffer_ == Buffer::kHoldsUpperHalf) {
    buffer_ = Buffer::kEmpty;
    return upper_half_;
  }
  const std::uint64_t word = next64();
  upper_half_ = static_cast<std::uint32_t>(word >> 32);
  buffer_ = Buffer::kHoldsUpperHalf;
  return static_cast<std::uint32_t>(word);
}

std::int32_t NumpyGenerator::integer32(std::int32_t low, std::int32_t high) {
  PRIMUS_CHECK(low < high, "{} {}", low, high);
  const auto range = static_cast<std::uint32_t>(static_cast<std::int64_t>(high) - low);
  std::uint64_t product = std::uint64_t{next32()} * range;
  if (static_cast<std::uint32_t>(product) < range) {
    const std::uint32_t threshold = (0U - range) % range;
    while (static_cast<std::uint32_t>(product) < threshold) product = std::uint64_t{next32()} * range;
  }
  return static_cast<std::int32_t>(low + static_cast<std::int64_t>(product >> 32));
}

}  // namespace primus::data
