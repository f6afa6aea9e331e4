#include "ops/router/router_cuda.hpp"

#include "ops/cuda_table.hpp"
#include "ops/gpu/tensor.hpp"

namespace primus::ops::cuda {
namespace {

RouterShape shape_of(const Tensor& logits_TE, const RouterOptions& options) {
  PRIMUS_CHECK(logits_TE.scalar_type() == at::kFloat, "router: logits on a GPU must be fp32, not {}",
               c10::toString(logits_TE.scalar_type()));
  PRIMUS_CHECK(logits_TE.size(1) <= kMaxRouterExperts, "router: {} experts, on a GPU at most {}", logits_TE.size(1),
               kMaxRouterExperts);
  const std::int64_t groups = options.aux_loss == AuxLossKind::kSeqAux ? options.num_sequences : 1;
  return {logits_TE.size(0), static_cast<int>(logits_TE.size(1)), static_cast<int>(options.top_k), groups,
          logits_TE.size(0) / groups};
}

void forward(const Tensor& logits_TE, const RouterOptions& options, Tensor& index_TK, Tensor& prob_TK, Tensor& count_E,
             Tensor& aux_loss_1) {
  const RouterShape shape = shape_of(logits_TE, options);
  const bool with_aux = options.aux_loss != AuxLossKind::kNone && shape.tokens > 0;
  const Tensor unit_count = at::empty({shape.units(), shape.experts}, count_E.options());
  Tensor unit_probability;
  if (with_aux) unit_probability = at::empty({shape.units(), shape.experts}, logits_TE.options());
  launch_router_forward(
      shape,
      {gpu::data<float>(logits_TE), options.softmax_order, options.selection,
       static_cast<float>(options.scaling_factor),
       with_aux ? auxiliary_factor(options, shape.experts, shape.tokens_per_group, shape.groups) : 0.0,
       gpu::data<std::int32_t>(index_TK), gpu::data<float>(prob_TK), gpu::data<std::int32_t>(count_E),
       gpu::data<float>(aux_loss_1), gpu::data<float>(unit_probability), gpu::data<std::int32_t>(unit_count)},
      gpu::current_stream());
}

void backward(const Tensor& logits_TE, const Tensor& index_TK, const Tensor& prob_TK, const Tensor& dprob_TK,
              const RouterOptions& options, double aux_scale, Tensor& dlogits_TE) {
  const RouterShape shape = shape_of(logits_TE, options);
  const bool with_aux = options.aux_loss != AuxLossKind::kNone && shape.tokens > 0;
  Tensor group_count;
  double factor = 0.0;
  if (with_aux) {
    group_count = at::empty({shape.groups, shape.experts}, index_TK.options());
    factor = aux_scale * auxiliary_factor(options, shape.experts, shape.tokens_per_group, shape.groups);
  }
  launch_router_backward(shape,
                         {gpu::data<float>(logits_TE), gpu::data<std::int32_t>(index_TK), gpu::data<float>(prob_TK),
                          gpu::data<float>(dprob_TK), options.softmax_order, static_cast<float>(options.scaling_factor),
                          factor, gpu::data<std::int32_t>(group_count), gpu::data<float>(dlogits_TE)},
                         gpu::current_stream());
}

}  // namespace

void register_router(CudaOps& ops) {
  ops.router_forward = forward;
  ops.router_backward = backward;
}

}  // namespace primus::ops::cuda
