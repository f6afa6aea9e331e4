#include "ops/router/router_cuda.hpp"

#include "ops/cuda_table.hpp"
#include "ops/gpu/tensor.hpp"
#include "ops/not_on_gpu.hpp"

namespace primus::ops::cuda {
namespace {

/// An option without a kernel ends the run before it computes anything else.
void check_built(const RouterOptions& options) {
  const std::pair<bool, const char*> missing[] = {
      {options.selection == Selection::kSinkhorn, "moe_router_load_balancing_type sinkhorn"},
      {options.selection == Selection::kQuantile, "moe_router_load_balancing_type quantile_balancing"},
      {options.selection == Selection::kGiven, "num_hash_layers"},
      {options.logit_softcap != 0.0, "router_logit_softcapping"},
      {options.global_aux_loss != 0.0, "moe_router_load_balancing_type global_aux_loss"},
      {options.aux_loss != 0.0 && options.seq_aux_loss != 0.0, "moe_router_load_balancing_type with several losses"}};
  for (const auto& [is_asked_for, key] : missing) {
    if (is_asked_for) throw_not_on_gpu(key);
  }
}

RouterShape shape_of(const RouterInput& input, const RouterOptions& options) {
  check_built(options);
  if (input.bias_E.defined() && options.score_function == ScoreFunction::kSoftmax) {
    throw_not_on_gpu("moe_router_enable_expert_bias with the softmax");
  }
  if (options.num_groups > kMaxRouterGroups) {
    throw_not_on_gpu(fmt::format("moe_router_num_groups above {}", kMaxRouterGroups));
  }
  if (input.is_routed_T.defined()) throw_not_on_gpu("filling among the tokens of a micro-batch");
  const Tensor& logits_TE = input.logits_TE;
  if (logits_TE.scalar_type() != at::kFloat) throw_not_on_gpu("moe_router_dtype fp64");
  PRIMUS_CHECK(logits_TE.size(1) <= kMaxRouterExperts, "router: {} experts, on a GPU at most {}", logits_TE.size(1),
               kMaxRouterExperts);
  const std::int64_t groups = options.num_slopes();
  return {logits_TE.size(0), static_cast<int>(logits_TE.size(1)), static_cast<int>(options.top_k), groups,
          logits_TE.size(0) / groups};
}

RouterGroups groups_of(const RouterOptions& options, const RouterShape& shape) {
  const std::int64_t size = shape.experts / options.num_groups;
  const std::int64_t best =
      options.group_score == GroupScore::kMax ? 1 : std::max<std::int64_t>(1, options.top_k / options.group_top_k);
  return {static_cast<int>(options.num_groups), static_cast<int>(options.group_top_k),
          static_cast<int>(std::min(best, size))};
}

void forward(const RouterInput& input, const RouterOptions& options, RouterOutput& output) {
  const RouterShape shape = shape_of(input, options);
  const Tensor unit_count = at::empty({shape.units(), shape.experts}, output.num_tokens_E.options());
  Tensor unit_probability, unit_balance, unit_square_lse;
  double slope_factor = 0.0;
  if (options.has_balance_loss()) {
    unit_probability = at::empty({shape.units(), shape.experts}, input.logits_TE.options());
    slope_factor = (options.aux_loss + options.seq_aux_loss / static_cast<double>(shape.groups)) *
                   balance_factor(shape.experts, shape.top_k, shape.tokens_per_group);
    if (!options.counts_choices(input.bias_E.defined())) unit_balance = at::empty_like(unit_count);
  }
  if (options.z_loss != 0.0) {
    unit_square_lse = at::empty({shape.units()}, input.logits_TE.options().dtype(at::kDouble));
  }
  output.loss_4.zero_();
  launch_router_forward(shape,
                        {.logits = gpu::data<float>(input.logits_TE),
                         .bias = gpu::data<float>(input.bias_E),
                         .score = options.score_function,
                         .order = options.softmax_order,
                         .selection = options.selection,
                         .groups = groups_of(options, shape),
                         .scaling = static_cast<float>(options.scaling_factor),
                         .slope_factor = slope_factor,
                         .z_factor = shape.tokens > 0 ? options.z_loss / static_cast<double>(shape.tokens) : 0.0,
                         .index = gpu::data<std::int32_t>(output.index_TK),
                         .prob = gpu::data<float>(output.prob_TK),
                         .count = gpu::data<std::int32_t>(output.num_tokens_E),
                         .loss_4 = gpu::data<float>(output.loss_4),
                         .balance_place = options.seq_aux_loss != 0.0 ? RouterLoss::kSeqAux : RouterLoss::kAux,
                         .z_place = RouterLoss::kZ,
                         .slope = gpu::data<float>(output.slope_GE),
                         .unit_probability = gpu::data<float>(unit_probability),
                         .unit_count = gpu::data<std::int32_t>(unit_count),
                         .unit_balance = gpu::data<std::int32_t>(unit_balance),
                         .unit_square_lse = gpu::data<double>(unit_square_lse)},
                        gpu::current_stream());
}

void backward(const RouterInput& input, const RouterOutput& output, const Tensor& dprob_TK,
              const RouterOptions& options, double loss_scale, Tensor& dlogits_TE) {
  const RouterShape shape = shape_of(input, options);
  const double z_factor =
      shape.tokens > 0 ? 2.0 * options.z_loss * loss_scale / static_cast<double>(shape.tokens) : 0.0;
  launch_router_backward(shape,
                         {.logits = gpu::data<float>(input.logits_TE),
                          .index = gpu::data<std::int32_t>(output.index_TK),
                          .prob = gpu::data<float>(output.prob_TK),
                          .dprob = gpu::data<float>(dprob_TK),
                          .score = options.score_function,
                          .order = options.softmax_order,
                          .scaling = static_cast<float>(options.scaling_factor),
                          .slope = gpu::data<float>(output.slope_GE),
                          .loss_scale = static_cast<float>(loss_scale),
                          .z_factor = static_cast<float>(z_factor),
                          .dlogits = gpu::data<float>(dlogits_TE)},
                         gpu::current_stream());
}

}  // namespace

void register_router(CudaOps& ops) {
  ops.router_forward = forward;
  ops.router_backward = backward;
}

}  // namespace primus::ops::cuda
