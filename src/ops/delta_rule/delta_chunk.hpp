#pragma once
// The gated delta rule over one chunk of tokens of one value head. With G the running sums of the log decays, S the
// state before the chunk, M and P as in decayed_products.hpp, and Kᵉ, Qᵉ, K̄ the keys and queries times exp(G), the keys
// times exp(G_last − G):
//   R = V − Kᵉ S          what the state does not know of the values yet
//   (1 + diag(β) M) X = diag(β) R
//   Y = Qᵉ S + P X
//   S' = exp(G_last) ⊙ S + K̄ᵀ X
// The triangular system stands for the corrections that the chunk's own tokens make to each other.
#include "ops/delta_rule/decayed_products.hpp"

namespace primus::ops::delta {

/// A chunk's rows of one head, dense: keys and queries of unit length [rows, key], values [rows, value].
template <typename Acc>
struct HeadRows {
  const Acc* q;
  const Acc* k;
  const Acc* v;
  const Acc* log_decay;  // [rows, decay_width]
  const Acc* beta;
};

/// Where backward leaves its gradients: those of q and k are added to, the others overwritten. The latter may be the
/// storage of what they are the gradients of.
template <typename Acc>
struct HeadGradients {
  Acc* q;
  Acc* k;
  Acc* v;
  Acc* log_decay;
  Acc* beta;
};

template <typename Acc>
class DeltaChunk {
 public:
  DeltaChunk(std::int64_t rows, std::int64_t key, std::int64_t value, Arena& arena)
      : sum_(arena.take<double>(rows * key)),
        products_(rows, key, arena),
        grown_(arena.take<Acc>(rows * key)),
        rest_(arena.take<Acc>(rows * key)),
        query_(arena.take<Acc>(rows * key)),
        key_(arena.take<Acc>(rows * key)),
        rest_key_(arena.take<Acc>(rows * key)),
        m_(arena.take<Acc>(rows * rows)),
        p_(arena.take<Acc>(rows * rows)),
        r_(arena.take<Acc>(rows * value)),
        x_(arena.take<Acc>(rows * value)),
        dquery_(arena.take<Acc>(rows * key)),
        dkey_(arena.take<Acc>(rows * key)),
        drest_(arena.take<Acc>(rows * key)),
        dk_row_(arena.take<Acc>(rows * key)),
        dk_column_(arena.take<Acc>(rows * key)),
        dsum_(arena.take<Acc>(rows * key)),
        dm_(arena.take<Acc>(rows * rows)),
        dp_(arena.take<Acc>(rows * rows)),
        dp_diagonal_(arena.take<Acc>(rows)),
        dx_(arena.take<Acc>(rows * value)) {}

  /// y [rows, value] (overwritten; nullptr: the state alone is wanted), and the state [key, value] moved on.
  void forward(const Sizes& sizes, const HeadRows<Acc>& in, Acc* state, Acc* y) {
    solve(sizes, in, state);
    if (y != nullptr) {
      blas_gemm<Acc>(sizes.rows, sizes.value, sizes.key, {query_.data(), sizes.key}, {state, sizes.value}, Acc{0}, y,
                     sizes.value);
      blas_gemm<Acc>(sizes.rows, sizes.value, sizes.rows, {p_.data(), sizes.rows}, {x_.data(), sizes.value}, Acc{1}, y,
                     sizes.value);
    }
    const Acc* last = grown_.data() + (sizes.rows - 1) * sizes.key;
    for (std::int64_t d = 0; d < sizes.key; ++d) scale_row(state + d * sizes.value, last[d], sizes.value);
    blas_gemm<Acc>(sizes.key, sizes.value, sizes.rows, {rest_key_.data(), sizes.key, Transpose::kYes},
                   {x_.data(), sizes.value}, Acc{1}, state, sizes.value);
  }

