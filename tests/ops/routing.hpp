#pragma once
// What the router's tests share: running it on poisoned outputs, and its formulas a second time under autograd.
#include <ATen/ops/gather.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/tensor.h>

#include <limits>
#include <numeric>

#include "ops/router/router.hpp"
#include "support/tensors.hpp"

namespace primus::test {

struct Routing {
  ops::RouterInput input;
  ops::RouterOutput output;

  const Tensor& index() const { return output.index_TK; }
  const Tensor& prob() const { return output.prob_TK; }
  const Tensor& count() const { return output.num_tokens_E; }
  double loss() const { return output.loss_4.sum().item<double>(); }
};

/// Every output poisoned before; those that were not asked for are left out.
inline Routing route(const ops::RouterInput& input, const ops::RouterOptions& options) {
  const Tensor& logits = input.logits_TE;
  const std::int64_t tokens = logits.size(0);
  const std::int64_t experts = logits.size(1);
  const at::ScalarType dtype = logits.scalar_type();
  Routing routing{input,
                  {.index_TK = poisoned({tokens, options.top_k}, at::kInt),
                   .prob_TK = poisoned({tokens, options.top_k}, dtype),
                   .num_tokens_E = poisoned({experts}, at::kInt),
                   .loss_4 = poisoned({ops::RouterLoss::kNum}, dtype)}};
  if (options.has_balance_loss()) routing.output.slope_GE = poisoned({options.num_slopes(), experts}, dtype);
  if (options.global_aux_loss != 0.0) {
    routing.output.num_balance_E = poisoned({experts}, at::kInt);
    if (!input.num_earlier_E.defined()) routing.input.num_earlier_E = at::zeros({experts}, at::kLong);
  }
  if (options.selection == ops::Selection::kQuantile) routing.output.quantile_E = poisoned({experts}, dtype);
  ops::router_forward(routing.input, options, routing.output);
  return routing;
}
inline Routing route(const Tensor& logits, const ops::RouterOptions& options) {
  return route(ops::RouterInput{.logits_TE = logits}, options);
}

/// Backward sees of the input only the logits.
inline Tensor gradient(const Routing& routing, const Tensor& dprob, const ops::RouterOptions& options,
                       double loss_scale) {
  const Tensor& logits = routing.input.logits_TE;
  Tensor dlogits = poisoned({logits.size(0), logits.size(1)}, logits.scalar_type());
  const ops::RouterOutput kept{.index_TK = routing.output.index_TK,
                               .prob_TK = routing.output.prob_TK,
                               .num_tokens_E = {},
                               .num_balance_E = {},
                               .loss_4 = {},
                               .slope_GE = routing.output.slope_GE};
  ops::router_backward({.logits_TE = logits}, kept, dprob, options, loss_scale, dlogits);
  return dlogits;
}

/// The k largest, by a stable sort: another algorithm than the op's.
inline Tensor sorted_choice(const Tensor& logits, std::int64_t k) {
  const Tensor values = logits.to(at::kDouble).contiguous();
  const std::int64_t experts = logits.size(1);
  Tensor index = at::zeros({logits.size(0), k}, at::kInt);
  std::vector<std::int64_t> order(static_cast<std::size_t>(experts));
  for (std::int64_t t = 0; t < logits.size(0); ++t) {
    const double* row = values.data_ptr<double>() + t * experts;
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) { return row[a] > row[b]; });
    for (std::int64_t i = 0; i < k; ++i) {
      index.data_ptr<int>()[t * k + i] = static_cast<int>(order[static_cast<std::size_t>(i)]);
    }
  }
  return index;
}

inline Tensor counts_of(const Tensor& index, std::int64_t experts) {
  Tensor count = at::zeros({experts}, at::kInt);
  const Tensor flat = index.contiguous();
  for (std::int64_t i = 0; i < flat.numel(); ++i) ++count.data_ptr<int>()[flat.data_ptr<int>()[i]];
  return count;
}

