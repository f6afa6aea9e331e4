#include "nn/router.hpp"

#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/sign.h>

#include <numeric>

#include "ops/bias/bias.hpp"
#include "ops/gemm/gemm.hpp"
#include "ops/permute/capacity.hpp"

// Legend: T tokens, H hidden, E experts, K top_k.
namespace primus::nn {
namespace {

using Slot = model::MoeSlot;

ops::ScoreFunction score_function(const model::RouterSpec& router) {
  switch (router.score_function) {
    case model::ScoreFunction::kSoftmax:
      return ops::ScoreFunction::kSoftmax;
    case model::ScoreFunction::kSigmoid:
      return ops::ScoreFunction::kSigmoid;
    case model::ScoreFunction::kSqrtSoftplus:
      return ops::ScoreFunction::kSqrtSoftplus;
  }
  PRIMUS_CHECK(false, "a score function that the router does not know");
}

/// Sinkhorn's choice has probabilities of its own: one expert's sigmoid, or the softmax over all, neither scaled.
void set_sinkhorn(Mode mode, ops::RouterOptions& options) {
  options.score_function = options.top_k == 1 ? ops::ScoreFunction::kSigmoid : ops::ScoreFunction::kSoftmax;
  options.softmax_order = ops::SoftmaxOrder::kPre;
  options.scaling_factor = 1.0;
  // Without training there is no balance to keep, and a token's experts do not depend on its neighbours.
  options.selection = mode == Mode::kEvaluation ? ops::Selection::kTopK : ops::Selection::kSinkhorn;
}

/// x in `dtype`, where a product of both has to have one: fp64 does not mix.
Tensor matched(const Tensor& x, at::ScalarType dtype) {
  const bool mixes = (x.scalar_type() == at::kDouble) == (dtype == at::kDouble);
  return mixes ? x : x.to(dtype);
}

}  // namespace

Router::Router(const model::ModelSpec& spec, const model::NumericPolicy& policy, int layer, ParameterStore& parameters)
    : router_(spec.router(layer)),
      layer_(layer),
      weight_(parameters.get(fmt::format("decoder.layers.{}.mlp.router.weight", layer))) {
  const auto find = [&](const char* part) {
    return &parameters.get(fmt::format("decoder.layers.{}.mlp.router.{}", layer, part));
  };
  if (spec.linear_bias == model::Part::kPresent) bias_ = find("bias");
  if (router_.expert_bias == model::RouterSpec::ExpertBias::kOn) choice_bias_ = find("expert_bias");
  const auto router_values = weight_.weight.options().dtype(ops::to_aten(policy.router));
  if (router_.assignment == model::RouterSpec::Assignment::kQuantile) {
    choice_bias_ = find("quantile_bias");
    quantile_sum_E_ = at::zeros({router_.num_experts}, router_values);
  }
  if (router_.assignment == model::RouterSpec::Assignment::kByToken) token_experts_ = find("token_experts");
  if (router_.quantile_rule) {
    margins_EB_ = at::zeros({router_.num_experts, router_.quantile_rule->num_bins}, at::kLong);
    earlier_margins_EB_ = at::zeros_like(margins_EB_);
  }
  metrics_.tokens_per_expert_E = at::zeros({router_.num_experts}, weight_.weight.options().dtype(at::kLong));
  metrics_.loss_4 = at::zeros({ops::RouterLoss::kNum}, router_values);
  counted_.num_E.assign(static_cast<std::size_t>(router_.num_experts), 0);
  if (router_.capacity) metrics_.num_dropped = 0;
}

void Router::reset_metrics() {
  metrics_.tokens_per_expert_E.zero_();
  metrics_.loss_4.zero_();
  if (metrics_.num_dropped) metrics_.num_dropped = 0;
  if (quantile_sum_E_.defined()) quantile_sum_E_.zero_();
  if (margins_EB_.defined()) margins_EB_.zero_();
  num_quantiles_ = 0;
  counted_.num_E.assign(counted_.num_E.size(), 0);
  counted_.num_batches = 0;
  earlier_.clear();
}

ops::RouterOptions Router::options(const StepContext& step) const {
  using enum model::RouterSpec::Assignment;
  const bool has_losses = step.mode != Mode::kEvaluation;
  const model::RouterLosses losses = has_losses ? router_.losses : model::RouterLosses{};
  ops::RouterOptions options{
      .top_k = router_.top_k,
      .score_function = score_function(router_),
      .softmax_order =
          router_.softmax_order == model::SoftmaxOrder::kPre ? ops::SoftmaxOrder::kPre : ops::SoftmaxOrder::kPost,
      .scaling_factor = router_.scaling_factor,
      .num_groups = router_.num_groups.value_or(1),
      .group_top_k = router_.group_top_k.value_or(1),
      .group_score = router_.group_score == model::RouterSpec::GroupScore::kMax ? ops::GroupScore::kMax
                                                                                : ops::GroupScore::kSumOfBest,
      .logit_softcap = router_.logit_softcap,
      .aux_loss = losses.aux,
      .seq_aux_loss = losses.seq_aux,
      .global_aux_loss = losses.global_aux,
      .z_loss = losses.z,
      .num_sequences = step.batch.num_sequences};
  if (router_.balance == model::RouterSpec::Balance::kForced) {
    options.selection = ops::Selection::kForcedBalance;
  } else if (chooses_by_token()) {
    options.selection = ops::Selection::kGiven;
  } else if (router_.assignment == kSinkhorn) {
    set_sinkhorn(step.mode, options);
  } else if (router_.assignment == kQuantile) {
    options.selection = ops::Selection::kQuantile;
  }
  return options;
}

ops::TokenNoise Router::noise(const char* purpose, const StepContext& step) const {
  return {.seed = step.seed,
          .stream = repeated_stream(stream_id(fmt::format("decoder.layers.{}.mlp.router.{}", layer_, purpose)), step),
          .first_token = step.first_token};
}

bool Router::has_jitter(const StepContext& step) const {
  return router_.input_jitter != 0.0 && step.mode != Mode::kEvaluation;
}

Tensor Router::input(const Tensor& x_TH, const StepContext& step) const {
  Tensor input_TH = x_TH;
  if (has_jitter(step)) {
    input_TH = workspace({x_TH.size(0), x_TH.size(1)}, x_TH);
    ops::token_jitter(x_TH, noise("jitter", step), router_.input_jitter, input_TH, ops::Write::kOverwrite);
  }
  return matched(input_TH, metrics_.loss_4.scalar_type());
}

void Router::fill_with_random_logits(const StepContext& step, Tensor& logits_TE) const {
  Tensor favour_E;
  if (router_.forced_imbalance) {
    // A negative deviation asks for the same favour in every pass.
    const std::int64_t pass = *router_.forced_imbalance < 0.0 ? 0 : step.first_token;
    favour_E = workspace({1, router_.num_experts}, logits_TE);
    ops::TokenNoise of_pass = noise("favour", step);
    of_pass.first_token = pass;
    ops::token_normal(of_pass, {}, favour_E);
    favour_E.mul_(at::scalar_tensor(std::abs(*router_.forced_imbalance), favour_E.options()));
  }
  ops::token_normal(noise("random_logits", step), favour_E, logits_TE);
}

bool Router::chooses_by_token() const {
  return token_experts_ != nullptr && router_.balance != model::RouterSpec::Balance::kForced;
}

ops::RouterInput Router::router_input(const Tensor& logits_TE, const StepContext& step) {
  ops::RouterInput input{.logits_TE = logits_TE, .is_routed_T = step.is_routed_T};
  if (chooses_by_token()) {
    PRIMUS_CHECK(step.ids_T.defined(), "layer {} routes by tokens, and none are given", layer_);
    input.chosen_TK = token_experts_->weight.index_select(0, step.ids_T).to(at::kInt);
  }
  if (choice_bias_ != nullptr) input.bias_E = choice_bias_->weight;
  if (router_.losses.global_aux == 0.0 || step.mode == Mode::kEvaluation) return input;
  const std::pair pass{step.first_token, step.repetition};
  if (step.mode == Mode::kTraining) earlier_[pass] = counted_;
  const Earlier& earlier = earlier_.at(pass);
  input.num_earlier_E = at::empty({router_.num_experts}, at::kLong);
  std::copy(earlier.num_E.begin(), earlier.num_E.end(), input.num_earlier_E.data_ptr<std::int64_t>());
  input.num_earlier_batches = earlier.num_batches;
  return input;
}

std::int64_t Router::num_beyond_capacity(const ops::RouterOutput& output) const {
  const std::int64_t capacity =
      ops::expert_capacity(output.index_TK.size(0), router_.top_k, router_.num_experts, router_.capacity->factor);
  const auto* num_E = output.num_tokens_E.const_data_ptr<std::int32_t>();
  return std::accumulate(num_E, num_E + router_.num_experts, std::int64_t{0}, [&](std::int64_t sum, std::int64_t num) {
    return sum + std::max<std::int64_t>(num - capacity, 0);
  });
}

void Router::count(const ops::RouterOutput& output, const StepContext& step) {
  if (step.mode != Mode::kTraining) return;
  metrics_.tokens_per_expert_E.add_(output.num_tokens_E);
  metrics_.loss_4.add_(output.loss_4);
  if (metrics_.num_dropped && output.num_tokens_E.is_cpu()) *metrics_.num_dropped += num_beyond_capacity(output);
  if (quantile_sum_E_.defined()) {
    quantile_sum_E_.add_(output.quantile_E);
    ++num_quantiles_;
  }
  if (router_.losses.global_aux == 0.0) return;
  const auto* num_E = output.num_balance_E.data_ptr<std::int32_t>();
  for (std::size_t e = 0; e < counted_.num_E.size(); ++e) counted_.num_E[e] += num_E[e];
  ++counted_.num_batches;
}

void Router::forward(const Tensor& x_TH, Saved& saved, const StepContext& step) {
  Tensor& logits_TE = saved.allocate(Slot::kLogits);
  if (router_.has_random_logits()) {
    fill_with_random_logits(step, logits_TE);
  } else {
    const Tensor weight = matched(weight_.weight, logits_TE.scalar_type());
    ops::linear_forward(input(x_TH, step), weight, logits_TE);
    if (bias_ != nullptr) ops::bias_add(bias_->weight.to(logits_TE.scalar_type()), {}, {}, logits_TE);
  }
  const auto counts = logits_TE.options().dtype(at::kInt);
  const ops::RouterOptions options = this->options(step);
  ops::RouterOutput output{.index_TK = saved.allocate(Slot::kIndex),
                           .prob_TK = saved.allocate(Slot::kProb),
                           .num_tokens_E = at::empty({router_.num_experts}, counts),
                           .loss_4 = at::empty({ops::RouterLoss::kNum}, logits_TE.options())};
  if (options.has_balance_loss()) output.slope_GE = saved.allocate(Slot::kSlope);
  if (options.global_aux_loss != 0.0) output.num_balance_E = at::empty({router_.num_experts}, counts);
  if (quantile_sum_E_.defined()) output.quantile_E = at::empty_like(quantile_sum_E_);
  ops::router_forward(router_input(logits_TE, step), options, output);
  if (margins_EB_.defined() && step.mode == Mode::kTraining) {
    ops::count_margins(logits_TE, choice_bias_->weight, step.is_routed_T, margin_options(), margins_EB_);
  }
  count(output, step);
  if (step.observer != nullptr) {
    step.observer->routing({.layer = layer_,
                            .repetition = step.repetition,
                            .x_TH = x_TH,
                            .logits_TE = logits_TE,
                            .index_TK = output.index_TK,
                            .num_tokens_E = output.num_tokens_E});
  }
}

std::vector<Tensor> Router::backward(const Tensor& dprob_TK, const Tensor& x_TH, Saved& saved, const StepContext& step,
                                     Tensor& dx_TH) {
  const ops::RouterOptions options = this->options(step);
  const Tensor& logits_TE = saved.at(Slot::kLogits);
  ops::RouterOutput output{.index_TK = saved.at(Slot::kIndex), .prob_TK = saved.at(Slot::kProb)};
  if (options.has_balance_loss()) output.slope_GE = saved.at(Slot::kSlope);
  Tensor dlogits_TE = at::empty_like(logits_TE);
  ops::router_backward({.logits_TE = logits_TE}, output, dprob_TK, options, step.aux_scale, dlogits_TE);

  const Tensor input_TH = input(x_TH, step);
  const Tensor weight = matched(weight_.weight, logits_TE.scalar_type());
  if (!has_jitter(step) && input_TH.scalar_type() == dx_TH.scalar_type()) {
    ops::linear_dgrad(dlogits_TE, weight, dx_TH, ops::Write::kAccumulate);
  } else {
    Tensor dinput_TH = workspace({x_TH.size(0), x_TH.size(1)}, input_TH);
    ops::linear_dgrad(dlogits_TE, weight, dinput_TH);
    dinput_TH = dinput_TH.to(dx_TH.scalar_type());
    if (has_jitter(step)) {
      ops::token_jitter(dinput_TH, noise("jitter", step), router_.input_jitter, dx_TH, ops::Write::kAccumulate);
    } else {
      dx_TH.add_(dinput_TH);
    }
  }
  return {dlogits_TE, input_TH};
}

void Router::add_weight_gradients(std::span<const Tensor> deferred) {
  PRIMUS_CHECK(deferred.size() == kNumDeferred, "{} tensors were left for a router's weight gradients",
               deferred.size());
  const Tensor& dlogits_TE = deferred[0];
  const at::ScalarType accumulated = ops::accumulator_type(dlogits_TE.scalar_type());
  const auto add = [&](Parameter& parameter, const auto& wgrad) {
    if (parameter.sum_type == accumulated) return wgrad(parameter.sum_target());
    // An fp64 router beside fp32 main gradients.
    Tensor sum = at::zeros(parameter.descriptor.shape, parameter.weight.options().dtype(accumulated));
    wgrad(sum);
    parameter.sum_target().add_(sum);
  };
  add(weight_, [&](Tensor& grad) { ops::linear_wgrad(dlogits_TE, deferred[1], grad); });
  if (bias_ != nullptr) add(*bias_, [&](Tensor& grad) { ops::bias_gradient(dlogits_TE, {}, {}, grad); });
}

ops::MarginOptions Router::margin_options() const {
  const model::QuantileRule& rule = *router_.quantile_rule;
  return {.top_k = router_.top_k,
          .score_function = score_function(router_),
          .logit_softcap = router_.logit_softcap,
          .lowest = rule.lowest,
          .highest = rule.highest};
}

void Router::update_bias(comm::Group& data, const Tensor& proceed_1) {
  if (choice_bias_ == nullptr) return;
  const bool is_by_sign = router_.assignment != model::RouterSpec::Assignment::kQuantile && !router_.quantile_rule;
  if (is_by_sign) return update_by_sign(data, proceed_1);
  if (proceed_1.item<std::int32_t>() == 0) return;
  if (router_.assignment == model::RouterSpec::Assignment::kQuantile) return update_to_quantile(data);
  update_by_margins(data);
}

void Router::update_to_quantile(comm::Group& data) {
  if (num_quantiles_ == 0) return;
  Tensor& bias_E = choice_bias_->weight;
  Tensor mean_E = quantile_sum_E_.div(static_cast<double>(num_quantiles_));
  data.all_reduce_sum(mean_E);
  mean_E.div_(static_cast<double>(data.size()));
  bias_E.mul_(router_.quantile_ema).add_(mean_E, 1.0 - router_.quantile_ema);
  bias_E.sub_(bias_E.mean());  // a common shift chooses nothing
}

void Router::update_by_sign(comm::Group& data, const Tensor& proceed_1) {
  Tensor& bias_E = choice_bias_->weight;
  Tensor counts_E = metrics_.tokens_per_expert_E.clone();
  data.all_reduce_sum(counts_E);
  const Tensor shortfall_E = counts_E.to(at::kDouble).neg().add(counts_E.to(at::kDouble).mean());
  bias_E.add_(at::sign(shortfall_E).mul(proceed_1).to(bias_E.scalar_type()), router_.expert_bias_rate);
}

void Router::update_by_margins(comm::Group& data) {
  const model::QuantileRule& rule = *router_.quantile_rule;
  earlier_margins_EB_.add_(margins_EB_);
  if (++num_margin_steps_ < rule.update_interval) return;
  num_margin_steps_ = 0;
  data.all_reduce_sum(earlier_margins_EB_);
  Tensor found_E = at::empty({router_.num_experts}, at::kDouble);
  ops::quantile_bias(earlier_margins_EB_, margin_options(), found_E);
  earlier_margins_EB_.zero_();
  if (rule.centred == model::Part::kPresent) found_E.sub_(found_E.mean());
  Tensor& bias_E = choice_bias_->weight;
  bias_E.mul_(rule.ema).add_(found_E.to(bias_E.scalar_type()), 1.0 - rule.ema);
}

}  // namespace primus::nn
