#pragma once
// Kernels beside the library's products, on raw pointers; no torch headers.
#include "ops/gpu/runtime.hpp"
#include "ops/gpu/types.hpp"
#include "ops/write.hpp"

namespace primus::ops::cuda {

/// fp32 values are the sum of this many bf16 numbers: 3 · 8 bits of mantissa.
inline constexpr int kBf16Parts = 3;
inline constexpr int kMaxBlocks = 4;

struct MatrixShape {
  std::int64_t rows, columns;
};

/// Which bf16 part of a matrix stands in which block of a target that holds several.
struct PartBlocks {
  int count;
  int part[kMaxBlocks];     // 0: the value rounded, 1: the remainder rounded, 2: what is left
  std::int64_t block;       // elements from one block to the next
  std::int64_t row_stride;  // within a block
};

/// to[block i] = part[i] of x. The parts of a finite fp32 value add up to it exactly.
template <typename T>
void launch_split(MatrixShape shape, const T* x, std::int64_t x_stride, const PartBlocks& blocks, gpu::Bf16* to,
                  gpu::Stream stream);

/// y (+)= Σ of the kBf16Parts blocks of x, smallest first.
void launch_sum_parts(MatrixShape shape, const float* x, std::int64_t x_block, std::int64_t x_stride, Write write,
                      float* y, std::int64_t y_stride, gpu::Stream stream);

}  // namespace primus::ops::cuda
