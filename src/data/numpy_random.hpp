#pragma once
// The two NumPy generators that Megatron's data order hangs on, bit for bit.
#include <cstdint>
#include <random>
#include <span>
#include <utility>

namespace primus::data {

/// numpy.random.RandomState: the legacy Mersenne Twister stream and its shuffle.
class NumpyRandomState {
 public:
  explicit NumpyRandomState(std::uint32_t seed) : engine_(seed) {}

  /// Uniform in [0, max]: draws are masked to the bits of `max` and rejected when above it.
  std::uint64_t interval(std::uint64_t max);

  /// Fisher-Yates from the end, as ndarray.shuffle.
  template <typename T>
  void shuffle(std::span<T> values) {
    for (std::size_t i = values.size(); i-- > 1;) std::swap(values[i], values[interval(i)]);
  }

 private:
  std::uint32_t next() { return static_cast<std::uint32_t>(engine_()); }

  std::mt19937 engine_;
};

/// numpy.random.default_rng: PCG64 (XSL-RR) seeded through SeedSequence.
class NumpyGenerator {
 public:
  explicit NumpyGenerator(std::uint64_t seed);

  std::uint64_t next64();
  /// The lower half of a 64-bit draw, then its upper half.
  std::uint32_t next32();
  /// Uniform in [low, high): integers(low, high, dtype=int32), Lemire's multiplication with rejection.
  std::int32_t integer32(std::int32_t low, std::int32_t high);

 private:
  __extension__ using Word = unsigned __int128;

  void step();

  Word state_ = 0;
  Word increment_ = 0;
  std::uint32_t upper_half_ = 0;
  enum class Buffer { kEmpty, kHoldsUpperHalf } buffer_ = Buffer::kEmpty;
};

}  // namespace primus::data
