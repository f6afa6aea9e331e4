#pragma once
// Products of small tiles that stay in cache, for attention: one operand packed in panels, the other read in place.
// A library call per tile would pack both again for every tile; here a panel is packed once and used by all tiles.
#include <cmath>
#include <cstring>

#include "ops/dtype.hpp"

namespace primus::ops::tile {

/// 32 bytes: one AVX2 register, two NEON registers.
constexpr std::int64_t kVectorBytes = 32;

template <typename Acc>
constexpr std::int64_t kLanes = kVectorBytes / static_cast<std::int64_t>(sizeof(Acc));

/// Columns of a packed panel: two vectors, so that kGroup rows need 12 accumulators of 16 registers.
template <typename Acc>
constexpr std::int64_t kPanel = 2 * kLanes<Acc>;

/// Rows of the in-place operand that are multiplied together.
constexpr std::int64_t kGroup = 6;

inline std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

/// The operand that is read in place: element (row, k) at data[row · row_stride + k · depth_stride].
template <typename Acc>
struct Rows {
  const Acc* data;
  std::int64_t row_stride;
  std::int64_t depth_stride = 1;
};

namespace detail {

template <typename Acc>
struct VectorOf {
  typedef Acc type __attribute__((vector_size(kVectorBytes), aligned(sizeof(Acc)), may_alias));
};
template <typename Acc>
using Vector = typename VectorOf<Acc>::type;

template <typename Acc, int kRows, Write write>
void multiply_fixed(Rows<Acc> a, const Acc* panel, std::int64_t depth, Acc* c, std::int64_t c_stride) {
  constexpr std::int64_t lanes = kLanes<Acc>;
  Vector<Acc> sum[kRows][2] = {};
  const Acc* column = a.data;
  for (std::int64_t k = 0; k < depth; ++k) {
    const Vector<Acc> left = *reinterpret_cast<const Vector<Acc>*>(panel);
    const Vector<Acc> right = *reinterpret_cast<const Vector<Acc>*>(panel + lanes);
#pragma GCC unroll 8
    for (int row = 0; row < kRows; ++row) {
      const Acc value = column[row * a.row_stride];
      sum[row][0] += value * left;
      sum[row][1] += value * right;
    }
    panel += 2 * lanes;
    column += a.depth_stride;
  }
#pragma GCC unroll 8
  for (int row = 0; row < kRows; ++row) {
    auto* left = reinterpret_cast<Vector<Acc>*>(c + row * c_stride);
    auto* right = reinterpret_cast<Vector<Acc>*>(c + row * c_stride + lanes);
    if constexpr (write == Write::kAccumulate) {
      *left += sum[row][0];
      *right += sum[row][1];
    } else {
      *left = sum[row][0];
      *right = sum[row][1];
    }
  }
}

}  // namespace detail

/// c[rows × kPanel] (+)= a[rows × depth] · panel[depth × kPanel], rows <= kGroup.
template <typename Acc, Write write>
void multiply_group(std::int64_t rows, Rows<Acc> a, const Acc* panel, std::int64_t depth, Acc* c,
                    std::int64_t c_stride) {
  switch (rows) {
    case 1:
      return detail::multiply_fixed<Acc, 1, write>(a, panel, depth, c, c_stride);
    case 2:
      return detail::multiply_fixed<Acc, 2, write>(a, panel, depth, c, c_stride);
    case 3:
      return detail::multiply_fixed<Acc, 3, write>(a, panel, depth, c, c_stride);
    case 4:
      return detail::multiply_fixed<Acc, 4, write>(a, panel, depth, c, c_stride);
    case 5:
      return detail::multiply_fixed<Acc, 5, write>(a, panel, depth, c, c_stride);
    default:
      return detail::multiply_fixed<Acc, 6, write>(a, panel, depth, c, c_stride);
  }
}

/// Rows of `source` as columns: panels[p][d][j] = factor · source[p · kPanel + j][d], zero past the last row.
template <typename T, typename Acc>
void pack_transposed(const T* source, std::int64_t stride, std::int64_t rows, std::int64_t width, Acc factor,
                     Acc* panels) {
  constexpr std::int64_t panel = kPanel<Acc>;
  for (std::int64_t first = 0; first < rows; first += panel) {
    const std::int64_t count = std::min(panel, rows - first);
    const T* block = source + first * stride;
    for (std::int64_t d = 0; d < width; ++d) {
      for (std::int64_t j = 0; j < count; ++j) panels[j] = factor * static_cast<Acc>(block[j * stride + d]);
      for (std::int64_t j = count; j < panel; ++j) panels[j] = Acc{0};
      panels += panel;
    }
  }
}

/// Columns of `source` in panels: panels[p][s][j] = source[s][p · kPanel + j], zero past the last column.
template <typename T, typename Acc>
void pack_columns(const T* source, std::int64_t stride, std::int64_t rows, std::int64_t width, Acc* panels) {
  constexpr std::int64_t panel = kPanel<Acc>;
  for (std::int64_t first = 0; first < width; first += panel) {
    const std::int64_t count = std::min(panel, width - first);
    Acc* target = panels + first * rows;
    for (std::int64_t s = 0; s < rows; ++s, target += panel) {
      const T* row = source + s * stride + first;
      for (std::int64_t j = 0; j < count; ++j) target[j] = static_cast<Acc>(row[j]);
      for (std::int64_t j = count; j < panel; ++j) target[j] = Acc{0};
    }
  }
}

/// e^x for x <= 0 to about 1 ulp, in a form that loops vectorise; 1.2e-38 stands for anything smaller; NaN stays NaN.
inline float exponential(float x) {
  constexpr float kLowest = -87.3365F;
  constexpr float kLog2E = 1.44269504088896341F;
  // ln 2 in two parts: n · kLn2High is exact for |n| < 2^9.
  constexpr float kLn2High = 0.693359375F;
  constexpr float kLn2Low = -2.12194440e-4F;
  // Adding 1.5 · 2^23 leaves the nearest integer in the low bits of the mantissa.
  constexpr float kRound = 12582912.0F;
  x = x < kLowest ? kLowest : x;
  const float shifted = x * kLog2E + kRound;
  const float n = shifted - kRound;
  const float r = (x - n * kLn2High) - n * kLn2Low;
  // Minimax polynomial of Cephes' expf on [-ln 2 / 2, ln 2 / 2].
  float p = 1.9875691500e-4F;
  p = p * r + 1.3981999507e-3F;
  p = p * r + 8.3334519073e-3F;
  p = p * r + 4.1665795894e-2F;
  p = p * r + 1.6666665459e-1F;
  p = p * r + 5.0000001201e-1F;
  p = p * (r * r) + r + 1.0F;
  std::int32_t bits;
  std::memcpy(&bits, &shifted, sizeof(bits));
  bits = static_cast<std::int32_t>(static_cast<std::uint32_t>(bits + 127) << 23);
  float power;
  std::memcpy(&power, &bits, sizeof(power));
  return p * power;
}

inline double exponential(double x) {
  return std::exp(x);
}

}  // namespace primus::ops::tile