  /// From dy and the gradient of the state behind the chunk (`dstate`, which becomes that of `state`, the one before).
  void backward(const Sizes& sizes, const HeadRows<Acc>& in, const Acc* state, const Acc* dy, Acc* dstate,
                const HeadGradients<Acc>& gradient) {
    const auto [rows, key, value, decay_width] = sizes;
    solve(sizes, in, state);
    // Through S' and Y to X, P, K̄ and Qᵉ.
    blas_gemm<Acc>(rows, value, rows, {p_.data(), rows, Transpose::kYes}, {dy, value}, Acc{0}, dx_.data(), value);
    blas_gemm<Acc>(rows, value, key, {rest_key_.data(), key}, {dstate, value}, Acc{1}, dx_.data(), value);
    blas_gemm<Acc>(rows, rows, value, {dy, value}, {x_.data(), value, Transpose::kYes}, Acc{0}, dp_.data(), rows);
    blas_gemm<Acc>(rows, key, value, {dy, value}, {state, value, Transpose::kYes}, Acc{0}, dquery_.data(), key);
    blas_gemm<Acc>(rows, key, value, {x_.data(), value}, {dstate, value, Transpose::kYes}, Acc{0}, drest_.data(), key);
    std::fill_n(dsum_.data(), rows * key, Acc{0});
    state_backward(sizes, state, dy, dstate);
    // Through the system: dx becomes the gradient of diag(β) R.
    solve_transposed(sizes, in.beta);
    blas_gemm<Acc>(rows, rows, value, {dx_.data(), value}, {x_.data(), value, Transpose::kYes}, Acc{0}, dm_.data(),
                   rows);
    system_backward(sizes, in.beta, gradient.beta);
    // dx is now the gradient of R = V − Kᵉ S; key_ holds −Kᵉ.
    std::copy_n(dx_.data(), rows * value, gradient.v);
    blas_gemm<Acc>(rows, key, value, {dx_.data(), value}, {state, value, Transpose::kYes}, Acc{0}, dkey_.data(), key);
    blas_gemm<Acc>(key, value, rows, {key_.data(), key, Transpose::kYes}, {dx_.data(), value}, Acc{1}, dstate, value);
    keys_backward(sizes, in, gradient);
  }

 private:
  static void scale_row(Acc* row, Acc factor, std::int64_t width) {
#pragma omp simd
    for (std::int64_t v = 0; v < width; ++v) row[v] *= factor;
  }
  static Acc dot(const Acc* a, const Acc* b, std::int64_t width) {
    Acc sum = 0;
#pragma omp simd reduction(+ : sum)
    for (std::int64_t v = 0; v < width; ++v) sum += a[v] * b[v];
    return sum;
  }
  static void add_scaled(const Acc* x, Acc factor, std::int64_t width, Acc* y) {
#pragma omp simd
    for (std::int64_t v = 0; v < width; ++v) y[v] += factor * x[v];
  }

  /// Running sums of the log decays, and their exponentials for every channel of a key.
  void add_up(const Sizes& sizes, const Acc* log_decay) {
    const std::int64_t width = sizes.decay_width;
    double* sums = sum_.data();
    std::copy_n(log_decay, width, sums);
    for (std::int64_t i = width; i < sizes.rows * width; ++i) {
      sums[i] = sums[i - width] + static_cast<double>(log_decay[i]);
    }
    const double* last = sum_.data() + (sizes.rows - 1) * width;
    for (std::int64_t i = 0; i < sizes.rows; ++i) {
      const double* sum = sum_.data() + i * width;
      Acc* grown = grown_.data() + i * sizes.key;
      Acc* rest = rest_.data() + i * sizes.key;
      if (width == 1) {
        std::fill_n(grown, sizes.key, fast_exp(static_cast<Acc>(sum[0])));
        std::fill_n(rest, sizes.key, fast_exp(static_cast<Acc>(last[0] - sum[0])));
        continue;
      }
#pragma omp simd
      for (std::int64_t d = 0; d < sizes.key; ++d) grown[d] = fast_exp(static_cast<Acc>(sum[d]));
      exp_difference(last, sum, sizes.key, rest);
    }
  }

  /// Everything up to X.
  void solve(const Sizes& sizes, const HeadRows<Acc>& in, const Acc* state) {
    add_up(sizes, in.log_decay);
    const std::int64_t elements = sizes.rows * sizes.key;
    Acc* query = query_.data();
    Acc* key = key_.data();
    Acc* rest_key = rest_key_.data();
    const Acc* grown = grown_.data();
    const Acc* rest = rest_.data();
#pragma omp simd
    for (std::int64_t i = 0; i < elements; ++i) {
      query[i] = in.q[i] * grown[i];
      key[i] = -in.k[i] * grown[i];
      rest_key[i] = in.k[i] * rest[i];
    }
    products_.forward(sizes, in.q, in.k, sum_.data(), m_.data(), p_.data());
    std::copy_n(in.v, sizes.rows * sizes.value, r_.data());
    blas_gemm<Acc>(sizes.rows, sizes.value, sizes.key, {key, sizes.key}, {state, sizes.value}, Acc{1}, r_.data(),
                   sizes.value);
    substitute(sizes, in.beta);
  }

