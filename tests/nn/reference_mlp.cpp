// MLP and MoE blocks a second time: gates as a dense [T, E], every expert over all tokens.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/where.h>

#include <limits>

#include "nn/reference.hpp"

// Legend: B sequences, S length, T tokens, H hidden, E experts, K top_k.
namespace primus::test {
namespace {

using model::ModelSpec;
using model::RouterSpec;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// The parameters of a layer's MLP by their last names.
struct Mlp {
  const ReferenceParameters& p;
  int layer;

  const Tensor& at(const std::string& name) const { return p.at(fmt::format("decoder.layers.{}.mlp.{}", layer, name)); }
  bool has(const std::string& name) const { return p.count(fmt::format("decoder.layers.{}.mlp.{}", layer, name)) > 0; }
};

Tensor function_of(const Tensor& x, model::ActivationSpec::Function function) {
  using enum model::ActivationSpec::Function;
  switch (function) {
    case kSilu:
      return x * x.sigmoid();
    case kQuickGelu:
      return x * (x * 1.702).sigmoid();
    case kGelu:
      return at::gelu(x);
    case kTanhGelu:
      return at::gelu(x, "tanh");
    case kSquaredRelu:
      return x.relu().pow(2);
    case kSitu:
      break;  // needs its strength: situ_of
  }
  return {};
}

Tensor situ_of(const Tensor& gate, const Tensor& up, const model::ActivationSpec& spec) {
  const auto flat = [](const Tensor& x, double beta) { return (x / beta).tanh() * beta; };
  return flat(gate, spec.situ_beta) * gate.sigmoid() * (spec.situ_linear_beta ? flat(up, *spec.situ_linear_beta) : up);
}

/// fc2(f(fc1(x))); biases undefined: none; `block`: gate and up alternate in blocks of so many columns.
Tensor mlp(const Tensor& x, const ModelSpec& spec, const Tensor& fc1, const Tensor& bias1, const Tensor& fc2,
           const Tensor& bias2, std::int64_t block) {
  Tensor pre = x.matmul(fc1.t());
  if (bias1.defined()) pre = pre + bias1;
  if (block > 0) {
    std::vector<Tensor> gates;
    std::vector<Tensor> ups;
    for (std::int64_t first = 0; first < pre.size(-1); first += 2 * block) {
      gates.push_back(pre.narrow(-1, first, block));
      ups.push_back(pre.narrow(-1, first + block, block));
    }
    gates.insert(gates.end(), ups.begin(), ups.end());
    pre = at::cat(gates, -1);
  }
  Tensor activation;
  if (spec.activation.function == model::ActivationSpec::Function::kSitu) {
    const std::int64_t ffn = pre.size(-1) / 2;
    activation = situ_of(pre.narrow(-1, 0, ffn), pre.narrow(-1, ffn, ffn), spec.activation);
  } else if (spec.mlp_gate == model::Part::kPresent) {
    const std::int64_t ffn = pre.size(-1) / 2;
    Tensor gate = pre.narrow(-1, 0, ffn);
    Tensor up = pre.narrow(-1, ffn, ffn);
    if (spec.activation.clamp) {
      gate = gate.clamp_max(*spec.activation.clamp);
      up = up.clamp(-*spec.activation.clamp, *spec.activation.clamp);
    }
    activation = function_of(gate, spec.activation.function) * (up + spec.activation.linear_offset);
  } else {
    activation = function_of(pre, spec.activation.function);
  }
  const Tensor y = activation.matmul(fc2.t());
  return bias2.defined() ? y + bias2 : y;
}

Tensor named_mlp(const Tensor& x, const ModelSpec& spec, const Mlp& mlp_of, const std::string& prefix,
                 std::int64_t block) {
  const bool has_bias = spec.linear_bias == model::Part::kPresent;
  return mlp(x, spec, mlp_of.at(prefix + "linear_fc1.weight"),
             has_bias ? mlp_of.at(prefix + "linear_fc1.bias") : Tensor(), mlp_of.at(prefix + "linear_fc2.weight"),
             has_bias ? mlp_of.at(prefix + "linear_fc2.bias") : Tensor(), block);
}

Tensor scores_of(const Tensor& logits, const RouterSpec& router) {
  switch (router.score_function) {
    case model::ScoreFunction::kSigmoid:
      return logits.sigmoid();
    case model::ScoreFunction::kSqrtSoftplus:
      return logits.exp().log1p().sqrt();
    default:
      return logits.softmax(-1);
  }
}

/// 1 where a token's K largest values are.
Tensor top_k_mask(const Tensor& values, std::int64_t k) {
  return at::zeros_like(values).scatter(-1, std::get<1>(values.topk(k, -1)), 1.0);
}

/// Experts that each token chooses, [T, E] of 0 and 1.
Tensor choices(const Tensor& logits, const RouterSpec& router, const Mlp& parameters) {
  const bool is_post =
      router.score_function == model::ScoreFunction::kSoftmax && router.softmax_order == model::SoftmaxOrder::kPost;
  Tensor values = is_post ? logits : scores_of(logits, router);
  if (router.expert_bias == RouterSpec::ExpertBias::kOn) values = values + parameters.at("router.expert_bias");
  if (router.num_groups) {
    const Tensor grouped = values.view({values.size(0), *router.num_groups, -1});
    const std::int64_t best =
        router.group_score == RouterSpec::GroupScore::kMax ? 1 : router.top_k / *router.group_top_k;
    const Tensor kept = top_k_mask(std::get<0>(grouped.topk(best, -1)).sum(-1), *router.group_top_k);
    values = grouped.masked_fill(kept.eq(0.0).unsqueeze(-1), -kInfinity).view(values.sizes());
  }
  return top_k_mask(values, router.top_k);
}

/// The same where a table lists the experts of each token.
Tensor listed(const Mlp& parameters, const Tensor& ids_T, const Tensor& logits) {
  const Tensor experts_TK = parameters.at("router.token_experts").detach().index_select(0, ids_T).to(at::kLong);
  return at::zeros_like(logits.detach()).scatter(-1, experts_TK, 1.0);
}

/// Probabilities of the chosen, [T, E], before any is dropped.
Tensor gates_of(const Tensor& logits, const Tensor& chosen, const RouterSpec& router) {
  Tensor gates = scores_of(logits, router) * chosen;
  if (router.score_function == model::ScoreFunction::kSoftmax) {
    if (router.softmax_order == model::SoftmaxOrder::kPost) {
      gates = logits.masked_fill(chosen.eq(0.0), -kInfinity).softmax(-1);
    }
  } else if (router.top_k > 1) {
    gates = gates / gates.sum(-1, true);
  }
  return gates * router.scaling_factor;
}

/// 1 where an expert keeps a token, by sorting its column whole.
Tensor kept_by_capacity(const Tensor& gates, const Tensor& chosen, const RouterSpec& router) {
  if (!router.capacity) return chosen;
  const std::int64_t tokens = gates.size(0);
  const double share = static_cast<double>(tokens * router.top_k) / static_cast<double>(router.num_experts);
  const auto capacity = static_cast<std::int64_t>(std::ceil(share * router.capacity->factor));
  if (capacity >= tokens) return chosen;
  // What a column is sorted by: the gate, or how early the token comes; those not chosen last.
  const Tensor rank = router.capacity->drop == model::ExpertCapacity::Drop::kPosition
                          ? at::arange(tokens, 0, -1, at::kDouble).unsqueeze(1).expand_as(gates)
                          : gates.detach();
  const Tensor order = std::get<1>(rank.masked_fill(chosen.eq(0.0), -kInfinity).sort(0, true)).narrow(0, 0, capacity);
  return at::zeros_like(chosen).scatter(0, order, 1.0) * chosen;
}

/// E/(k·n²)·Σ_e P_e·n_e over the rows.
Tensor balance(const Tensor& prob_nE, const Tensor& count_E, const RouterSpec& router) {
  const auto n = static_cast<double>(prob_nE.size(0));
  if (n == 0.0) return at::zeros({}, at::kDouble);
  return (prob_nE.sum(0) * count_E).sum() *
         (static_cast<double>(router.num_experts) / (static_cast<double>(router.top_k) * n * n));
}

/// The losses over the routed tokens; `rows_of_sequence`: which of them belong to each sequence.
Tensor losses_of(const Tensor& logits, const RouterSpec& router, const std::vector<Tensor>& rows_of_sequence,
                 const ReferenceRouting& routing) {
  const model::RouterLosses& losses = router.losses;
  const Tensor score = scores_of(logits, router);
  const Tensor full = score / score.sum(-1, true);
  const Tensor plain = top_k_mask(score.detach(), router.top_k);
  Tensor loss = balance(full, plain.sum(0), router) * losses.aux;
  if (losses.global_aux != 0.0) {
    Tensor count = plain.sum(0);
    if (routing.earlier_count_E.defined()) count = count + routing.earlier_count_E;
    loss = loss + balance(full, count / static_cast<double>(routing.num_earlier + 1), router) * losses.global_aux;
  }
  for (const Tensor& rows : rows_of_sequence) {
    const Tensor of_sequence = balance(full.index_select(0, rows), plain.index_select(0, rows).sum(0), router);
    loss = loss + of_sequence * (losses.seq_aux / static_cast<double>(rows_of_sequence.size()));
  }
  if (logits.size(0) > 0) loss = loss + logits.logsumexp(-1).pow(2).mean() * losses.z;
  return loss;
}

}  // namespace

ReferenceBlock reference_mlp(const Tensor& x_BSH, const ModelSpec& spec, int layer, const ReferenceParameters& p,
                             const ReferenceRouting& routing) {
  const Mlp parameters{p, layer};
  if (spec.kind(layer) == model::LayerKind::kDense) {
    return {named_mlp(x_BSH, spec, parameters, "", 0), {}, {}};
  }
  const model::MoeSpec& moe = *spec.moe;
  const RouterSpec router = spec.router(layer);
  const bool has_bias = spec.linear_bias == model::Part::kPresent;
  const Tensor x = x_BSH.reshape({-1, spec.hidden_size});
  // Everything about routing sees the routed tokens alone.
  const std::int64_t seq = x_BSH.size(1);
  const Tensor routed =
      routing.is_routed_T.defined() ? routing.is_routed_T.nonzero().reshape({-1}) : at::arange(x.size(0), at::kLong);
  std::vector<Tensor> rows_of_sequence;
  for (std::int64_t b = 0; b < x_BSH.size(0); ++b) {
    rows_of_sequence.push_back(routed.div(seq, "floor").eq(b).nonzero().reshape({-1}));
  }
  Tensor router_input = routing.jitter_TH.defined() ? x * routing.jitter_TH : x;
  Tensor logits = router_input.index_select(0, routed).matmul(parameters.at("router.weight").t());
  if (has_bias) logits = logits + parameters.at("router.bias");
  if (router.logit_softcap != 0.0) logits = (logits / router.logit_softcap).tanh() * router.logit_softcap;
  const Tensor chosen = router.assignment == RouterSpec::Assignment::kByToken
                            ? listed(parameters, routing.ids_T.index_select(0, routed), logits)
                            : choices(logits.detach(), router, parameters);
  Tensor gates = gates_of(logits, chosen, router);
  // A capacity is that of the whole micro-batch, filling included.
  const auto whole = [&](const Tensor& part) {
    return at::zeros({x.size(0), router.num_experts}, at::kDouble).index_add(0, routed, part);
  };
  gates = whole(gates);
  const Tensor kept = kept_by_capacity(gates, whole(chosen), router);
  gates = gates * kept;
  // Experts may read and write a narrower space.
  const Tensor inner = moe.latent ? x.matmul(parameters.at("fc1_latent_proj.weight").t()) : x;
  const bool is_input_scaled = moe.probabilities_on == model::MoeSpec::ProbabilitiesOn::kInput;
  Tensor y = at::zeros_like(inner);
  for (std::int64_t e = 0; e < router.num_experts; ++e) {
    const auto of_expert = [&](const char* name) { return parameters.at(name).select(0, e); };
    const Tensor gate = gates.select(1, e).unsqueeze(1);
    const Tensor out =
        mlp(is_input_scaled ? inner * gate : inner, spec, of_expert("experts.linear_fc1.weight"),
            has_bias ? of_expert("experts.linear_fc1.bias") : Tensor(), of_expert("experts.linear_fc2.weight"),
            has_bias ? of_expert("experts.linear_fc2.bias") : Tensor(), moe.glu_interleave);
    y = y + out * (is_input_scaled ? kept.select(1, e).unsqueeze(1) : gate);
  }
  if (moe.latent) {
    if (moe.latent->norm == model::Part::kPresent) {
      y = reference_norm(y, spec, p, fmt::format("decoder.layers.{}.mlp.latent_layernorm", layer));
    }
    y = y.matmul(parameters.at("fc2_latent_proj.weight").t());
  }
  if (moe.shared_ffn_hidden_size > 0) {
    Tensor shared = named_mlp(x, spec, parameters, "shared_experts.", moe.shared_glu_interleave);
    if (moe.shared_gate == model::Part::kPresent) {
      shared = shared * x.matmul(parameters.at("shared_experts.gate_weight").t()).sigmoid();
    }
    y = y + shared;
  }
  return {y.view(x_BSH.sizes()), losses_of(logits, router, rows_of_sequence, routing), chosen.sum(0)};
}

}  // namespace primus::test
