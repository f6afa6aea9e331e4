#pragma once
// What packed_sgemm.cpp and its AVX-512 kernel share. No ATen here: the kernel is compiled for another processor level.
#include <cstdint>

namespace primus::ops::packed {

/// Rows and columns of the register tile: 28 accumulators of 16 floats, two loads of b, one broadcast of a.
inline constexpr std::int64_t kRows = 14;
inline constexpr std::int64_t kColumns = 32;

/// c[rows][kColumns] (= or +=) Σ_k a[row·row_stride + k·depth_stride] · panel[k·kColumns + column]; 1 <= rows <= kRows.
struct TileArguments {
  const float* a;
  std::int64_t row_stride;
  std::int64_t depth_stride;
  const float* panel;
  std::int64_t depth;
  float* c;
  std::int64_t c_stride;
};
void multiply_tile_overwrite(std::int64_t rows, const TileArguments& arguments);
void multiply_tile_accumulate(std::int64_t rows, const TileArguments& arguments);

/// target[k·width + i] = source[i·stride + k] for i < count (zeros up to width), k < depth. width is a multiple of 2.
void pack_transposed(const float* source, std::int64_t stride, std::int64_t count, std::int64_t depth,
                     std::int64_t width, float* target);

}  // namespace primus::ops::packed
