#include "checkpoint/convert.hpp"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "checkpoint/crc32c.hpp"
#include "data/golden_file.hpp"

namespace primus::checkpoint {
namespace {

template <typename T>
std::vector<T> converted(DType from, std::span<const std::byte> in, DType to) {
  std::vector<T> out(in.size() / static_cast<std::size_t>(size_bytes(from)));
  convert(from, in, to, std::as_writable_bytes(std::span(out)));
  return out;
}

/// The inputs of tools/golden/convert.py.
std::vector<double> inputs() {
  std::vector<double> values;
  std::uint64_t state = 2024;
  for (std::uint64_t i = 0; i < 20000; ++i) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    const bool is_half = i % 3 == 0;
    const std::uint64_t exponent = (is_half ? 1023 - 27 : 1023 - 160) + (state >> 52) % (is_half ? 44 : 300);
    constexpr std::uint64_t kMantissa = (std::uint64_t{1} << 52) - 1;
    std::uint64_t mantissa = state & kMantissa;
    if (i % 4 == 0) {
      const int dropped = 51 - (is_half ? 10 : 7);
      mantissa = (mantissa >> dropped | 1) << dropped;
      if (i % 8 == 0) mantissa += (state >> 20) % 3 - 1;
    }
    values.push_back(std::bit_cast<double>(state >> 63 << 63 | exponent << 52 | (mantissa & kMantissa)));
  }
  return values;
}

TEST(Convert, RoundsAsExactArithmeticDoes) {
  const std::vector<double> wide = inputs();
  const std::vector<float> single(wide.begin(), wide.end());
  const auto wide_bytes = std::as_bytes(std::span(wide));
  const auto single_bytes = std::as_bytes(std::span(single));
  const auto from64 = data::golden_cases("convert.txt", "fp64").front();
  from64.expect_array("fp16", converted<std::uint16_t>(DType::kFloat64, wide_bytes, DType::kFloat16));
  from64.expect_array("bf16", converted<std::uint16_t>(DType::kFloat64, wide_bytes, DType::kBFloat16));
  from64.expect_array("fp32", converted<std::uint32_t>(DType::kFloat64, wide_bytes, DType::kFloat32));
  const auto from32 = data::golden_cases("convert.txt", "fp32").front();
  from32.expect_array("fp16", converted<std::uint16_t>(DType::kFloat32, single_bytes, DType::kFloat16));
  from32.expect_array("bf16", converted<std::uint16_t>(DType::kFloat32, single_bytes, DType::kBFloat16));
}

TEST(Convert, WidensEveryValueExactly) {
  const auto golden = data::golden_cases("convert.txt", "widen").front();
  for (const auto& [dtype, name] : {std::pair{DType::kFloat16, "fp16"}, {DType::kBFloat16, "bf16"}}) {
    std::vector<std::uint16_t> all(1 << 16);
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i);
    const auto wide = converted<float>(dtype, std::as_bytes(std::span(all)), DType::kFloat32);
    std::vector<std::uint32_t> bits;
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (!std::isnan(wide[i])) bits.push_back(std::bit_cast<std::uint32_t>(wide[i]));
    }
    golden.expect_array(name, bits);
    // And back: nothing is lost, NaN stays NaN.
    const auto narrow = converted<std::uint16_t>(DType::kFloat32, std::as_bytes(std::span(wide)), dtype);
    const auto again = converted<float>(dtype, std::as_bytes(std::span(narrow)), DType::kFloat32);
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (std::isnan(wide[i])) {
        EXPECT_TRUE(std::isnan(again[i])) << name << " " << i;
      } else {
        EXPECT_EQ(narrow[i], all[i]) << name;
      }
    }
  }
}

TEST(Convert, CountsValuesThatBecameInfinite) {
  const std::vector<float> values = {1.0F, 65519.0F, 65520.0F, -1e30F, std::numeric_limits<float>::infinity(), 3.4e38F};
  std::vector<std::uint16_t> out(values.size());
  const auto in = std::as_bytes(std::span(values));
  EXPECT_EQ(convert(DType::kFloat32, in, DType::kFloat16, std::as_writable_bytes(std::span(out))).num_overflowed, 3);
  EXPECT_EQ(convert(DType::kFloat32, in, DType::kBFloat16, std::as_writable_bytes(std::span(out))).num_overflowed, 1);
}

// Vectors of RFC 3720, appendix B.4, and the check value of the usual catalogues.
TEST(Crc32c, PublishedVectors) {
  const auto of = [](const std::vector<std::uint8_t>& bytes) { return crc32c(std::as_bytes(std::span(bytes))); };
  EXPECT_EQ(of(std::vector<std::uint8_t>(32, 0x00)), 0x8A9136AAU);
  EXPECT_EQ(of(std::vector<std::uint8_t>(32, 0xFF)), 0x62A8AB43U);
  std::vector<std::uint8_t> rising(32);
  for (std::size_t i = 0; i < rising.size(); ++i) rising[i] = static_cast<std::uint8_t>(i);
  EXPECT_EQ(of(rising), 0x46DD794EU);
  EXPECT_EQ(of({'1', '2', '3', '4', '5', '6', '7', '8', '9'}), 0xE3069283U);
  EXPECT_EQ(of({}), 0U);
}

TEST(Crc32c, PiecesGiveTheSameAsTheWhole) {
  std::vector<std::byte> bytes(1000);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 37 + i / 7);
  const std::span all(bytes);
  for (const std::size_t cut : {0UL, 1UL, 7UL, 8UL, 9UL, 511UL, 999UL, 1000UL})
    EXPECT_EQ(crc32c(all.subspan(cut), crc32c(all.first(cut))), crc32c(all)) << cut;
}

}  // namespace
}  // namespace primus::checkpoint
