#pragma once
// The BLAS inside libtorch_cpu (MKL in the x86-64 wheel), by its Fortran names, and row-major products on top of it.
// It shares libtorch's OpenMP pool: it uses every thread at top level and one inside at::parallel_for.
#include <cstdint>
#include <limits>

#include "base/error.hpp"
#include "ops/gemm/packed_sgemm.hpp"

extern "C" {
void sgemm_(const char* trans_a, const char* trans_b, const int* m, const int* n, const int* k, const float* alpha,
            const float* a, const int* lda, const float* b, const int* ldb, const float* beta, float* c,
            const int* ldc);
void dgemm_(const char* trans_a, const char* trans_b, const int* m, const int* n, const int* k, const double* alpha,
            const double* a, const int* lda, const double* b, const int* ldb, const double* beta, double* c,
            const int* ldc);
}

namespace primus::ops {

enum class Transpose : char { kNo = 'N', kYes = 'T' };

/// A row-major operand: element (i, j) at data[i · stride + j].
template <typename T>
struct BlasOperand {
  const T* data;
  std::int64_t stride;
  Transpose transpose = Transpose::kNo;
};

namespace detail {
inline int to_blas_int(std::int64_t value) {
  PRIMUS_CHECK(value <= std::numeric_limits<int>::max(), "matrix size {} does not fit BLAS", value);
  return static_cast<int>(value);
}

template <typename T>
StridedOperand to_strided(const BlasOperand<T>& x) {
  return x.transpose == Transpose::kNo ? StridedOperand{x.data, x.stride, 1} : StridedOperand{x.data, 1, x.stride};
}
}  // namespace detail

/// c_MN = op(a)_MK · op(b)_KN + beta · c_MN. With beta 0, what c held is not read.
template <typename T>
void blas_gemm(std::int64_t m, std::int64_t n, std::int64_t k, BlasOperand<T> a, BlasOperand<T> b, T beta, T* c,
               std::int64_t c_stride) {
#ifdef PRIMUS_PACKED_SGEMM
  if constexpr (sizeof(T) == sizeof(float)) {
    if ((beta == T{0} || beta == T{1}) && has_packed_sgemm(m, n, k)) {
      packed_sgemm(m, n, k, detail::to_strided(a), detail::to_strided(b),
                   beta == T{0} ? Target::kOverwrite : Target::kAccumulate, c, c_stride);
      return;
    }
  }
#endif
  // BLAS is column-major: a row-major c is its transpose, so the operands change places.
  const char trans_a = static_cast<char>(a.transpose);
  const char trans_b = static_cast<char>(b.transpose);
  const int rows = detail::to_blas_int(n);
  const int columns = detail::to_blas_int(m);
  const int depth = detail::to_blas_int(k);
  const int lda = detail::to_blas_int(a.stride);
  const int ldb = detail::to_blas_int(b.stride);
  const int ldc = detail::to_blas_int(c_stride);
  const T alpha = 1;
  if constexpr (sizeof(T) == sizeof(double)) {
    dgemm_(&trans_b, &trans_a, &rows, &columns, &depth, &alpha, b.data, &ldb, a.data, &lda, &beta, c, &ldc);
  } else {
    sgemm_(&trans_b, &trans_a, &rows, &columns, &depth, &alpha, b.data, &ldb, a.data, &lda, &beta, c, &ldc);
  }
}

}  // namespace primus::ops
