#pragma once
// What the benchmarks of the CUDA ops share: the workload's sizes, buffers in turn, the benchmarks of other files.
#include <ATen/ops/randn.h>

#include "cuda_timing.hpp"
#include "ops/dtype.hpp"

namespace primus::bench {

using at::Tensor;

inline constexpr std::int64_t kTokens = 16384;
inline constexpr std::int64_t kHidden = 2048;
inline constexpr std::int64_t kExperts = 64;
inline constexpr std::int64_t kTopK = 6;
inline constexpr std::int64_t kFfn = 1408;
inline constexpr std::int64_t kVocabulary = 102400;

inline Tensor cuda_randn(std::initializer_list<std::int64_t> shape, at::ScalarType dtype = at::kBFloat16) {
  return at::randn(shape, at::TensorOptions(at::kCUDA).dtype(dtype));
}

/// `sets` times what `make` gives: one element for each call in turn.
template <typename Make>
auto sets_of(int sets, const Make& make) {
  std::vector<decltype(make())> all;
  for (int i = 0; i < sets; ++i) all.push_back(make());
  return all;
}

template <typename Buffers, typename Op>
CudaTiming measure_sets(std::vector<Buffers>& sets, const Op& op) {
  return measure_cuda([&](int i) { op(sets[static_cast<std::size_t>(i) % sets.size()]); });
}

// cuda_gemm_bench.cpp
void bench_gemm();
void bench_grouped_gemm();
void bench_attention();
// cuda_layer_bench.cpp
void bench_moe_layer();
// cuda_training_bench.cpp
void bench_rope();
void bench_cross_entropy();
void bench_embedding();
void bench_adamw();

}  // namespace primus::bench