  /// x from r: row i takes β_i (r_i − Σ_{j<i} m_ij x_j).
  void substitute(const Sizes& sizes, const Acc* beta) {
    const std::int64_t n = sizes.rows;
    const std::int64_t width = sizes.value;
    for (std::int64_t begin = 0; begin < n; begin += kRowBlock) {
      const std::int64_t end = std::min(begin + kRowBlock, n);
      Acc* block = x_.data() + begin * width;
      std::fill_n(block, (end - begin) * width, Acc{0});
      if (begin > 0) {
        blas_gemm<Acc>(end - begin, width, begin, {m_.data() + begin * n, n}, {x_.data(), width}, Acc{0}, block, width);
      }
      for (std::int64_t i = begin; i < end; ++i) {
        Acc* x = x_.data() + i * width;
        const Acc* m = m_.data() + i * n;
        for (std::int64_t j = begin; j < i; ++j) add_scaled(x_.data() + j * width, m[j], width, x);
        const Acc* r = r_.data() + i * width;
        const Acc strength = beta[i];
#pragma omp simd
        for (std::int64_t v = 0; v < width; ++v) x[v] = strength * (r[v] - x[v]);
      }
    }
  }

  /// dx becomes the solution of the transposed system: row j loses Σ_{i>j} β_i m_ij dx_i.
  void solve_transposed(const Sizes& sizes, const Acc* beta) {
    const std::int64_t n = sizes.rows;
    const std::int64_t width = sizes.value;
    // −diag(β) M, in dm's place, which is not needed before.
    Acc* couplings = dm_.data();
    for (std::int64_t i = 0; i < n; ++i) {
      for (std::int64_t j = 0; j < n; ++j) couplings[i * n + j] = -beta[i] * m_.data()[i * n + j];
    }
    for (std::int64_t begin = (n - 1) / kRowBlock * kRowBlock; begin >= 0; begin -= kRowBlock) {
      const std::int64_t end = std::min(begin + kRowBlock, n);
      if (end < n) {
        blas_gemm<Acc>(end - begin, width, n - end, {couplings + end * n + begin, n, Transpose::kYes},
                       {dx_.data() + end * width, width}, Acc{1}, dx_.data() + begin * width, width);
      }
      for (std::int64_t j = end - 1; j >= begin; --j) {
        for (std::int64_t i = j + 1; i < end; ++i) {
          add_scaled(dx_.data() + i * width, couplings[i * n + j], width, dx_.data() + j * width);
        }
      }
    }
  }

  /// What S' and Y say of the state before, and of the decay from the first to the last row.
  void state_backward(const Sizes& sizes, const Acc* state, const Acc* dy, Acc* dstate) {
    const Acc* last = grown_.data() + (sizes.rows - 1) * sizes.key;
    Acc* dlast = dsum_.data() + (sizes.rows - 1) * sizes.key;
    for (std::int64_t d = 0; d < sizes.key; ++d) {
      dlast[d] += last[d] * dot(dstate + d * sizes.value, state + d * sizes.value, sizes.value);
      scale_row(dstate + d * sizes.value, last[d], sizes.value);
    }
    blas_gemm<Acc>(sizes.key, sizes.value, sizes.rows, {query_.data(), sizes.key, Transpose::kYes}, {dy, sizes.value},
                   Acc{1}, dstate, sizes.value);
  }

  /// dm from dx·xᵀ, β's gradient, and dx times β: the gradient of r.
  void system_backward(const Sizes& sizes, const Acc* beta, Acc* dbeta) {
    const std::int64_t n = sizes.rows;
    for (std::int64_t i = 0; i < n; ++i) {
      Acc* dm = dm_.data() + i * n;
      Acc* dp = dp_.data() + i * n;
      const Acc* m = m_.data() + i * n;
      const Acc strength = beta[i];
      Acc through_system = 0;
      for (std::int64_t j = 0; j < i; ++j) through_system -= dm[j] * m[j];
      for (std::int64_t j = 0; j < n; ++j) {
        dm[j] = j < i ? -strength * dm[j] : Acc{0};
      }
      dp_diagonal_[static_cast<std::size_t>(i)] = dp[i];
      std::fill(dp + i, dp + n, Acc{0});
      Acc* dx = dx_.data() + i * sizes.value;
      dbeta[i] = through_system + dot(dx, r_.data() + i * sizes.value, sizes.value);
      scale_row(dx, strength, sizes.value);
    }
  }

