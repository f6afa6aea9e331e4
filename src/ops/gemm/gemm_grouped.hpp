#pragma once
// Products by groups of rows whose borders lie on the device; no torch headers. Two implementations: Hopper's tensor
// cores (gemm_grouped_*_sm90.cu) and plain tiles for every type, alignment and device (gemm_cuda.cu).
#include <cstddef>

#include "ops/gpu/runtime.hpp"
#include "ops/gpu/types.hpp"
#include "ops/write.hpp"

namespace primus::ops::cuda {

/// Rows r of group e are offsets[e] .. offsets[e + 1]; x has `inputs` columns, y `outputs`, expert matrices [O, I].
struct GroupedShape {
  int experts;
  int outputs, inputs;
  std::int64_t rows;            // capacity: an upper bound of offsets[experts]
  const std::int32_t* offsets;  // on the device
};

/// Operands of one grouped product. Row strides in elements; expert matrices are contiguous.
template <typename Left, typename Right, typename Result>
struct GroupedOperands {
  const Left* left;
  std::int64_t left_stride;
  const Right* right;
  std::int64_t right_stride;
  Result* result;
  std::int64_t result_stride;
};

/// y = x · w[e]ᵀ: left x, right w, result y.
/// dx = dy · w[e]: left dy, right w, result dx.
template <typename T>
using GroupedLinear = GroupedOperands<T, T, T>;
/// main_grad[e] (+)= dyᵀ · x over the group's rows: left dy, right x, result main_grad.
template <typename T>
using GroupedWgrad = GroupedOperands<T, T, float>;

// --- Hopper: bf16; pointers and strides multiples of 16 bytes, O and I multiples of 8
// -----------------------------------------------------------------------------------------------------------------

enum class GroupedProduct { kForward, kDgrad, kWgrad };

/// Scratch of the launches below: the groups' shapes, addresses and strides, and what the kernel keeps for itself.
std::size_t grouped_forward_scratch_sm90(int experts, int multiprocessors);
std::size_t grouped_dgrad_scratch_sm90(int experts, int multiprocessors);
std::size_t grouped_wgrad_scratch_sm90(int experts, int multiprocessors);

void launch_grouped_forward_sm90(const GroupedShape& shape, const GroupedLinear<gpu::Bf16>& x, int multiprocessors,
                                 void* scratch, gpu::Stream stream);
void launch_grouped_dgrad_sm90(const GroupedShape& shape, const GroupedLinear<gpu::Bf16>& x, int multiprocessors,
                               void* scratch, gpu::Stream stream);
void launch_grouped_wgrad_sm90(const GroupedShape& shape, const GroupedWgrad<gpu::Bf16>& x, Write write,
                               int multiprocessors, void* scratch, gpu::Stream stream);

/// As the last one with Write::kOverwrite; parts[i], of grouped_square_parts_sm90(shape), are sums of the result's
/// squares that together are the whole (0 where a group has no rows).
std::int64_t grouped_square_parts_sm90(const GroupedShape& shape);
std::size_t grouped_wgrad_squares_scratch_sm90(int experts, int multiprocessors);
void launch_grouped_wgrad_squares_sm90(const GroupedShape& shape, const GroupedWgrad<gpu::Bf16>& x, double* parts,
                                       int multiprocessors, void* scratch, gpu::Stream stream);

/// sum += Σ parts, always in the same order.
void launch_add_parts(std::int64_t count, const double* parts, double* sum, gpu::Stream stream);

// --- every other case: T is float or gpu::Bf16
// -----------------------------------------------------------------------------------------------------------------

template <typename T>
void launch_grouped_forward(const GroupedShape& shape, const GroupedLinear<T>& x, gpu::Stream stream);
template <typename T>
void launch_grouped_dgrad(const GroupedShape& shape, const GroupedLinear<T>& x, gpu::Stream stream);
template <typename T>
void launch_grouped_wgrad(const GroupedShape& shape, const GroupedWgrad<T>& x, Write write, gpu::Stream stream);

/// Writes 0 to the main gradients of groups without rows, which the launches above leave as they are.
void launch_zero_empty_groups(const GroupedShape& shape, float* main_grad, gpu::Stream stream);

}  // namespace primus::ops::cuda
