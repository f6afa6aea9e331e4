// The router of a pass, in bytes: nn/router.cpp. Legend: T tokens, H hidden, E experts, K top_k.
#include "model/pass_context.hpp"

namespace primus::model {
namespace {

using Slot = MoeSlot;

constexpr std::int64_t kNumLosses = 4;  // metrics of the router's losses

/// fp64 does not mix with other types in a product: what has another is converted.
bool mixes(DType x, DType router) {
  return (x == DType::kFloat64) == (router == DType::kFloat64);
}

bool has_jitter(const PassContext& pass) {
  return pass.spec.moe->router.input_jitter != 0.0;
}

PassTensor matched(const PassContext& pass, const PassTensor& x) {
  return mixes(x.dtype(), pass.policy.router) ? x : pass.ledger.converted(x, pass.policy.router);
}

PassTensor matched_weight(const PassContext& pass) {
  if (mixes(pass.policy.parameters, pass.policy.router)) return {};
  return pass.ledger.tensor(pass.spec.moe->router.num_experts * pass.spec.hidden_size, pass.policy.router);
}

PassTensor router_input(const PassContext& pass, const PassTensor& x_TH) {
  return matched(pass, has_jitter(pass) ? pass.ledger.like(x_TH) : x_TH);
}

void logits(const PassContext& pass, const PassTensor& x_TH) {
  const RouterSpec& router = pass.spec.moe->router;
  if (router.has_random_logits()) {
    if (!router.forced_imbalance) return;
    const PassTensor favour_E = pass.ledger.tensor(router.num_experts, pass.policy.router);
    pass.ledger.tensor(1, pass.policy.router);
    return;
  }
  const PassTensor weight = matched_weight(pass);
  {
    const PassTensor input_TH = router_input(pass, x_TH);
    pass.ledger.scratch(pass.scratch.product_forward(
        {x_TH.num_elements() / pass.spec.hidden_size, pass.spec.hidden_size, router.num_experts},
        {input_TH.dtype(), pass.policy.router}));
  }
  if (pass.spec.linear_bias == Part::kPresent) pass.read_parameter(router.num_experts, pass.policy.router);
}

/// The tokens' rows of a table of experts, which is in the router's type.
PassTensor chosen(const PassContext& pass, const PassSaved& saved) {
  const std::int64_t num_choices = saved.declared(Slot::kIndex).num_elements();
  const PassTensor rows = pass.ledger.tensor(num_choices, pass.policy.router);
  return pass.ledger.converted(rows, DType::kInt32);
}

bool has_quantile(const RouterSpec& router) {
  return router.assignment == RouterSpec::Assignment::kQuantile;
}

}  // namespace

void router_forward(const PassContext& pass, const RouterSpec& router, const PassTensor& x_TH, PassSaved& saved,
                    PassMode mode) {
  PassLedger& ledger = pass.ledger;
  saved.allocate(Slot::kLogits);
  logits(pass, x_TH);
  saved.allocate(Slot::kIndex);
  saved.allocate(Slot::kProb);
  const PassTensor num_tokens_E = ledger.tensor(router.num_experts, DType::kInt32);
  const PassTensor losses = ledger.tensor(kNumLosses, pass.policy.router);
  PassTensor chosen_TK;
  if (router.assignment == RouterSpec::Assignment::kByToken) chosen_TK = chosen(pass, saved);
  if (router.losses.has_balance()) saved.allocate(Slot::kSlope);
  PassTensor num_balance_E;
  if (router.losses.global_aux != 0.0) num_balance_E = ledger.tensor(router.num_experts, DType::kInt32);
  PassTensor quantile_E;
  if (has_quantile(router)) quantile_E = ledger.tensor(router.num_experts, pass.policy.router);
  if (router.losses.global_aux != 0.0) ledger.tensor(router.num_experts, DType::kInt64);
  if (mode == PassMode::kRecompute) return;
  if (router.quantile_rule) {
    const std::int64_t tokens = x_TH.num_elements() / pass.spec.hidden_size;
    ledger.scratch(pass.scratch.margins(tokens, router.num_experts, pass.policy.router));
  }
  // The step's counts are wider than the pass's.
  ledger.tensor(router.num_experts, DType::kInt64);
}

std::vector<PassTensor> router_backward(const PassContext& pass, const PassTensor& x_TH, PassSaved& saved) {
  const RouterSpec& router = pass.spec.moe->router;
  PassLedger& ledger = pass.ledger;
  const PassTensor dlogits_TE = ledger.like(saved.at(Slot::kLogits));
  const PassTensor input_TH = router_input(pass, x_TH);
  const PassTensor weight = matched_weight(pass);
  const std::int64_t tokens = x_TH.num_elements() / pass.spec.hidden_size;
  ledger.scratch(pass.scratch.product_backward({tokens, pass.spec.hidden_size, router.num_experts},
                                               {input_TH.dtype(), pass.policy.router}));
  if (has_jitter(pass) || input_TH.dtype() != x_TH.dtype()) {
    PassTensor dinput_TH = ledger.like(input_TH);
    dinput_TH = ledger.converted(dinput_TH, x_TH.dtype());
  }
  return {dlogits_TE, input_TH};
}

void router_weight_gradients(const PassContext& pass) {
  const DType wide = pass.policy.router == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
  const DType sum_type = size_bytes(pass.policy.main_gradients) < size_bytes(pass.policy.statistics)
                             ? pass.policy.statistics
                             : pass.policy.main_gradients;
  if (sum_type == wide) return;
  const std::int64_t experts = pass.spec.moe->router.num_experts;
  const auto add = [&](std::int64_t num_elements) {
    const PassTensor sum = pass.ledger.tensor(num_elements, wide);
    pass.ledger.combine_into(num_elements, sum_type, wide);
  };
  add(experts * pass.spec.hidden_size);
  if (pass.spec.linear_bias == Part::kPresent) add(experts);
}

}  // namespace primus::model
