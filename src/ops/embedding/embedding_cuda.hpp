#pragma once
// Kernels of embedding on raw pointers; no torch headers. T is float or gpu::Bf16; the gradient is fp32.
#include "ops/gpu/runtime.hpp"
#include "ops/gpu/types.hpp"

namespace primus::ops::cuda {

struct EmbeddingShape {
  int tokens;
  int vocabulary;
  int hidden;
};

/// x[t] = w[ids[t]]. An id outside the vocabulary ends the kernel.
template <typename T>
void launch_embedding_forward(EmbeddingShape shape, const std::int64_t* ids, const T* w, T* x, gpu::Stream stream);

/// Sorting tokens by id is a stable counting sort, kDigits values at a time (permute's plan, digits for experts).
inline constexpr int kDigits = 512;
inline constexpr int kDigitBits = 9;

/// digit[r] of the token that stands at place r: order[r], or r itself where there is no order yet (nullptr).
void launch_id_digits(EmbeddingShape shape, const std::int64_t* ids, const std::int32_t* order, int shift,
                      std::int32_t* digit, gpu::Stream stream);

/// order_out[r] = order_in[slot_of[r]]: two sorts in one.
void launch_compose_order(int tokens, const std::int32_t* slot_of, const std::int32_t* order_in,
                          std::int32_t* order_out, gpu::Stream stream);

/// Values (fp32) of scratch that launch_embedding_backward needs.
std::int64_t embedding_backward_scratch(EmbeddingShape shape);

/// main_grad[ids[t]] += dx[t]; order: tokens sorted by id.
template <typename T>
void launch_embedding_backward(EmbeddingShape shape, const std::int64_t* ids, const std::int32_t* order, const T* dx,
                               float* scratch, float* main_grad, gpu::Stream stream);

}  // namespace primus::ops::cuda