inline Tensor capped(const Tensor& logits64, const ops::RouterOptions& options) {
  return options.logit_softcap == 0.0 ? logits64
                                      : logits64.div(options.logit_softcap).tanh().mul(options.logit_softcap);
}

inline Tensor scores_of(const Tensor& logits64, const ops::RouterOptions& options) {
  switch (options.score_function) {
    case ops::ScoreFunction::kSigmoid:
      return logits64.sigmoid();
    case ops::ScoreFunction::kSqrtSoftplus:
      return logits64.exp().log1p().sqrt();
    default:
      return logits64.softmax(1);
  }
}

/// What the experts are chosen by, each outside the token's groups at −inf: whole groups sorted, not our selection.
inline Tensor choice_values(const Tensor& logits64, const Tensor& bias, const ops::RouterOptions& options) {
  const bool is_post =
      options.score_function == ops::ScoreFunction::kSoftmax && options.softmax_order == ops::SoftmaxOrder::kPost;
  const Tensor capped64 = capped(logits64, options);
  Tensor values = is_post ? capped64 : scores_of(capped64, options);
  if (bias.defined()) values = values.add(bias.to(at::kDouble));
  if (options.num_groups == 1) return values;
  const std::int64_t tokens = logits64.size(0);
  const Tensor grouped = values.view({tokens, options.num_groups, -1});
  const std::int64_t best = options.group_score == ops::GroupScore::kMax ? 1 : options.top_k / options.group_top_k;
  const Tensor of_group = std::get<0>(grouped.sort(-1, true)).narrow(2, 0, best).sum(-1);
  const Tensor kept = sorted_choice(of_group, options.group_top_k).to(at::kLong);
  const Tensor outside = at::ones({tokens, options.num_groups}, at::kBool).scatter(1, kept, false);
  return grouped.masked_fill(outside.unsqueeze(2), -std::numeric_limits<double>::infinity()).view(values.sizes());
}

/// Probabilities of the chosen and the losses from fp64 logits that autograd follows. `routed`: numbers of the tokens
/// that count; the others are left out before anything is computed.
struct Reference {
  Tensor prob, loss;
};
inline Reference reference(const Tensor& raw64, const Tensor& index, const ops::RouterOptions& options, bool has_bias,
                           const Tensor& earlier = {}, std::int64_t num_earlier = 0) {
  const Tensor logits64 = capped(raw64, options);
  const Tensor chosen = index.to(at::kLong);
  const Tensor score = scores_of(logits64, options);
  Tensor prob;
  if (options.score_function != ops::ScoreFunction::kSoftmax) {
    prob = score.gather(1, chosen);
    if (options.top_k > 1) prob = prob.div(prob.sum(1, true));
  } else if (options.softmax_order == ops::SoftmaxOrder::kPre) {
    prob = score.gather(1, chosen);
  } else {
    prob = logits64.gather(1, chosen).softmax(1);
  }
  prob = prob.mul(options.scaling_factor);

  const std::int64_t tokens = logits64.size(0);
  const std::int64_t experts = logits64.size(1);
  Tensor loss = at::zeros({}, at::kDouble);
  if (tokens == 0) return {prob, loss};
  const Tensor full = score.div(score.sum(1, true));
  const Tensor balance =
      options.counts_choices(has_bias) ? index : sorted_choice(scores_of(logits64.detach(), options), options.top_k);
  const auto balance_loss = [&](std::int64_t first, std::int64_t n, const Tensor& count) {
    return full.narrow(0, first, n)
        .sum(0)
        .mul(count)
        .sum()
        .mul(static_cast<double>(experts) / static_cast<double>(options.top_k * n * n));
  };
  const Tensor counts = counts_of(balance, experts).to(at::kDouble);
  loss = loss.add(balance_loss(0, tokens, counts).mul(options.aux_loss));
  if (options.seq_aux_loss != 0.0) {
    const std::int64_t n = tokens / options.num_sequences;
    for (std::int64_t b = 0; b < options.num_sequences; ++b) {
      const Tensor of_sequence = counts_of(balance.narrow(0, b * n, n), experts).to(at::kDouble);
      loss = loss.add(
          balance_loss(b * n, n, of_sequence).mul(options.seq_aux_loss / static_cast<double>(options.num_sequences)));
    }
  }
  if (options.global_aux_loss != 0.0) {
    const Tensor before = earlier.defined() ? earlier.to(at::kDouble) : at::zeros({experts}, at::kDouble);
    const Tensor mean = counts.add(before).div(static_cast<double>(num_earlier + 1));
    loss = loss.add(balance_loss(0, tokens, mean).mul(options.global_aux_loss));
  }
  loss = loss.add(logits64.logsumexp(1).pow(2).mean().mul(options.z_loss));
  return {prob, loss};
}

