#pragma once
// Kernels of rope on raw pointers; no torch headers. T is float or gpu::Bf16, the tables are fp32.
#include "ops/gpu/runtime.hpp"
#include "ops/gpu/types.hpp"

namespace primus::ops::cuda {

/// A [T, A, D] tensor whose elements of one head are dense; strides in elements.
template <typename T>
struct Heads {
  T* data;
  std::int64_t row_stride, head_stride;
};

struct RopeTables {
  const float* cos;  // [S, P/2]
  const float* sin;
  int sequence, pairs;
};

enum class PairLayout { kHalves, kInterleaved };

struct RopeShape {
  std::int64_t tokens;
  int heads;
  int nope;   // N, elements before the rotary ones
  int value;  // V
};

/// Rotates, in place, the first 2·pairs elements of each head; sign −1 rotates back.
template <typename T>
void launch_rope(std::int64_t tokens, int heads, const RopeTables& tables, PairLayout layout, float sign, Heads<T> x,
                 gpu::Stream stream);

template <typename T>
struct AssembleForward {
  Heads<const T> kv, k_pe;
  Heads<T> q, k, v;
};
template <typename T>
void launch_mla_assemble_forward(const RopeShape& shape, const RopeTables& tables, PairLayout layout,
                                 const AssembleForward<T>& tensors, gpu::Stream stream);

template <typename T>
struct AssembleBackward {
  Heads<const T> dk, dv;
  Heads<T> dq, dkv, dk_pe;
};
template <typename T>
void launch_mla_assemble_backward(const RopeShape& shape, const RopeTables& tables, PairLayout layout,
                                  const AssembleBackward<T>& tensors, gpu::Stream stream);

}  // namespace primus::ops::cuda