  /// Queries, keys and log decays.
  void keys_backward(const Sizes& sizes, const HeadRows<Acc>& in, const HeadGradients<Acc>& gradient) {
    const std::int64_t elements = sizes.rows * sizes.key;
    Acc* dq = dquery_.data();
    Acc* dk_row = dk_row_.data();
    Acc* dk_column = dk_column_.data();
    const Acc* grown = grown_.data();
    const Acc* rest = rest_.data();
    const Acc* dkey = dkey_.data();
    const Acc* drest = drest_.data();
#pragma omp simd
    for (std::int64_t i = 0; i < elements; ++i) {
      dq[i] *= grown[i];
      dk_row[i] = -dkey[i] * grown[i];
      dk_column[i] = drest[i] * rest[i];
    }
    if (sizes.is_by_channel()) {
      add_rest_to_last(sizes, in.k);
    } else {
      head_decay_backward(sizes, in, gradient.log_decay);
    }
    products_.backward(sizes, in.q, in.k, sum_.data(), dm_.data(), dp_.data(), dq, dk_row, dk_column);
    if (sizes.is_by_channel()) channel_decay_backward(sizes, in, gradient.log_decay);
#pragma omp simd
    for (std::int64_t i = 0; i < elements; ++i) {
      gradient.q[i] += dq[i];
      gradient.k[i] += dk_row[i] + dk_column[i];
    }
    for (std::int64_t i = 0; i < sizes.rows; ++i) {
      const Acc own = dp_diagonal_[static_cast<std::size_t>(i)];
      add_scaled(in.k + i * sizes.key, own, sizes.key, gradient.q + i * sizes.key);
      add_scaled(in.q + i * sizes.key, own, sizes.key, gradient.k + i * sizes.key);
    }
  }

  /// Of one decay a head: a row's decay lies on every way from what stands before the row (the state, earlier rows) to
  /// what stands in it or behind it. Ways are added up, and none is subtracted again: the gradient of the sums G would
  /// be differences of large numbers. dq, dk_row and dk_column hold the ways from and to the states alone.
  void head_decay_backward(const Sizes& sizes, const HeadRows<Acc>& in, Acc* dlog_decay) {
    const std::int64_t n = sizes.rows;
    const Acc* through_all = dsum_.data() + (n - 1) * sizes.key;
    Acc from_rows = 0;
    for (std::int64_t d = 0; d < sizes.key; ++d) from_rows += through_all[d];
    for (std::int64_t t = 0; t < n; ++t) {
      dlog_decay[t] = from_rows;
      from_rows += dot(in.k + t * sizes.key, dk_column_.data() + t * sizes.key, sizes.key);
    }
    Acc to_rows = 0;
    for (std::int64_t t = n - 1; t >= 0; --t) {
      to_rows += dot(in.q + t * sizes.key, dquery_.data() + t * sizes.key, sizes.key) +
                 dot(in.k + t * sizes.key, dk_row_.data() + t * sizes.key, sizes.key);
      dlog_decay[t] += to_rows;
    }
    for (std::int64_t i = 1; i < n; ++i) {
      Acc between = 0;  // from rows before t to row i
      for (std::int64_t t = 1; t <= i; ++t) {
        const std::int64_t from = i * n + t - 1;
        between += dm_.data()[from] * m_.data()[from] + dp_.data()[from] * p_.data()[from];
        dlog_decay[t] += between;
      }
    }
  }

  /// What the keys that reach the state behind the chunk say of the sum up to the last row.
  void add_rest_to_last(const Sizes& sizes, const Acc* k) {
    Acc* dlast = dsum_.data() + (sizes.rows - 1) * sizes.key;
    const Acc* dk_column = dk_column_.data();
    for (std::int64_t i = 0; i < sizes.rows; ++i) {
      for (std::int64_t d = 0; d < sizes.key; ++d) dlast[d] += k[i * sizes.key + d] * dk_column[i * sizes.key + d];
    }
  }

  /// Of one decay a row of the state: where q or k stands with exp(+G) a sum's gradient is q·dq or k·dk, where it
  /// stands with exp(−G) its negative; and a log decay is in the sums of its own row and of all rows behind it.
  void channel_decay_backward(const Sizes& sizes, const HeadRows<Acc>& in, Acc* dlog_decay) {
    const Acc* dq = dquery_.data();
    const Acc* dk_row = dk_row_.data();
    const Acc* dk_column = dk_column_.data();
    const Acc* dsum = dsum_.data();
    const std::int64_t width = sizes.key;
    for (std::int64_t i = sizes.rows - 1; i >= 0; --i) {
      Acc* out = dlog_decay + i * width;
      for (std::int64_t d = 0; d < width; ++d) {
        const std::int64_t at = i * width + d;
        const Acc own = dsum[at] + in.q[at] * dq[at] + in.k[at] * (dk_row[at] - dk_column[at]);
        out[d] = own + (i + 1 < sizes.rows ? out[width + d] : Acc{0});
      }
    }
  }

  std::span<double> sum_;  // G [rows, decay_width]; first, as the widest
  DecayedProducts<Acc> products_;
  std::span<Acc> grown_, rest_;            // exp(G), exp(G_last − G) [rows, key]
  std::span<Acc> query_, key_, rest_key_;  // Qᵉ, −Kᵉ, K̄
  std::span<Acc> m_, p_, r_, x_;
  std::span<Acc> dquery_, dkey_, drest_, dk_row_, dk_column_, dsum_, dm_, dp_, dp_diagonal_, dx_;
};

}  // namespace primus::ops::delta
