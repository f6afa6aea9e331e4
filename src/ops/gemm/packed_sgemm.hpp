#pragma once
// A single-precision product of our own for processors with AVX-512: on those of AMD, the library in libtorch stays
// below its AVX2 rate. Each sum is cut up by its depth alone, so bits do not depend on the number of threads.
#include <cstdint>

namespace primus::ops {

/// An operand by strides: element (i, j) at data[i · row_stride + j · column_stride]; one of the strides is 1.
struct StridedOperand {
  const float* data;
  std::int64_t row_stride;
  std::int64_t column_stride;
};

/// Does this processor have the kernel, and is the product large enough to repay packing?
bool has_packed_sgemm(std::int64_t m, std::int64_t n, std::int64_t k);

enum class Target { kOverwrite, kAccumulate };

/// c_MN (+)= a_MK · b_KN, rows of c `c_stride` apart. Uses every thread at top level, one inside at::parallel_for.
void packed_sgemm(std::int64_t m, std::int64_t n, std::int64_t k, StridedOperand a, StridedOperand b, Target target,
                  float* c, std::int64_t c_stride);

}  // namespace primus::ops
