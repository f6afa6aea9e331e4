#include "nn/moe.hpp"

#include "ops/gemm/gemm.hpp"
#include "ops/permute/permute.hpp"
#include "ops/swiglu/swiglu.hpp"

// Legend: T tokens, H hidden, E experts, K top_k, R = T·K rows sorted by expert, F ffn width.
namespace primus::nn {
namespace {

using Slot = model::MoeSlot;

std::string weight_name(int layer, const char* part) {
  return fmt::format("decoder.layers.{}.mlp.{}.weight", layer, part);
}

ops::AuxLossKind aux_loss_kind(const model::RouterSpec& router) {
  if (router.aux_loss_coefficient == 0.0) return ops::AuxLossKind::kNone;
  switch (router.load_balancing) {
    case model::LoadBalancing::kNone:
      return ops::AuxLossKind::kNone;
    case model::LoadBalancing::kAuxLoss:
      return ops::AuxLossKind::kAux;
    case model::LoadBalancing::kSeqAuxLoss:
      return ops::AuxLossKind::kSeqAux;
    default:
      PRIMUS_CHECK(false, "a load balancing type that validation should have refused");
  }
}

}  // namespace

Moe::Moe(const model::ModelSpec& spec, const model::NumericPolicy& policy, int layer, ParameterStore& parameters)
    : moe_(spec.moe.value()),
      router_(parameters.get(weight_name(layer, "router"))),
      fc1_(parameters.get(weight_name(layer, "experts.linear_fc1"))),
      fc2_(parameters.get(weight_name(layer, "experts.linear_fc2"))) {
  PRIMUS_CHECK(moe_.router.score_function == model::ScoreFunction::kSoftmax && !moe_.router.num_groups,
               "a router that validation should have refused");
  if (moe_.shared_ffn_hidden_size > 0) {
    shared_.emplace(fmt::format("decoder.layers.{}.mlp.shared_experts", layer), Slot::kSharedPreActivation, parameters);
  }
  metrics_.tokens_per_expert_E = at::zeros({moe_.router.num_experts}, router_.weight.options().dtype(at::kLong));
  metrics_.aux_loss_1 = at::zeros({1}, router_.weight.options().dtype(ops::to_aten(policy.router)));
}

void Moe::reset_metrics() {
  metrics_.tokens_per_expert_E.zero_();
  metrics_.aux_loss_1.zero_();
}

ops::RouterOptions Moe::router_options(const StepContext& step) const {
  return {.top_k = moe_.router.top_k,
          .softmax_order = moe_.router.softmax_order == model::SoftmaxOrder::kPre ? ops::SoftmaxOrder::kPre
                                                                                  : ops::SoftmaxOrder::kPost,
          .scaling_factor = moe_.router.scaling_factor,
          .selection = moe_.router.balance == model::RouterSpec::Balance::kForced ? ops::Selection::kForcedBalance
                                                                                  : ops::Selection::kTopK,
          .aux_loss = aux_loss_kind(moe_.router),
          .aux_loss_coefficient = moe_.router.aux_loss_coefficient,
          .num_sequences = step.batch.num_sequences};
}

Tensor Moe::gather(const Tensor& x_TH, const Tensor& row_of) const {
  Tensor x_RH = workspace({row_of.numel(), x_TH.size(1)}, x_TH);
  ops::permute_rows(x_TH, row_of, x_RH);
  return x_RH;
}

void Moe::route(const Tensor& x_TH, Saved& saved, const StepContext& step) {
  Tensor& logits_TE = saved.allocate(Slot::kLogits);
  ops::linear_forward(x_TH, router_.weight, logits_TE);
  Tensor count_E = at::empty({moe_.router.num_experts}, logits_TE.options().dtype(at::kInt));
  Tensor aux_loss_1 = at::empty({1}, logits_TE.options());
  Tensor& index_TK = saved.allocate(Slot::kIndex);
  ops::router_forward(logits_TE, router_options(step), index_TK, saved.allocate(Slot::kProb), count_E, aux_loss_1);
  ops::permute_plan(index_TK, moe_.router.num_experts, saved.allocate(Slot::kOffsets), saved.allocate(Slot::kRowOf),
                    saved.allocate(Slot::kSlotOf));
  if (step.mode == Mode::kTraining) {
    metrics_.tokens_per_expert_E.add_(count_E);
    metrics_.aux_loss_1.add_(aux_loss_1);
  }
}

Tensor& Moe::expert_pre_activation(const Tensor& x_TH, Saved& saved) {
  Tensor& pre_R2F = saved.allocate(Slot::kPreActivation);
  ops::grouped_linear_forward(gather(x_TH, saved.at(Slot::kRowOf)), fc1_.weight, saved.at(Slot::kOffsets), pre_R2F);
  return pre_R2F;
}

void Moe::restore(const Tensor& x_TH, Saved& saved, const StepContext& step) {
  if (saved.is_missing(Slot::kIndex)) route(x_TH, saved, step);
  if (saved.is_missing(Slot::kPreActivation)) expert_pre_activation(x_TH, saved);
  if (shared_) shared_->restore(x_TH, saved, step);
}

void Moe::experts_forward(const Tensor& x_TH, Saved& saved, Tensor& residual_TH) {
  const Tensor& slot_of = saved.at(Slot::kSlotOf);
  const Tensor& offsets = saved.at(Slot::kOffsets);
  const Tensor& pre_R2F = expert_pre_activation(x_TH, saved);
  Tensor prob_R = at::empty({slot_of.numel()}, saved.at(Slot::kProb).options());
  ops::permute_values(saved.at(Slot::kProb), slot_of, prob_R);
  Tensor activation_RF = workspace({pre_R2F.size(0), moe_.ffn_hidden_size}, x_TH);
  ops::swiglu_forward(pre_R2F, prob_R, {}, activation_RF);
  Tensor y_RH = workspace({pre_R2F.size(0), x_TH.size(1)}, x_TH);
  ops::grouped_linear_forward(activation_RF, fc2_.weight, offsets, y_RH);
  ops::unpermute_sum(y_RH, saved.at(Slot::kRowOf), residual_TH, ops::Write::kAccumulate);
}

void Moe::forward(const Tensor& x_TH, Saved& saved, const StepContext& step, Tensor& residual_TH) {
  route(x_TH, saved, step);
  experts_forward(x_TH, saved, residual_TH);
  if (shared_) shared_->forward(x_TH, saved, step, residual_TH);
}

Tensor Moe::experts_backward(const Tensor& dy_TH, const Tensor& x_TH, Saved& saved, Tensor& dx_TH,
                             std::vector<Tensor>& deferred) {
  const Tensor slot_of = saved.at(Slot::kSlotOf);
  const Tensor offsets = saved.at(Slot::kOffsets);
  Tensor prob_R = at::empty({slot_of.numel()}, saved.at(Slot::kProb).options());
  ops::permute_values(saved.at(Slot::kProb), slot_of, prob_R);

  const Tensor row_of = saved.at(Slot::kRowOf);
  const Tensor dy_RH = gather(dy_TH, row_of);
  Tensor pre_R2F = saved.at(Slot::kPreActivation);
  saved.release(Slot::kPreActivation);
  Tensor dactivation_RF = workspace({pre_R2F.size(0), moe_.ffn_hidden_size}, x_TH);
  ops::grouped_linear_dgrad(dy_RH, fc2_.weight, offsets, dactivation_RF);
  Tensor activation_RF = workspace({pre_R2F.size(0), moe_.ffn_hidden_size}, x_TH);
  Tensor dprob_R = at::empty_like(prob_R);
  // The gradient takes the pre-activation's storage: nothing reads that again.
  ops::swiglu_backward(dactivation_RF, pre_R2F, prob_R, {}, pre_R2F, dprob_R, activation_RF);
  dactivation_RF.reset();
  {
    Tensor dx_RH = workspace({pre_R2F.size(0), x_TH.size(1)}, x_TH);
    ops::grouped_linear_dgrad(pre_R2F, fc1_.weight, offsets, dx_RH);
    ops::unpermute_sum(dx_RH, row_of, dx_TH, ops::Write::kOverwrite);
  }
  Tensor dprob_TK = at::empty_like(saved.at(Slot::kProb));
  ops::unpermute_values(dprob_R, row_of, dprob_TK);
  deferred.insert(deferred.end(), {offsets, row_of, dy_RH, activation_RF, pre_R2F, x_TH});
  return dprob_TK;
}

void Moe::router_backward(const Tensor& dprob_TK, const Tensor& x_TH, Saved& saved, const StepContext& step,
                          Tensor& dx_TH, std::vector<Tensor>& deferred) {
  const Tensor& logits_TE = saved.at(Slot::kLogits);
  Tensor dlogits_TE = at::empty_like(logits_TE);
  ops::router_backward(logits_TE, saved.at(Slot::kIndex), saved.at(Slot::kProb), dprob_TK, router_options(step),
                       step.aux_scale, dlogits_TE);
  ops::linear_dgrad(dlogits_TE, router_.weight, dx_TH, ops::Write::kAccumulate);
  deferred.insert(deferred.end(), {dlogits_TE, x_TH});
}

void Moe::backward(const Tensor& dy_TH, const Tensor& x_TH, Saved& saved, const StepContext& step, Tensor& dx_TH) {
  std::vector<Tensor> deferred;
  const Tensor dprob_TK = experts_backward(dy_TH, x_TH, saved, dx_TH, deferred);
  router_backward(dprob_TK, x_TH, saved, step, dx_TH, deferred);
  if (shared_) {
    const std::vector<Tensor> shared = shared_->input_gradient(dy_TH, x_TH, saved, dx_TH, ops::Write::kAccumulate);
    deferred.insert(deferred.end(), shared.begin(), shared.end());
  }
  saved.release_all();
  if (step.weight_grad == WeightGradTiming::kDeferred) {
    saved.deferred() = std::move(deferred);
  } else {
    add_weight_gradients(deferred);
  }
}

void Moe::weight_grad(Saved& saved) {
  add_weight_gradients(saved.deferred());
  saved.deferred().clear();
}

void Moe::add_weight_gradients(std::span<const Tensor> deferred) {
  constexpr std::size_t kNumRouted = 8;
  PRIMUS_CHECK(deferred.size() == kNumRouted + (shared_ ? Mlp::kNumDeferred : 0),
               "{} tensors were left for the experts' weight gradients", deferred.size());
  const Tensor& offsets = deferred[0];
  ops::grouped_linear_wgrad(deferred[2], deferred[3], offsets, fc2_.main_grad);
  // The experts' input rows are gathered again rather than kept: K times the tokens' size.
  ops::grouped_linear_wgrad(deferred[4], gather(deferred[5], deferred[1]), offsets, fc1_.main_grad);
  ops::linear_wgrad(deferred[6], deferred[7], router_.main_grad);
  if (shared_) shared_->add_weight_gradients(deferred.subspan(kNumRouted));
}

}  // namespace primus::nn