struct RouterShape {
  std::int64_t sequences, length, experts, top_k;
  std::int64_t groups = 1, group_top_k = 1;
};

/// What a case of the big comparison switches on.
struct Options {
  const char* name;
  ops::RouterOptions options;
  bool has_bias = false;
};

inline const ops::RouterOptions kSigmoid{.score_function = ops::ScoreFunction::kSigmoid, .scaling_factor = 2.5};
inline const ops::RouterOptions kSqrtSoftplus{.score_function = ops::ScoreFunction::kSqrtSoftplus,
                                              .scaling_factor = 1.5};
inline const ops::RouterOptions kPre{.softmax_order = ops::SoftmaxOrder::kPre, .scaling_factor = 2.5};
inline const ops::RouterOptions kPost{.softmax_order = ops::SoftmaxOrder::kPost, .scaling_factor = 2.5};

template <typename Change>
ops::RouterOptions with(ops::RouterOptions options, const Change& change) {
  change(options);
  return options;
}

inline const Options kOptions[] = {
    {"pre", kPre},
    {"post", kPost},
    {"pre_aux", with(kPre, [](auto& o) { o.aux_loss = 0.75; })},
    {"post_aux", with(kPost, [](auto& o) { o.aux_loss = 0.75; })},
    {"pre_seq", with(kPre, [](auto& o) { o.seq_aux_loss = 0.75; })},
    {"post_seq", with(kPost, [](auto& o) { o.seq_aux_loss = 0.75; })},
    {"post_z", with(kPost, [](auto& o) { o.z_loss = 0.01; })},
    {"pre_z_softcap", with(kPre, [](auto& o) { o.z_loss = 0.01, o.logit_softcap = 3.0; })},
    {"post_all_losses",
     with(kPost, [](auto& o) { o.aux_loss = 0.5, o.seq_aux_loss = 0.3, o.global_aux_loss = 0.2, o.z_loss = 0.01; })},
    {"post_max_group_aux", with(kPost, [](auto& o) { o.group_score = ops::GroupScore::kMax, o.aux_loss = 0.5; })},
    {"sigmoid", kSigmoid},
    {"sigmoid_bias", kSigmoid, true},
    {"sigmoid_bias_seq", with(kSigmoid, [](auto& o) { o.seq_aux_loss = 0.75; }), true},
    {"sigmoid_all_losses",
     with(kSigmoid, [](auto& o) { o.aux_loss = 0.5, o.seq_aux_loss = 0.3, o.global_aux_loss = 0.2, o.z_loss = 0.01; }),
     true},
    {"sigmoid_softcap", with(kSigmoid, [](auto& o) { o.logit_softcap = 2.0, o.aux_loss = 0.5; })},
    {"sqrt_softplus", kSqrtSoftplus},
    {"sqrt_softplus_bias_aux_z", with(kSqrtSoftplus, [](auto& o) { o.aux_loss = 0.5, o.z_loss = 0.01; }), true},
};

}  // namespace primus::test
