#include "ops/embedding/embedding_cuda.hpp"

#include "ops/cuda_table.hpp"
#include "ops/gpu/tensor.hpp"
#include "ops/permute/permute_cuda.hpp"

namespace primus::ops::cuda {
namespace {

EmbeddingShape shape_of(const Tensor& ids_T, const Tensor& w_VH) {
  PRIMUS_CHECK(ids_T.numel() <= INT32_MAX && w_VH.size(0) <= INT32_MAX, "embedding: a shape past 32 bits");
  return {static_cast<int>(ids_T.numel()), static_cast<int>(w_VH.size(0)), static_cast<int>(w_VH.size(1))};
}

void forward(const Tensor& ids_T, const Tensor& w_VH, Tensor& x_TH) {
  gpu::dispatch(w_VH.scalar_type(), "embedding_forward", [&](auto tag) {
    using T = typename decltype(tag)::type;
    launch_embedding_forward<T>(shape_of(ids_T, w_VH), gpu::data<std::int64_t>(ids_T), gpu::data<T>(w_VH),
                                gpu::data<T>(x_TH), gpu::current_stream());
  });
}

/// Tokens in the order of their ids, those of one id in their own: by the low digit, then by the next.
Tensor sorted_by_id(const Tensor& ids_T, const EmbeddingShape& shape) {
  const at::TensorOptions int32 = ids_T.options().dtype(at::kInt);
  const PlanShape plan{shape.tokens, kDigits};
  const Tensor scratch = at::empty({permute_plan_scratch(plan)}, int32);
  const Tensor offsets = at::empty({kDigits + 1}, int32);
  const Tensor work = at::empty({3, shape.tokens}, int32);  // digit, row_of, slot_of
  const Tensor orders = at::empty({2, shape.tokens}, int32);
  auto* digit = gpu::data<std::int32_t>(work);
  std::int32_t* row_of = digit + shape.tokens;
  std::int32_t* slot_of = row_of + shape.tokens;
  const auto* ids = gpu::data<std::int64_t>(ids_T);
  const std::int32_t* order = nullptr;
  int next = 0;
  for (int shift = 0; shift == 0 || (shape.vocabulary - 1) >> shift > 0; shift += kDigitBits) {
    auto* sorted = gpu::data<std::int32_t>(orders) + std::int64_t{next} * shape.tokens;
    launch_id_digits(shape, ids, order, shift, digit, gpu::current_stream());
    launch_permute_plan(plan, digit, gpu::data<std::int32_t>(scratch), gpu::data<std::int32_t>(offsets), row_of,
                        order == nullptr ? sorted : slot_of, gpu::current_stream());
    if (order != nullptr) launch_compose_order(shape.tokens, slot_of, order, sorted, gpu::current_stream());
    order = sorted;
    next = 1 - next;
  }
  return orders[1 - next];
}

void backward(const Tensor& ids_T, const Tensor& dx_TH, Tensor& main_grad_VH) {
  const EmbeddingShape shape = shape_of(ids_T, main_grad_VH);
  if (shape.tokens == 0) return;
  const Tensor order = sorted_by_id(ids_T, shape);
  const Tensor scratch = at::empty({embedding_backward_scratch(shape)}, main_grad_VH.options());
  gpu::dispatch(dx_TH.scalar_type(), "embedding_backward", [&](auto tag) {
    using T = typename decltype(tag)::type;
    launch_embedding_backward<T>(shape, gpu::data<std::int64_t>(ids_T), gpu::data<std::int32_t>(order),
                                 gpu::data<T>(dx_TH), gpu::data<float>(scratch), gpu::data<float>(main_grad_VH),
                                 gpu::current_stream());
  });
}

}  // namespace

void register_embedding(CudaOps& ops) {
  ops.embedding_forward = forward;
  ops.embedding_backward = backward;
}

}  // namespace primus::ops::cuda
