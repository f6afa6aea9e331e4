#include "ops/permute/permute_cuda.hpp"

#include "ops/cuda_table.hpp"
#include "ops/gpu/tensor.hpp"

namespace primus::ops::cuda {
namespace {

PermuteShape shape_of(const Tensor& row_of_TK, const Tensor& y_TH) {
  return {row_of_TK.size(0), static_cast<int>(row_of_TK.size(1)), static_cast<int>(y_TH.size(1))};
}

void plan(const Tensor& index_TK, std::int64_t num_experts, Tensor& offsets, Tensor& row_of_TK, Tensor& slot_of_R) {
  PRIMUS_CHECK(num_experts <= kMaxPlanExperts, "permute: {} experts, on a GPU at most {}", num_experts,
               kMaxPlanExperts);
  const PlanShape shape{static_cast<int>(index_TK.numel()), static_cast<int>(num_experts)};
  const Tensor scratch = at::empty({permute_plan_scratch(shape)}, offsets.options());
  launch_permute_plan(shape, gpu::data<std::int32_t>(index_TK), gpu::data<std::int32_t>(scratch),
                      gpu::data<std::int32_t>(offsets), gpu::data<std::int32_t>(row_of_TK),
                      gpu::data<std::int32_t>(slot_of_R), gpu::current_stream());
}

void rows(const Tensor& x_TH, const Tensor& row_of_TK, Tensor& x_RH) {
  gpu::dispatch(x_TH.scalar_type(), "permute_rows", [&](auto tag) {
    using T = typename decltype(tag)::type;
    launch_permute_rows<T>(shape_of(row_of_TK, x_TH), gpu::data<T>(x_TH), gpu::data<std::int32_t>(row_of_TK),
                           gpu::data<T>(x_RH), gpu::current_stream());
  });
}

void gather_values(const Tensor& values, const Tensor& position, Tensor& out) {
  launch_gather_values(out.numel(), gpu::data<float>(values), gpu::data<std::int32_t>(position), gpu::data<float>(out),
                       gpu::current_stream());
}

void sum(const Tensor& y_RH, const Tensor& row_of_TK, Tensor& y_TH, Write write) {
  gpu::dispatch(y_TH.scalar_type(), "unpermute_sum", [&](auto tag) {
    using T = typename decltype(tag)::type;
    launch_unpermute_sum<T>(shape_of(row_of_TK, y_TH), gpu::data<T>(y_RH), gpu::data<std::int32_t>(row_of_TK), write,
                            gpu::data<T>(y_TH), gpu::current_stream());
  });
}

}  // namespace

void register_permute(CudaOps& ops) {
  ops.permute_plan = plan;
  ops.permute_rows = rows;
  ops.permute_values = gather_values;
  ops.unpermute_values = gather_values;
  ops.unpermute_sum = sum;
}

}  // namespace primus::ops::cuda
