#pragma once
// What several ops do to one row of scores on a CPU.
#include <cstdint>

#include "ops/simd_math.hpp"

namespace primus::ops {

/// out[i] = exp(x[i] − shift), which may be x itself; gives their sum.
template <typename T>
T exponentials(const T* x, T shift, std::int64_t n, T* out) {
  T sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t i = 0; i < n; ++i) {
    const T value = fast_exp(x[i] - shift);
    out[i] = value;
    sum += value;
  }
  return sum;
}

/// x[i] = cap · tanh(x[i] / cap).
template <typename T>
void softcap(T* x, std::int64_t n, T cap) {
  const T inverse = T(1) / cap;
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) x[i] = cap * fast_tanh(x[i] * inverse);
}

}  // namespace primus::ops
