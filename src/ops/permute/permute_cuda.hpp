#pragma once
// Kernels of permute on raw pointers; no torch headers.
#include "ops/gpu/runtime.hpp"
#include "ops/gpu/types.hpp"
#include "ops/write.hpp"

namespace primus::ops::cuda {

/// Experts that permute_plan's shared memory holds counters for.
inline constexpr std::int64_t kMaxPlanExperts = 1024;

struct PlanShape {
  int slots;  // T·K
  int experts;
};

/// Values of scratch (int32) that launch_permute_plan needs.
std::int64_t permute_plan_scratch(PlanShape shape);

void launch_permute_plan(PlanShape shape, const std::int32_t* index, std::int32_t* scratch, std::int32_t* offsets,
                         std::int32_t* row_of, std::int32_t* slot_of, gpu::Stream stream);

struct PermuteShape {
  std::int64_t tokens;
  int top_k;
  int width;
};

/// x_R[row_of[t, k]] = x[t].
template <typename T>
void launch_permute_rows(PermuteShape shape, const T* x, const std::int32_t* row_of, T* x_R, gpu::Stream stream);

/// y[t] (+)= Σ_k y_R[row_of[t, k]].
template <typename T>
void launch_unpermute_sum(PermuteShape shape, const T* y_R, const std::int32_t* row_of, Write write, T* y,
                          gpu::Stream stream);

/// out[i] = values[position[i]].
void launch_gather_values(std::int64_t count, const float* values, const std::int32_t* position, float* out,
                          gpu::Stream stream);

}  // namespace primus::ops::cuda
