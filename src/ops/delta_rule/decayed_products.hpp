#pragma once
// Products of queries and keys under what a state forgets between them: Σ_d x_id · y_jd · exp(G_id − G_jd), j ≤ i, with
// G the running sum of log decays. Rows are multiplied by exp(G − m) with the row m at which their block begins, and
// what lies before by exp(m − G): no factor is above 1, however fast the state forgets. Within a block of rows the
// exponents are taken pair by pair. A decay of one number a head needs none of that: it stands before the sum. The sums
// are fp64: behind a chunk of fast decays, fp32 would leave few digits of their differences.
#include <algorithm>
#include <cmath>

#include "ops/arena.hpp"
#include "ops/gemm/blas.hpp"
#include "ops/simd_math.hpp"

namespace primus::ops::delta {

/// Rows of a chunk and their widths; `decay_width` is 1 or the size of a key.
struct Sizes {
  std::int64_t rows = 0;
  std::int64_t key = 0;
  std::int64_t value = 0;
  std::int64_t decay_width = 1;

  bool is_by_channel() const { return decay_width > 1; }
};

constexpr std::int64_t kRowBlock = 16;

/// exp(a − b), element by element.
template <typename Acc>
void exp_difference(const double* a, const double* b, std::int64_t width, Acc* out) {
#pragma omp simd
  for (std::int64_t d = 0; d < width; ++d) out[d] = fast_exp(static_cast<Acc>(a[d] - b[d]));
}

template <typename Acc>
class DecayedProducts {
 public:
  DecayedProducts(std::int64_t rows, std::int64_t key, Arena& arena)
      : scaled_query_(arena.take<Acc>(rows * key)),
        scaled_row_(arena.take<Acc>(rows * key)),
        scaled_key_(arena.take<Acc>(rows * key)),
        gradient_(arena.take<Acc>(rows * key)),
        factor_(arena.take<Acc>(key)) {}

  /// m_ij (j < i) of keys with keys, p_ij (j ≤ i) of queries with keys, [rows, rows]; zeros elsewhere.
  void forward(const Sizes& sizes, const Acc* q, const Acc* k, const double* sum, Acc* m, Acc* p) {
    const std::int64_t n = sizes.rows;
    if (!sizes.is_by_channel()) {
      blas_gemm<Acc>(n, n, sizes.key, {q, sizes.key}, {k, sizes.key, Transpose::kYes}, Acc{0}, p, n);
      blas_gemm<Acc>(n, n, sizes.key, {k, sizes.key}, {k, sizes.key, Transpose::kYes}, Acc{0}, m, n);
      scale_by_head(n, sum, m, p);
      return;
    }
    std::fill_n(m, n * n, Acc{0});
    std::fill_n(p, n * n, Acc{0});
    for (std::int64_t begin = 0; begin < n; begin += kRowBlock) {
      const std::int64_t end = std::min(begin + kRowBlock, n);
      if (begin > 0) {
        scale_block(sizes, begin, end, q, k, sum);
        const std::int64_t rows = end - begin;
        const BlasOperand<Acc> keys{scaled_key_.data(), sizes.key, Transpose::kYes};
        blas_gemm<Acc>(rows, begin, sizes.key, {scaled_query_.data(), sizes.key}, keys, Acc{0}, p + begin * n, n);
        blas_gemm<Acc>(rows, begin, sizes.key, {scaled_row_.data(), sizes.key}, keys, Acc{0}, m + begin * n, n);
      }
      for (std::int64_t i = begin; i < end; ++i) {
        for (std::int64_t j = begin; j <= i; ++j) pair_forward(sizes, i, j, q, k, sum, m, p);
      }
    }
  }

  /// Adds to dq, to dk_row (of keys as rows of m) and to dk_column (of keys as columns of both) from dm and dp below
  /// their diagonals, on which and above which both hold zeros: a token's own product knows no decay.
  void backward(const Sizes& sizes, const Acc* q, const Acc* k, const double* sum, Acc* dm, Acc* dp, Acc* dq,
                Acc* dk_row, Acc* dk_column) {
    const std::int64_t n = sizes.rows;
    if (!sizes.is_by_channel()) {
      scale_by_head(n, sum, dm, dp);
      blas_gemm<Acc>(n, sizes.key, n, {dp, n}, {k, sizes.key}, Acc{1}, dq, sizes.key);
      blas_gemm<Acc>(n, sizes.key, n, {dm, n}, {k, sizes.key}, Acc{1}, dk_row, sizes.key);
      blas_gemm<Acc>(n, sizes.key, n, {dp, n, Transpose::kYes}, {q, sizes.key}, Acc{1}, dk_column, sizes.key);
      blas_gemm<Acc>(n, sizes.key, n, {dm, n, Transpose::kYes}, {k, sizes.key}, Acc{1}, dk_column, sizes.key);
      return;
    }
    for (std::int64_t begin = 0; begin < n; begin += kRowBlock) {
      const std::int64_t end = std::min(begin + kRowBlock, n);
      if (begin > 0) block_backward(sizes, begin, end, q, k, sum, dm, dp, dq, dk_row, dk_column);
      for (std::int64_t i = begin; i < end; ++i) {
        for (std::int64_t j = begin; j < i; ++j) {
          pair_backward(sizes, i, j, q, k, sum, dm[i * n + j], dp[i * n + j], dq, dk_row, dk_column);
        }
      }
    }
  }

