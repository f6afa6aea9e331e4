#pragma once
// Products of small tiles that stay in cache, for attention: one operand packed in panels, the other read in place.
// A library call per tile would pack both again for every tile; here a panel is packed once and used by all tiles.
#include <bit>
#include <type_traits>

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

template <typename Acc>
Vector<Acc> load(const Acc* values) {
  return *reinterpret_cast<const Vector<Acc>*>(values);
}

template <typename Acc>
void store(Vector<Acc> vector, Acc* values) {
  *reinterpret_cast<Vector<Acc>*>(values) = vector;
}

// Eight rows of eight bf16 or fp32 values as columns.
template <typename T>
void transpose_eight(const T* source, std::int64_t stride, float factor, float* target, std::int64_t target_stride) {
  using V = Vector<float>;
  V row[8];
  for (int i = 0; i < 8; ++i) {
    if constexpr (std::is_same_v<T, float>) {
      row[i] = load(source + i * stride);
    } else {
      typedef std::uint16_t Halves __attribute__((vector_size(16), aligned(2), may_alias));
      typedef std::uint32_t Words __attribute__((vector_size(32)));
      const auto halves = *reinterpret_cast<const Halves*>(source + i * stride);
      row[i] = std::bit_cast<V>(__builtin_convertvector(halves, Words) << 16);
    }
    row[i] *= factor;
  }
  V pair[8];
  for (int i = 0; i < 8; i += 2) {
    pair[i] = __builtin_shufflevector(row[i], row[i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
    pair[i + 1] = __builtin_shufflevector(row[i], row[i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
  }
  V quad[8];
  for (int i = 0; i < 8; i += 4) {
    for (int j = 0; j < 2; ++j) {
      quad[i + 2 * j] = __builtin_shufflevector(pair[i + j], pair[i + j + 2], 0, 1, 8, 9, 4, 5, 12, 13);
      quad[i + 2 * j + 1] = __builtin_shufflevector(pair[i + j], pair[i + j + 2], 2, 3, 10, 11, 6, 7, 14, 15);
    }
  }
  for (int i = 0; i < 4; ++i) {
    store<float>(__builtin_shufflevector(quad[i], quad[i + 4], 0, 1, 2, 3, 8, 9, 10, 11), target + i * target_stride);
    store<float>(__builtin_shufflevector(quad[i], quad[i + 4], 4, 5, 6, 7, 12, 13, 14, 15),
                 target + (i + 4) * target_stride);
  }
}

template <typename Acc, int kRows, Write write>
void multiply_fixed(Rows<Acc> a, const Acc* panel, std::int64_t depth, Acc* c, std::int64_t c_stride) {
  constexpr std::int64_t lanes = kLanes<Acc>;
  Vector<Acc> sum[kRows][2] = {};
  const Acc* column = a.data;
  for (std::int64_t k = 0; k < depth; ++k) {
    const Vector<Acc> left = load(panel);
    const Vector<Acc> right = load(panel + lanes);
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
  for (std::int64_t first = 0; first < rows; first += panel, panels += panel * width) {
    const std::int64_t count = std::min(panel, rows - first);
    const T* block = source + first * stride;
    std::int64_t d = 0;
    if constexpr (std::is_same_v<T, float> || std::is_same_v<T, at::BFloat16>) {
      for (; count == panel && d + 8 <= width; d += 8) {
        detail::transpose_eight(block + d, stride, factor, panels + d * panel, panel);
        detail::transpose_eight(block + 8 * stride + d, stride, factor, panels + d * panel + 8, panel);
      }
    }
    for (; d < width; ++d) {
      Acc* target = panels + d * panel;
      for (std::int64_t j = 0; j < count; ++j) target[j] = factor * static_cast<Acc>(block[j * stride + d]);
      std::fill(target + count, target + panel, Acc{0});
    }
  }
}

/// Columns of `source` in panels: panels[p][s][j] = source[s][p · kPanel + j], zero past the last column.
template <typename T, typename Acc>
void pack_columns(const T* source, std::int64_t stride, std::int64_t rows, std::int64_t width, Acc* panels) {
  constexpr std::int64_t panel = kPanel<Acc>;
  const std::int64_t full = width / panel * panel;
  for (std::int64_t s = 0; s < rows; ++s) {
    const T* row = source + s * stride;
    Acc* target = panels + s * panel;
    for (std::int64_t first = 0; first < full; first += panel) {
#pragma omp simd
      for (std::int64_t j = 0; j < panel; ++j) target[first * rows + j] = static_cast<Acc>(row[first + j]);
    }
    if (full == width) continue;
    for (std::int64_t j = 0; j < width - full; ++j) target[full * rows + j] = static_cast<Acc>(row[full + j]);
    std::fill(target + full * rows + width - full, target + full * rows + panel, Acc{0});
  }
}

/// The largest of `highest` and `count` values, a multiple of the lanes; four running maxima, because one would wait
/// for itself.
template <typename Acc>
Acc maximum(const Acc* values, std::int64_t count, Acc highest) {
  constexpr std::int64_t lanes = kLanes<Acc>;
  detail::Vector<Acc> best[4];
  for (auto& part : best) part = detail::Vector<Acc>{} + highest;
  const auto include = [&](int part, std::int64_t i) {
    const detail::Vector<Acc> next = detail::load(values + i);
    best[part] = next > best[part] ? next : best[part];
  };
  std::int64_t i = 0;
  for (; i + 4 * lanes <= count; i += 4 * lanes) {
#pragma GCC unroll 4
    for (int part = 0; part < 4; ++part) include(part, i + part * lanes);
  }
  for (; i < count; i += lanes) include(0, i);
  for (const auto& part : best) {
    for (std::int64_t lane = 0; lane < lanes; ++lane) highest = std::max(highest, Acc{part[lane]});
  }
  return highest;
}

}  // namespace primus::ops::tile
