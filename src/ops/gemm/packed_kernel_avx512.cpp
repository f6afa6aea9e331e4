// Compiled for x86-64-v4 (src/ops/CMakeLists.txt); called only where the processor has AVX-512.
#include <immintrin.h>

#include <algorithm>
#include <array>
#include <utility>

#include "ops/gemm/packed_kernel.hpp"

namespace primus::ops::packed {
namespace {

enum class Write { kOverwrite, kAccumulate };

template <int kCount, Write write>
void multiply(const TileArguments& arguments) {
  __m512 sum[kCount][2];
#pragma GCC unroll 16
  for (int row = 0; row < kCount; ++row) sum[row][0] = sum[row][1] = _mm512_setzero_ps();
    // The tile of c is asked for now and written at the end: in a training step it is seldom in the cache.
#pragma GCC unroll 16
  for (int row = 0; row < kCount; ++row) {
    __builtin_prefetch(arguments.c + row * arguments.c_stride, 1);
    __builtin_prefetch(arguments.c + row * arguments.c_stride + 16, 1);
  }
  const float* a = arguments.a;
  const float* panel = arguments.panel;
  const std::int64_t row_stride = arguments.row_stride;
  for (std::int64_t k = 0; k < arguments.depth; ++k) {
    const __m512 left = _mm512_loadu_ps(panel);
    const __m512 right = _mm512_loadu_ps(panel + 16);
#pragma GCC unroll 16
    for (int row = 0; row < kCount; ++row) {
      const __m512 value = _mm512_set1_ps(a[row * row_stride]);
      sum[row][0] = _mm512_fmadd_ps(value, left, sum[row][0]);
      sum[row][1] = _mm512_fmadd_ps(value, right, sum[row][1]);
    }
    panel += kColumns;
    a += arguments.depth_stride;
  }
#pragma GCC unroll 16
  for (int row = 0; row < kCount; ++row) {
    float* c = arguments.c + row * arguments.c_stride;
    if constexpr (write == Write::kAccumulate) {
      sum[row][0] = _mm512_add_ps(sum[row][0], _mm512_loadu_ps(c));
      sum[row][1] = _mm512_add_ps(sum[row][1], _mm512_loadu_ps(c + 16));
    }
    _mm512_storeu_ps(c, sum[row][0]);
    _mm512_storeu_ps(c + 16, sum[row][1]);
  }
}

using Kernel = void (*)(const TileArguments&);

template <Write write, int... kCounts>
constexpr std::array<Kernel, sizeof...(kCounts)> kernels(std::integer_sequence<int, kCounts...>) {
  return {&multiply<kCounts + 1, write>...};
}
constexpr auto kCountsOfRows = std::make_integer_sequence<int, static_cast<int>(kRows)>{};
constexpr auto kOverwriteKernels = kernels<Write::kOverwrite>(kCountsOfRows);
constexpr auto kAccumulateKernels = kernels<Write::kAccumulate>(kCountsOfRows);

/// Eight rows of eight floats as columns.
void transpose_eight(const float* source, std::int64_t stride, float* target, std::int64_t target_stride) {
  __m256 row[8];
  for (int i = 0; i < 8; ++i) row[i] = _mm256_loadu_ps(source + i * stride);
  __m256 pair[8];
  for (int i = 0; i < 8; i += 2) {
    pair[i] = _mm256_unpacklo_ps(row[i], row[i + 1]);
    pair[i + 1] = _mm256_unpackhi_ps(row[i], row[i + 1]);
  }
  __m256 quad[8];
  for (int i = 0; i < 8; i += 4) {
    quad[i] = _mm256_shuffle_ps(pair[i], pair[i + 2], 0x44);
    quad[i + 1] = _mm256_shuffle_ps(pair[i], pair[i + 2], 0xee);
    quad[i + 2] = _mm256_shuffle_ps(pair[i + 1], pair[i + 3], 0x44);
    quad[i + 3] = _mm256_shuffle_ps(pair[i + 1], pair[i + 3], 0xee);
  }
  for (int i = 0; i < 4; ++i) {
    _mm256_storeu_ps(target + i * target_stride, _mm256_permute2f128_ps(quad[i], quad[i + 4], 0x20));
    _mm256_storeu_ps(target + (i + 4) * target_stride, _mm256_permute2f128_ps(quad[i], quad[i + 4], 0x31));
  }
}

}  // namespace

void multiply_tile_overwrite(std::int64_t rows, const TileArguments& arguments) {
  kOverwriteKernels[static_cast<std::size_t>(rows - 1)](arguments);
}

void multiply_tile_accumulate(std::int64_t rows, const TileArguments& arguments) {
  kAccumulateKernels[static_cast<std::size_t>(rows - 1)](arguments);
}

void pack_transposed(const float* source, std::int64_t stride, std::int64_t count, std::int64_t depth,
                     std::int64_t width, float* target) {
  const std::int64_t whole_rows = count / 8 * 8;
  const std::int64_t whole_depth = depth / 8 * 8;
  for (std::int64_t k = 0; k < whole_depth; k += 8) {
    for (std::int64_t i = 0; i < whole_rows; i += 8) {
      transpose_eight(source + i * stride + k, stride, target + k * width + i, width);
    }
  }
  const auto copy = [&](std::int64_t first_row, std::int64_t first_depth) {
    for (std::int64_t k = first_depth; k < depth; ++k) {
      for (std::int64_t i = first_row; i < count; ++i) target[k * width + i] = source[i * stride + k];
    }
  };
  copy(whole_rows, 0);
  copy(0, whole_depth);
  for (std::int64_t k = 0; count < width && k < depth; ++k) {
    std::fill(target + k * width + count, target + (k + 1) * width, 0.0F);
  }
}

}  // namespace primus::ops::packed
