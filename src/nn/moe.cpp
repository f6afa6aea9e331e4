#include "nn/moe.hpp"

#include <ATen/ops/sigmoid.h>

#include "nn/weight_gradients.hpp"
#include "ops/bias/bias.hpp"
#include "ops/gemm/gemm.hpp"
#include "ops/permute/capacity.hpp"
#include "ops/permute/permute.hpp"

// Legend: T tokens, H hidden, E experts, K top_k, R rows sorted by expert, F ffn width; a pre-activation ("pre") is 2F
// wide in gated units, F in plain ones.
namespace primus::nn {
namespace {

using Slot = model::MoeSlot;

std::string parameter_name(int layer, const char* part) {
  return fmt::format("decoder.layers.{}.mlp.{}", layer, part);
}

/// What backward leaves for the weight gradients, in this order; the router's and the shared experts' follow.
struct Left {
  enum : std::size_t { kOffsets, kRowOf, kDyRows, kActivation, kDpre, kInput, kProbRows };
  static constexpr std::size_t kNum = 7;
};

bool keeps_free_rows(const model::RouterSpec& router) {
  return router.capacity && router.capacity->free_rows == model::ExpertCapacity::FreeRows::kKept;
}

}  // namespace

Moe::Moe(const model::ModelSpec& spec, const model::NumericPolicy& policy, int layer, ParameterStore& parameters)
    : moe_(spec.moe.value()),
      activation_(activation_options(spec)),
      statistics_(ops::to_aten(policy.statistics)),
      router_(spec, policy, layer, parameters),
      fc1_(parameters.get(parameter_name(layer, "experts.linear_fc1.weight"))),
      fc2_(parameters.get(parameter_name(layer, "experts.linear_fc2.weight"))) {
  if (moe_.latent) latent_.emplace(spec, layer, parameters);
  if (spec.linear_bias == model::Part::kPresent) {
    fc1_bias_ = &parameters.get(parameter_name(layer, "experts.linear_fc1.bias"));
    fc2_bias_ = &parameters.get(parameter_name(layer, "experts.linear_fc2.bias"));
  }
  if (moe_.shared_ffn_hidden_size == 0) return;
  shared_.emplace(spec, parameter_name(layer, "shared_experts"), Slot::kSharedPreActivation, parameters,
                  moe_.shared_glu_interleave);
  if (moe_.shared_gate == model::Part::kPresent) {
    shared_gate_ = &parameters.get(parameter_name(layer, "shared_experts.gate_weight"));
  }
}

Tensor Moe::gather(const Tensor& x_TH, const Tensor& row_of, std::int64_t num_rows) const {
  Tensor x_RH = workspace({num_rows, x_TH.size(1)}, x_TH);
  if (keeps_free_rows(moe_.router)) x_RH.zero_();
  ops::permute_rows(x_TH, row_of, x_RH);
  return x_RH;
}

Tensor Moe::row_probabilities(Saved& saved) const {
  const Tensor prob_TK = saved.at(Slot::kProb).to(statistics_);  // itself unless the router is wider
  const Tensor& slot_of = saved.at(Slot::kSlotOf);
  Tensor prob_R = at::empty({slot_of.numel()}, prob_TK.options());
  ops::permute_values(prob_TK, slot_of, prob_R);
  return prob_R;
}

/// How many rows hold something; undefined where all do.
Tensor Moe::num_rows(const Tensor& offsets, const StepContext& step) const {
  if (!moe_.router.capacity && !step.is_routed_T.defined()) return {};
  return offsets.narrow(0, moe_.router.num_experts, 1);
}

void Moe::plan(Saved& saved) {
  const std::int64_t num_experts = moe_.router.num_experts;
  const Tensor& index_TK = saved.at(Slot::kIndex);
  Tensor& offsets = saved.allocate(Slot::kOffsets);
  Tensor& row_of = saved.allocate(Slot::kRowOf);
  Tensor& slot_of = saved.allocate(Slot::kSlotOf);
  if (!moe_.router.capacity) return ops::permute_plan(index_TK, num_experts, offsets, row_of, slot_of);
  const model::ExpertCapacity& capacity = *moe_.router.capacity;
  const ops::CapacityOptions options{
      .capacity = ops::expert_capacity(index_TK.size(0), moe_.router.top_k, num_experts, capacity.factor),
      .drop = capacity.drop == model::ExpertCapacity::Drop::kPosition ? ops::DropPolicy::kPosition
                                                                      : ops::DropPolicy::kProbability,
      .free_rows = keeps_free_rows(moe_.router) ? ops::FreeRows::kKept : ops::FreeRows::kLeftOut};
  ops::permute_plan_within_capacity(index_TK, saved.at(Slot::kProb), num_experts, options, offsets, row_of, slot_of);
}

Tensor Moe::expert_input(const Tensor& x_TH, const Tensor& row_of, std::int64_t num_rows,
                         const Tensor& input_scale_R) const {
  Tensor x_RH = gather(x_TH, row_of, num_rows);
  if (input_scale_R.defined()) x_RH.mul_(input_scale_R.unsqueeze(1));
  return x_RH;
}

Tensor Moe::input_scale_gradient(const Tensor& x_TH, const Tensor& row_of, const Tensor& prob_R, Tensor& dx_RH) const {
  const Tensor x_RH = gather(x_TH, row_of, prob_R.numel()).to(prob_R.scalar_type());
  const Tensor dprob_R = dx_RH.to(prob_R.scalar_type()).mul(x_RH).sum(1);
  dx_RH.mul_(prob_R.unsqueeze(1));
  return dprob_R;
}

Tensor& Moe::expert_pre_activation(const Tensor& x_TH, Saved& saved) {
  const Tensor& offsets = saved.at(Slot::kOffsets);
  Tensor& pre = saved.allocate(Slot::kPreActivation);
  const Tensor input_scale_R = scales_input() ? row_probabilities(saved) : Tensor();
  ops::grouped_linear_forward(expert_input(x_TH, saved.at(Slot::kRowOf), pre.size(0), input_scale_R), fc1_.weight,
                              offsets, pre);
  if (fc1_bias_ != nullptr) ops::bias_add(fc1_bias_->weight, offsets, {}, pre);
  return pre;
}

void Moe::route(const Tensor& x_TH, Saved& saved, const StepContext& step) {
  router_.forward(x_TH, saved, step);
  plan(saved);
}

void Moe::restore(const Tensor& x_TH, Saved& saved, const StepContext& step) {
  if (saved.is_missing(Slot::kIndex)) route(x_TH, saved, step);
  if (saved.is_missing(Slot::kPreActivation)) {
    if (latent_) {
      latent_forward(x_TH, saved, step);
    } else {
      expert_pre_activation(x_TH, saved);
    }
  }
  if (!shared_) return;
  shared_->restore(x_TH, saved, step);
  if (shared_gate_ != nullptr && saved.is_missing(Slot::kSharedGate)) shared_gate(x_TH, saved);
}

void Moe::experts_forward(const Tensor& x_TH, Saved& saved, const StepContext& step, Tensor& residual_TH) {
  const Tensor& offsets = saved.at(Slot::kOffsets);
  const Tensor& pre = expert_pre_activation(x_TH, saved);
  const Tensor prob_R = scales_input() ? Tensor() : row_probabilities(saved);
  Tensor activation_RF = workspace({pre.size(0), moe_.ffn_hidden_size}, x_TH);
  ops::activation_forward(gate_before_up(pre, moe_.glu_interleave), activation_, prob_R, num_rows(offsets, step),
                          activation_RF);
  Tensor y_RH = workspace({pre.size(0), x_TH.size(1)}, x_TH);
  ops::grouped_linear_forward(activation_RF, fc2_.weight, offsets, y_RH);
  if (fc2_bias_ != nullptr) ops::bias_add(fc2_bias_->weight, offsets, prob_R, y_RH);
  ops::unpermute_sum(y_RH, saved.at(Slot::kRowOf), residual_TH, ops::Write::kAccumulate);
}

void Moe::latent_forward(const Tensor& x_TH, Saved& saved, const StepContext& step) {
  const Tensor input_TL = latent_->enter(x_TH, saved);
  Tensor& output_TL = saved.allocate(Slot::kLatentOutput);
  output_TL.zero_();
  experts_forward(input_TL, saved, step, output_TL);
}

Tensor Moe::routed_backward(const Tensor& dy_TH, const Tensor& x_TH, Saved& saved, const StepContext& step,
                            Tensor& dx_TH, std::vector<Tensor>& deferred, std::vector<Tensor>& latent) {
  if (!latent_) return experts_backward(dy_TH, x_TH, saved, step, dx_TH, deferred);
  const Tensor doutput_TL = latent_->leave_backward(dy_TH, saved, latent);
  Tensor dinput_TL = workspace({x_TH.size(0), latent_->width()}, x_TH);
  const Tensor input_TL = saved.at(Slot::kLatentInput);
  Tensor dprob_TK = experts_backward(doutput_TL, input_TL, saved, step, dinput_TL, deferred);
  latent_->enter_backward(dinput_TL, x_TH, dx_TH, latent);
  return dprob_TK;
}

Tensor& Moe::shared_gate(const Tensor& x_TH, Saved& saved) {
  Tensor& gate_T = saved.allocate(Slot::kSharedGate);
  Tensor logit_T1 = gate_T.view({gate_T.numel(), 1});
  ops::linear_forward(x_TH, shared_gate_->weight, logit_T1);
  gate_T.sigmoid_();
  return gate_T;
}

void Moe::forward(const Tensor& x_TH, Saved& saved, const StepContext& step, Tensor& residual_TH) {
  route(x_TH, saved, step);
  if (latent_) {
    latent_forward(x_TH, saved, step);
    latent_->leave(saved, residual_TH);
  } else {
    experts_forward(x_TH, saved, step, residual_TH);
  }
  if (!shared_) return;
  const Tensor gate_T = shared_gate_ != nullptr ? shared_gate(x_TH, saved) : Tensor();
  shared_->scaled_forward(x_TH, gate_T, saved, residual_TH);
}

Tensor Moe::experts_backward(const Tensor& dy_TH, const Tensor& x_TH, Saved& saved, const StepContext& step,
                             Tensor& dx_TH, std::vector<Tensor>& deferred) {
  const Tensor offsets = saved.at(Slot::kOffsets);
  const Tensor row_of = saved.at(Slot::kRowOf);
  const Tensor prob_R = row_probabilities(saved);
  Tensor pre = gate_before_up(saved.at(Slot::kPreActivation), moe_.glu_interleave);
  saved.release(Slot::kPreActivation);
  const Tensor dy_RH = gather(dy_TH, row_of, pre.size(0));
  Tensor dactivation_RF = workspace({pre.size(0), moe_.ffn_hidden_size}, x_TH);
  ops::grouped_linear_dgrad(dy_RH, fc2_.weight, offsets, dactivation_RF);
  Tensor activation_RF = workspace({pre.size(0), moe_.ffn_hidden_size}, x_TH);
  const Tensor scale_R = scales_input() ? Tensor() : prob_R;
  Tensor dprob_R = at::empty_like(prob_R);
  // The gradient takes the pre-activation's storage: nothing reads that again.
  ops::activation_backward(dactivation_RF, pre, activation_, scale_R, num_rows(offsets, step), pre, dprob_R,
                           activation_RF);
  pre = gate_beside_up(pre, moe_.glu_interleave);
  if (fc2_bias_ != nullptr && !scales_input()) {
    ops::bias_scale_gradient(dy_RH, fc2_bias_->weight, offsets, dprob_R);
  }
  dactivation_RF.reset();
  {
    Tensor dx_RH = workspace({pre.size(0), x_TH.size(1)}, x_TH);
    ops::grouped_linear_dgrad(pre, fc1_.weight, offsets, dx_RH);
    if (scales_input()) dprob_R = input_scale_gradient(x_TH, row_of, prob_R, dx_RH);
    ops::unpermute_sum(dx_RH, row_of, dx_TH, ops::Write::kOverwrite);
  }
  Tensor dprob_TK = at::empty({row_of.size(0), row_of.size(1)}, dprob_R.options());
  ops::unpermute_values(dprob_R, row_of, dprob_TK);
  deferred.insert(deferred.end(), {offsets, row_of, dy_RH, activation_RF, pre, x_TH, prob_R});
  return dprob_TK.to(saved.at(Slot::kProb).scalar_type());
}

void Moe::shared_backward(const Tensor& dy_TH, const Tensor& x_TH, Saved& saved, Tensor& dx_TH,
                          std::vector<Tensor>& deferred) {
  Tensor gate_T;
  Tensor dgate_T;
  if (shared_gate_ != nullptr) {
    gate_T = saved.at(Slot::kSharedGate);
    dgate_T = at::empty_like(gate_T);
  }
  const std::vector<Tensor> left =
      shared_->input_gradient(dy_TH, x_TH, gate_T, saved, dx_TH, ops::Write::kAccumulate, dgate_T);
  deferred.insert(deferred.end(), left.begin(), left.end());
  if (shared_gate_ == nullptr) return;
  // d σ = σ · (1 − σ)
  const Tensor dlogit_T1 = dgate_T.mul_(gate_T).mul_(gate_T.neg().add_(1.0)).view({gate_T.numel(), 1});
  ops::linear_dgrad(dlogit_T1, shared_gate_->weight, dx_TH, ops::Write::kAccumulate);
  deferred.push_back(dlogit_T1);
}

void Moe::backward(const Tensor& dy_TH, const Tensor& x_TH, Saved& saved, const StepContext& step, Tensor& dx_TH) {
  std::vector<Tensor> deferred;
  std::vector<Tensor> latent;
  const Tensor dprob_TK = routed_backward(dy_TH, x_TH, saved, step, dx_TH, deferred, latent);
  const std::vector<Tensor> left = router_.backward(dprob_TK, x_TH, saved, step, dx_TH);
  deferred.insert(deferred.end(), left.begin(), left.end());
  if (shared_) shared_backward(dy_TH, x_TH, saved, dx_TH, deferred);
  deferred.insert(deferred.end(), latent.begin(), latent.end());
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
  constexpr std::size_t kRouted = Left::kNum + Router::kNumDeferred;
  const std::size_t shared = shared_ ? Mlp::kNumDeferred + (shared_gate_ != nullptr ? 1 : 0) : 0;
  const std::size_t latent = latent_ ? LatentProjection::kNumDeferred : 0;
  PRIMUS_CHECK(deferred.size() == kRouted + shared + latent, "{} tensors were left for the experts' weight gradients",
               deferred.size());
  const Tensor& offsets = deferred[Left::kOffsets];
  const Tensor& dy_RH = deferred[Left::kDyRows];
  const Tensor& dpre = deferred[Left::kDpre];
  const Tensor& x_TH = deferred[Left::kInput];
  add_grouped_gradient(dy_RH, deferred[Left::kActivation], offsets, fc2_);
  // The experts' input rows are gathered again rather than kept: K times the tokens' size.
  const Tensor& prob_R = deferred[Left::kProbRows];
  const Tensor x_RH = expert_input(x_TH, deferred[Left::kRowOf], dpre.size(0), scales_input() ? prob_R : Tensor());
  add_grouped_gradient(dpre, x_RH, offsets, fc1_);
  if (fc1_bias_ != nullptr) {
    ops::bias_gradient(dy_RH, offsets, scales_input() ? Tensor() : prob_R, fc2_bias_->sum_target());
    ops::bias_gradient(dpre, offsets, {}, fc1_bias_->sum_target());
  }
  router_.add_weight_gradients(deferred.subspan(Left::kNum, Router::kNumDeferred));
  if (latent_) latent_->add_weight_gradients(deferred.subspan(kRouted + shared));
  if (!shared_) return;
  const std::span<const Tensor> of_shared = deferred.subspan(kRouted, Mlp::kNumDeferred);
  shared_->add_weight_gradients(of_shared);
  if (shared_gate_ == nullptr) return;
  add_linear_gradient(deferred[kRouted + Mlp::kNumDeferred], of_shared[Mlp::kInput], *shared_gate_);
}

}  // namespace primus::nn