 private:
  static void scale_by_head(std::int64_t n, const double* sum, Acc* m, Acc* p) {
    for (std::int64_t i = 0; i < n; ++i) {
      for (std::int64_t j = 0; j < n; ++j) {
        const Acc factor = j <= i ? fast_exp(static_cast<Acc>(sum[i] - sum[j])) : Acc{0};
        p[i * n + j] = j <= i ? p[i * n + j] * factor : Acc{0};
        m[i * n + j] = j < i ? m[i * n + j] * factor : Acc{0};
      }
    }
  }

  /// The block's queries and keys by exp(G − m), and the keys before it by exp(m − G).
  void scale_block(const Sizes& sizes, std::int64_t begin, std::int64_t end, const Acc* q, const Acc* k,
                   const double* sum) {
    const std::int64_t width = sizes.key;
    const double* middle = sum + begin * width;
    Acc* factor = factor_.data();
    for (std::int64_t i = begin; i < end; ++i) {
      exp_difference(sum + i * width, middle, width, factor);
      multiply(q + i * width, factor, width, scaled_query_.data() + (i - begin) * width);
      multiply(k + i * width, factor, width, scaled_row_.data() + (i - begin) * width);
    }
    for (std::int64_t j = 0; j < begin; ++j) {
      exp_difference(middle, sum + j * width, width, factor);
      multiply(k + j * width, factor, width, scaled_key_.data() + j * width);
    }
  }

  static void multiply(const Acc* a, const Acc* b, std::int64_t width, Acc* out) {
#pragma omp simd
    for (std::int64_t d = 0; d < width; ++d) out[d] = a[d] * b[d];
  }
  static void add_product(const Acc* a, const Acc* b, std::int64_t width, Acc* out) {
#pragma omp simd
    for (std::int64_t d = 0; d < width; ++d) out[d] += a[d] * b[d];
  }

  void pair_forward(const Sizes& sizes, std::int64_t i, std::int64_t j, const Acc* q, const Acc* k, const double* sum,
                    Acc* m, Acc* p) {
    const std::int64_t width = sizes.key;
    const Acc* qi = q + i * width;
    const Acc* ki = k + i * width;
    const Acc* kj = k + j * width;
    const double* si = sum + i * width;
    const double* sj = sum + j * width;
    Acc with_query = 0;
    Acc with_key = 0;
#pragma omp simd reduction(+ : with_query, with_key)
    for (std::int64_t d = 0; d < width; ++d) {
      const Acc decayed = kj[d] * fast_exp(static_cast<Acc>(si[d] - sj[d]));
      with_query += qi[d] * decayed;
      with_key += ki[d] * decayed;
    }
    p[i * sizes.rows + j] = with_query;
    if (j < i) m[i * sizes.rows + j] = with_key;
  }

  static void pair_backward(const Sizes& sizes, std::int64_t i, std::int64_t j, const Acc* q, const Acc* k,
                            const double* sum, Acc dm, Acc dp, Acc* dq, Acc* dk_row, Acc* dk_column) {
    const std::int64_t width = sizes.key;
    const Acc* qi = q + i * width;
    const Acc* ki = k + i * width;
    const Acc* kj = k + j * width;
    const double* si = sum + i * width;
    const double* sj = sum + j * width;
    Acc* dqi = dq + i * width;
    Acc* drow = dk_row + i * width;
    Acc* dcolumn = dk_column + j * width;
#pragma omp simd
    for (std::int64_t d = 0; d < width; ++d) {
      const Acc factor = fast_exp(static_cast<Acc>(si[d] - sj[d]));
      dqi[d] += dp * kj[d] * factor;
      drow[d] += dm * kj[d] * factor;
      dcolumn[d] += (dp * qi[d] + dm * ki[d]) * factor;
    }
  }

  void block_backward(const Sizes& sizes, std::int64_t begin, std::int64_t end, const Acc* q, const Acc* k,
                      const double* sum, const Acc* dm, const Acc* dp, Acc* dq, Acc* dk_row, Acc* dk_column) {
    const std::int64_t n = sizes.rows;
    const std::int64_t width = sizes.key;
    const std::int64_t rows = end - begin;
    scale_block(sizes, begin, end, q, k, sum);
    const double* middle = sum + begin * width;
    const BlasOperand<Acc> keys{scaled_key_.data(), width};
    for (const auto& [dproduct, target] : {std::pair{dp, dq}, {dm, dk_row}}) {
      blas_gemm<Acc>(rows, width, begin, {dproduct + begin * n, n}, keys, Acc{0}, gradient_.data(), width);
      for (std::int64_t i = begin; i < end; ++i) {
        exp_difference(sum + i * width, middle, width, factor_.data());
        add_product(gradient_.data() + (i - begin) * width, factor_.data(), width, target + i * width);
      }
    }
    blas_gemm<Acc>(begin, width, rows, {dp + begin * n, n, Transpose::kYes}, {scaled_query_.data(), width}, Acc{0},
                   gradient_.data(), width);
    blas_gemm<Acc>(begin, width, rows, {dm + begin * n, n, Transpose::kYes}, {scaled_row_.data(), width}, Acc{1},
                   gradient_.data(), width);
    for (std::int64_t j = 0; j < begin; ++j) {
      exp_difference(middle, sum + j * width, width, factor_.data());
      add_product(gradient_.data() + j * width, factor_.data(), width, dk_column + j * width);
    }
  }

  std::span<Acc> scaled_query_, scaled_row_, scaled_key_, gradient_, factor_;
};

}  // namespace primus::ops::delta
