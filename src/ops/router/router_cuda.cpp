#include "ops/router/router_cuda.hpp"

#include "ops/cuda_table.hpp"
#include "ops/gpu/tensor.hpp"
#include "ops/not_on_gpu.hpp"

namespace primus::ops::cuda {
namespace {

/// An option without a kernel ends the run before it computes anything else.
void check_built(const RouterOptions& options) {
  const std::pair<bool, const char*> missing[] = {
      {options.score_function != ScoreFunction::kSoftmax, "moe_router_score_function other than softmax"},
      {options.num_groups > 1, "moe_router_num_groups"},
      {options.selection == Selection::kSinkhorn, "moe_router_load_balancing_type sinkhorn"},
      {options.selection == Selection::kQuantile, "moe_router_load_balancing_type quantile_balancing"},
      {options.logit_softcap != 0.0, "router_logit_softcapping"},
      {options.z_loss != 0.0, "moe_z_loss_coeff"},
      {options.global_aux_loss != 0.0, "moe_router_load_balancing_type global_aux_loss"},
      {options.aux_loss != 0.0 && options.seq_aux_loss != 0.0, "moe_router_load_balancing_type with several losses"}};
  for (const auto& [is_asked_for, key] : missing) {
    if (is_asked_for) throw_not_on_gpu(key);
  }
}

RouterShape shape_of(const RouterInput& input, const RouterOptions& options) {
  check_built(options);
  if (input.bias_E.defined()) throw_not_on_gpu("moe_router_enable_expert_bias");
  if (input.is_routed_T.defined()) throw_not_on_gpu("filling among the tokens of a micro-batch");
  const Tensor& logits_TE = input.logits_TE;
  if (logits_TE.scalar_type() != at::kFloat) throw_not_on_gpu("moe_router_dtype fp64");
  PRIMUS_CHECK(logits_TE.size(1) <= kMaxRouterExperts, "router: {} experts, on a GPU at most {}", logits_TE.size(1),
               kMaxRouterExperts);
  const std::int64_t groups = options.num_slopes();
  return {logits_TE.size(0), static_cast<int>(logits_TE.size(1)), static_cast<int>(options.top_k), groups,
          logits_TE.size(0) / groups};
}

void forward(const RouterInput& input, const RouterOptions& options, RouterOutput& output) {
  const RouterShape shape = shape_of(input, options);
  const Tensor unit_count = at::empty({shape.units(), shape.experts}, output.num_tokens_E.options());
  Tensor unit_probability;
  double slope_factor = 0.0;
  if (options.has_balance_loss()) {
    unit_probability = at::empty({shape.units(), shape.experts}, input.logits_TE.options());
    slope_factor = (options.aux_loss + options.seq_aux_loss / static_cast<double>(shape.groups)) *
                   balance_factor(shape.experts, shape.top_k, shape.tokens_per_group);
  }
  output.loss_4.zero_();
  const int place = options.seq_aux_loss != 0.0 ? RouterLoss::kSeqAux : RouterLoss::kAux;
  launch_router_forward(
      shape,
      {gpu::data<float>(input.logits_TE), options.softmax_order, options.selection,
       static_cast<float>(options.scaling_factor), slope_factor, gpu::data<std::int32_t>(output.index_TK),
       gpu::data<float>(output.prob_TK), gpu::data<std::int32_t>(output.num_tokens_E),
       gpu::data<float>(output.loss_4) + place, gpu::data<float>(output.slope_GE), gpu::data<float>(unit_probability),
       gpu::data<std::int32_t>(unit_count)},
      gpu::current_stream());
}

void backward(const RouterInput& input, const RouterOutput& output, const Tensor& dprob_TK,
              const RouterOptions& options, double loss_scale, Tensor& dlogits_TE) {
  launch_router_backward(
      shape_of(input, options),
      {gpu::data<float>(input.logits_TE), gpu::data<std::int32_t>(output.index_TK), gpu::data<float>(output.prob_TK),
       gpu::data<float>(dprob_TK), options.softmax_order, static_cast<float>(options.scaling_factor),
       gpu::data<float>(output.slope_GE), static_cast<float>(loss_scale), gpu::data<float>(dlogits_TE)},
      gpu::current_stream());
}

}  // namespace

void register_router(CudaOps& ops) {
  ops.router_forward = forward;
  ops.router_backward = backward;
}

}  // namespace primus::ops::cuda
