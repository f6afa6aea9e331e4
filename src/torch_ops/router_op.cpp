
#include "ops/router/router.hpp"
#include "torch_ops/arguments.hpp"
#include "torch_ops/ops.hpp"

namespace primus::torch_ops {
namespace {

ops::ScoreFunction score_function_of(std::string_view word) {
  if (word == "softmax") return ops::ScoreFunction::kSoftmax;
  if (word == "sigmoid") return ops::ScoreFunction::kSigmoid;
  if (word == "sqrtsoftplus") return ops::ScoreFunction::kSqrtSoftplus;
  throw UserError(
      fmt::format("primus::router: score_function: expected softmax, sigmoid or sqrtsoftplus, found '{}'", word));
}

void require_in(const char* name, std::int64_t value, std::int64_t low, std::int64_t high) {
  if (value >= low && value <= high) return;
  throw UserError(fmt::format("primus::router: {}: expected {} to {}, found {}", name, low, high, value));
}

/// The options themselves; throws UserError for what `num_experts` experts cannot have.
ops::RouterOptions checked_options(std::int64_t num_experts, const ops::RouterOptions& options) {
  require_in("num_groups", options.num_groups, 1, num_experts);
  if (num_experts % options.num_groups != 0)
    throw UserError(fmt::format("primus::router: num_groups: {} experts do not divide into {} groups", num_experts,
                                options.num_groups));
  require_in("group_topk", options.group_top_k, 1, options.num_groups);
  require_in("topk", options.top_k, 1, num_experts / options.num_groups * options.group_top_k);
  return options;
}

ops::SoftmaxOrder softmax_order(bool use_pre_softmax) {
  return use_pre_softmax ? ops::SoftmaxOrder::kPre : ops::SoftmaxOrder::kPost;
}

}  // namespace

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> router(const Tensor& logits_TE, const std::optional<Tensor>& bias_E,
                                                          std::int64_t top_k, std::string_view score_function,
                                                          bool use_pre_softmax, double scaling_factor,
                                                          std::int64_t num_groups, std::int64_t group_topk,
                                                          double aux_loss_coeff, double z_loss_coeff) {
  require_device(logits_TE);
  ops::RouterInput input{.logits_TE = checked(logits_TE, {"router", "logits", Kind::kStatistics, {-1, -1}})};
  const std::int64_t num_tokens = logits_TE.size(0);
  const std::int64_t num_experts = logits_TE.size(1);
  if (bias_E) {
    require_same_device("router", logits_TE, *bias_E);
    input.bias_E = checked(*bias_E, {"router", "bias", Kind::kStatistics, {num_experts}}).to(logits_TE.scalar_type());
  }
  const ops::RouterOptions options =
      checked_options(logits_TE.size(1), {.top_k = top_k,
                                          .score_function = score_function_of(score_function),
                                          .softmax_order = softmax_order(use_pre_softmax),
                                          .scaling_factor = scaling_factor,
                                          .num_groups = num_groups,
                                          .group_top_k = group_topk,
                                          .aux_loss = aux_loss_coeff,
                                          .z_loss = z_loss_coeff});
  const auto values = input.logits_TE.options();
  ops::RouterOutput output{.index_TK = at::empty({num_tokens, top_k}, values.dtype(at::kInt)),
                           .prob_TK = at::empty({num_tokens, top_k}, values),
                           .num_tokens_E = at::empty({num_experts}, values.dtype(at::kInt)),
                           .loss_4 = at::empty({ops::RouterLoss::kNum}, values)};
  Tensor slope_GE = at::zeros({options.num_slopes(), num_experts}, values);
  if (options.has_balance_loss()) output.slope_GE = slope_GE;
  ops::router_forward(input, options, output);
  return {output.prob_TK, output.index_TK, output.num_tokens_E, output.loss_4.sum(), slope_GE};
}

Tensor router_backward(const std::optional<Tensor>& dprob_TK, const std::optional<Tensor>& dloss,
                       const Tensor& logits_TE, const Tensor& prob_TK, const Tensor& index_TK, const Tensor& slope_GE,
                       std::int64_t top_k, std::string_view score_function, bool use_pre_softmax, double scaling_factor,
                       std::int64_t num_groups, std::int64_t group_topk, double aux_loss_coeff, double z_loss_coeff) {
  require_device(logits_TE);
  const ops::RouterInput input{.logits_TE =
                                   checked(logits_TE, {"router_backward", "logits", Kind::kStatistics, {-1, -1}})};
  const ops::RouterOptions options =
      checked_options(logits_TE.size(1), {.top_k = top_k,
                                          .score_function = score_function_of(score_function),
                                          .softmax_order = softmax_order(use_pre_softmax),
                                          .scaling_factor = scaling_factor,
                                          .num_groups = num_groups,
                                          .group_top_k = group_topk,
                                          .aux_loss = aux_loss_coeff,
                                          .z_loss = z_loss_coeff});
  ops::RouterOutput output{.index_TK = index_TK.contiguous(), .prob_TK = prob_TK.contiguous()};
  if (options.has_balance_loss()) output.slope_GE = slope_GE.contiguous();
  Tensor dlogits_TE = at::zeros_like(input.logits_TE);
  if (dprob_TK) ops::router_backward(input, output, dprob_TK->contiguous(), options, 0.0, dlogits_TE);
  if (!dloss || !(options.has_balance_loss() || options.z_loss != 0.0)) return dlogits_TE;
  // The losses' gradient is linear in theirs: made once for 1 and multiplied on the device, so that nobody waits.
  Tensor of_losses_TE = at::empty_like(dlogits_TE);
  ops::router_backward(input, output, at::zeros_like(output.prob_TK), options, 1.0, of_losses_TE);
  return dlogits_TE.add_(of_losses_TE.mul_(*dloss));
}

}  // namespace primus::torch_ops
