#include "nn/reference.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>

#include <limits>
#include <numbers>

// Legend: B sequences, S length, H hidden, A heads, D head size, E experts, K top_k.
namespace primus::test {
namespace {

using model::GqaSpec;
using model::MlaSpec;
using model::ModelSpec;

const Tensor& weight(const ReferenceParameters& p, int layer, const std::string& name) {
  return p.at(fmt::format("decoder.layers.{}.{}.weight", layer, name));
}

Tensor normalise(const Tensor& x, const Tensor& gamma, double epsilon) {
  return x * (x.pow(2).mean(-1, /*keepdim=*/true) + epsilon).rsqrt() * gamma;
}

Tensor project(const Tensor& x, const Tensor& w) {
  return x.matmul(w.t());
}

/// YaRN and plain frequencies straight from decision 13, and the magnitude of cos and sin.
struct Rotary {
  Tensor frequency;
  double magnitude = 1.0;
  double softmax_factor = 1.0;
};

double yarn_m(double s, double k) {
  return s <= 1.0 ? 1.0 : 0.1 * k * std::log(s) + 1.0;
}

Rotary rotary(const model::RopeSpec& rope) {
  const double d = static_cast<double>(rope.rotary_dim);
  std::vector<double> frequency;
  Rotary result;
  const auto corr = [&](double r) {
    return d * std::log(static_cast<double>(rope.original_max_position) / (2.0 * std::numbers::pi * r)) /
           (2.0 * std::log(rope.base));
  };
  for (std::int64_t i = 0; i < rope.rotary_dim / 2; ++i) {
    const double plain = 1.0 / std::pow(rope.base, 2.0 * static_cast<double>(i) / d);
    double value = plain;
    if (rope.type == model::RopeType::kYarn) {
      const double low = std::min(std::max(std::floor(corr(rope.beta_fast)), 0.0), d - 1.0);
      const double high = std::min(std::max(std::ceil(corr(rope.beta_slow)), 0.0), d - 1.0);
      const double gap = high > low ? high - low : 0.001;
      const double ramp = std::min(std::max((static_cast<double>(i) - low) / gap, 0.0), 1.0);
      value = ramp * plain / rope.scaling_factor + (1.0 - ramp) * plain;
    }
    frequency.push_back(value);
  }
  if (rope.type == model::RopeType::kYarn) {
    const double all = yarn_m(rope.scaling_factor, rope.mscale_all_dim);
    result.magnitude = yarn_m(rope.scaling_factor, rope.mscale) / all;
    result.softmax_factor = all * all;
  }
  result.frequency = at::tensor(at::ArrayRef<double>(frequency), at::kDouble);
  return result;
}

/// x [B, S, A, P] rotated by position; `interleaved` pairs (2i, 2i+1), else (i, i + P/2).
Tensor rotated(const Tensor& x, const Rotary& rope, bool interleaved) {
  const std::int64_t half = x.size(-1) / 2;
  const Tensor position = at::arange(x.size(1), at::kDouble);
  const Tensor angle = position.unsqueeze(1) * rope.frequency.unsqueeze(0);  // [S, half]
  const Tensor cos = (angle.cos() * rope.magnitude).view({1, x.size(1), 1, half});
  const Tensor sin = (angle.sin() * rope.magnitude).view({1, x.size(1), 1, half});
  const Tensor pairs = interleaved ? x.reshape({x.size(0), x.size(1), x.size(2), half, 2})
                                   : at::stack({x.narrow(-1, 0, half), x.narrow(-1, half, half)}, -1);
  const Tensor a = pairs.select(-1, 0);
  const Tensor b = pairs.select(-1, 1);
  const Tensor first = a * cos - b * sin;
  const Tensor second = a * sin + b * cos;
  return interleaved ? at::stack({first, second}, -1).reshape(x.sizes()) : at::cat({first, second}, -1);
}

/// q, k [B, S, A, D], v [B, S, A, V], causal.
Tensor core_attention(const Tensor& q, const Tensor& k, const Tensor& v, double scale) {
  const std::int64_t seq = q.size(1);
  const Tensor scores = q.transpose(1, 2).matmul(k.transpose(1, 2).transpose(2, 3)) * scale;
  const Tensor masked = at::ones({seq, seq}, at::kDouble).triu(1).to(at::kBool);
  const Tensor prob = scores.masked_fill(masked, -std::numeric_limits<double>::infinity()).softmax(-1);
  return prob.matmul(v.transpose(1, 2)).transpose(1, 2);
}

Tensor mla(const Tensor& x, const ModelSpec& spec, const MlaSpec& mla, int layer, const ReferenceParameters& p) {
  const std::int64_t batch = x.size(0);
  const std::int64_t seq = x.size(1);
  Tensor query;
  if (mla.q_lora_rank) {
    const Tensor down = project(x, weight(p, layer, "self_attention.linear_q_down_proj"));
    query = project(normalise(down, weight(p, layer, "self_attention.q_layernorm"), spec.norm_epsilon),
                    weight(p, layer, "self_attention.linear_q_up_proj"));
  } else {
    query = project(x, weight(p, layer, "self_attention.linear_q_proj"));
  }
  query = query.view({batch, seq, mla.num_heads, mla.query_dim()});
  const Tensor kv_down = project(x, weight(p, layer, "self_attention.linear_kv_down_proj"));
  const Tensor latent = normalise(kv_down.narrow(-1, 0, mla.kv_lora_rank),
                                  weight(p, layer, "self_attention.kv_layernorm"), spec.norm_epsilon);
  const Tensor kv = project(latent, weight(p, layer, "self_attention.linear_kv_up_proj"))
                        .view({batch, seq, mla.num_heads, mla.qk_head_dim + mla.v_head_dim});
  const Rotary rope = rotary(spec.rope);
  const Tensor k_pe = rotated(kv_down.narrow(-1, mla.kv_lora_rank, mla.qk_pos_emb_head_dim).unsqueeze(2), rope, true)
                          .expand({batch, seq, mla.num_heads, mla.qk_pos_emb_head_dim});
  const Tensor q = at::cat({query.narrow(-1, 0, mla.qk_head_dim),
                            rotated(query.narrow(-1, mla.qk_head_dim, mla.qk_pos_emb_head_dim), rope, true)},
                           -1);
  const Tensor k = at::cat({kv.narrow(-1, 0, mla.qk_head_dim), k_pe}, -1);
  const Tensor v = kv.narrow(-1, mla.qk_head_dim, mla.v_head_dim);
  const double scale = rope.softmax_factor / std::sqrt(static_cast<double>(mla.query_dim()));
  const Tensor context = core_attention(q, k, v, scale);
  return project(context.reshape({batch, seq, mla.num_heads * mla.v_head_dim}),
                 weight(p, layer, "self_attention.linear_proj"));
}

Tensor gqa(const Tensor& x, const ModelSpec& spec, const GqaSpec& gqa, int layer, const ReferenceParameters& p) {
  const std::int64_t batch = x.size(0);
  const std::int64_t seq = x.size(1);
  const Tensor qkv = project(x, weight(p, layer, "self_attention.linear_qkv"))
                         .view({batch, seq, gqa.num_heads + 2 * gqa.num_query_groups, gqa.head_dim});
  const Rotary rope = rotary(spec.rope);
  const Tensor q = rotated(qkv.narrow(2, 0, gqa.num_heads), rope, false);
  const std::int64_t per_group = gqa.num_heads / gqa.num_query_groups;
  const Tensor k =
      rotated(qkv.narrow(2, gqa.num_heads, gqa.num_query_groups), rope, false).repeat_interleave(per_group, 2);
  const Tensor v =
      qkv.narrow(2, gqa.num_heads + gqa.num_query_groups, gqa.num_query_groups).repeat_interleave(per_group, 2);
  const double scale = rope.softmax_factor / std::sqrt(static_cast<double>(gqa.head_dim));
  return project(core_attention(q, k, v, scale).reshape({batch, seq, gqa.num_heads * gqa.head_dim}),
                 weight(p, layer, "self_attention.linear_proj"));
}

Tensor gated(const Tensor& x, const Tensor& fc1, const Tensor& fc2) {
  const Tensor pre = project(x, fc1);
  const std::int64_t ffn = pre.size(-1) / 2;
  return project(at::silu(pre.narrow(-1, 0, ffn)) * pre.narrow(-1, ffn, ffn), fc2);
}

/// c·E/(k·n²)·Σ_e P_e·n_e over the rows of prob_nE.
Tensor balance_loss(const Tensor& prob_nE, const Tensor& chosen_nE, const model::RouterSpec& router) {
  const auto n = static_cast<double>(prob_nE.size(0));
  const double factor = router.aux_loss_coefficient * static_cast<double>(router.num_experts) /
                        (static_cast<double>(router.top_k) * n * n);
  return (prob_nE.sum(0) * chosen_nE.sum(0)).sum() * factor;
}

}  // namespace

ReferenceParameters reference_parameters(const nn::ParameterStore& store) {
  ReferenceParameters parameters;
  for (const auto& parameter : store.all()) parameters[parameter->descriptor.name] = leaf64(parameter->weight);
  return parameters;
}

double worst_gradient_error(const nn::ParameterStore& store, const ReferenceParameters& reference, std::string* worst) {
  const auto expected_of = [&](const nn::Parameter& parameter) {
    const Tensor& gradient = reference.at(parameter.descriptor.name).grad();
    return gradient.defined() ? gradient : at::zeros(parameter.descriptor.shape, at::kDouble);
  };
  double largest_norm = 0.0;
  for (const auto& parameter : store.all()) {
    if (parameter->main_grad.defined()) {
      largest_norm = std::max(largest_norm, expected_of(*parameter).norm().item<double>());
    }
  }
  double largest = -1.0;
  for (const auto& parameter : store.all()) {
    if (!parameter->main_grad.defined()) continue;
    const Tensor expected = expected_of(*parameter);
    // A gradient that is zero by mathematics (a gate that is always 1) is rounding noise on both sides.
    const bool is_noise = expected.norm().item<double>() < 1e-13 * largest_norm;
    const double error = is_noise ? parameter->main_grad.to(at::kDouble).norm().item<double>() / largest_norm
                                  : relative_error(parameter->main_grad, expected);
    if (error > largest) {
      largest = error;
      if (worst != nullptr) *worst = parameter->descriptor.name;
    }
  }
  return largest;
}

Tensor reference_attention(const Tensor& x_BSH, const ModelSpec& spec, int layer, const ReferenceParameters& p) {
  if (const auto* latent = std::get_if<MlaSpec>(&spec.attention)) return mla(x_BSH, spec, *latent, layer, p);
  return gqa(x_BSH, spec, std::get<GqaSpec>(spec.attention), layer, p);
}

ReferenceBlock reference_mlp(const Tensor& x_BSH, const ModelSpec& spec, int layer, const ReferenceParameters& p) {
  if (spec.kind(layer) == model::LayerKind::kDense) {
    return {gated(x_BSH, weight(p, layer, "mlp.linear_fc1"), weight(p, layer, "mlp.linear_fc2")), {}};
  }
  const model::MoeSpec& moe = *spec.moe;
  const model::RouterSpec& router = moe.router;
  const Tensor x = x_BSH.reshape({-1, spec.hidden_size});
  const Tensor logits = project(x, weight(p, layer, "mlp.router"));
  const Tensor all = logits.softmax(-1);
  const Tensor index = std::get<1>(logits.topk(router.top_k, -1));
  const Tensor chosen = at::zeros_like(logits).scatter(-1, index, 1.0).detach();
  // Probabilities as a dense [T, E]: a second road to the same thing as our sorted rows.
  Tensor gates = router.softmax_order == model::SoftmaxOrder::kPre
                     ? all * chosen
                     : logits.masked_fill(chosen.eq(0.0), -std::numeric_limits<double>::infinity()).softmax(-1);
  gates = gates * router.scaling_factor;
  Tensor y = at::zeros_like(x);
  for (std::int64_t e = 0; e < router.num_experts; ++e) {
    const Tensor out = gated(x, weight(p, layer, "mlp.experts.linear_fc1").select(0, e),
                             weight(p, layer, "mlp.experts.linear_fc2").select(0, e));
    y = y + out * gates.select(1, e).unsqueeze(1);
  }
  if (moe.shared_ffn_hidden_size > 0) {
    y = y +
        gated(x, weight(p, layer, "mlp.shared_experts.linear_fc1"), weight(p, layer, "mlp.shared_experts.linear_fc2"));
  }
  Tensor aux = at::zeros({}, at::kDouble);
  const std::int64_t batch = x_BSH.size(0);
  const std::int64_t seq = x_BSH.size(1);
  if (router.load_balancing == model::LoadBalancing::kAuxLoss) aux = balance_loss(all, chosen, router);
  if (router.load_balancing == model::LoadBalancing::kSeqAuxLoss) {
    for (std::int64_t b = 0; b < batch; ++b) {
      aux = aux + balance_loss(all.narrow(0, b * seq, seq), chosen.narrow(0, b * seq, seq), router) /
                      static_cast<double>(batch);
    }
  }
  return {y.view(x_BSH.sizes()), aux};
}

Tensor reference_layer(const Tensor& x_BSH, const ModelSpec& spec, int layer, const ReferenceParameters& p,
                       Tensor* aux_loss) {
  const Tensor middle =
      x_BSH +
      reference_attention(normalise(x_BSH, weight(p, layer, "input_layernorm"), spec.norm_epsilon), spec, layer, p);
  const ReferenceBlock block =
      reference_mlp(normalise(middle, weight(p, layer, "pre_mlp_layernorm"), spec.norm_epsilon), spec, layer, p);
  if (block.aux_loss.defined() && aux_loss != nullptr) *aux_loss = *aux_loss + block.aux_loss;
  return middle + block.y_BSH;
}

namespace {

/// x[b, s + shift] where that is in the sequence and in the document of s, else 0; element by element.
Tensor shifted(const Tensor& x_BS, std::int64_t shift, const Tensor& document_BS) {
  Tensor result = at::zeros_like(x_BS);
  for (std::int64_t b = 0; b < x_BS.size(0); ++b) {
    for (std::int64_t s = 0; s + shift < x_BS.size(1); ++s) {
      const bool is_same = !document_BS.defined() ||
                           document_BS[b][s].item<std::int64_t>() == document_BS[b][s + shift].item<std::int64_t>();
      if (is_same) result[b][s].copy_(x_BS[b][s + shift]);
    }
  }
  return result;
}

Tensor token_losses(const Tensor& normed_BSH, const Tensor& output, const Tensor& labels_BS) {
  return project(normed_BSH, output).log_softmax(-1).gather(-1, labels_BS.unsqueeze(-1)).squeeze(-1).neg();
}

}  // namespace

Tensor ReferenceLoss::total(const ModelSpec& spec, double num_tokens) const {
  Tensor total = loss_sum / num_tokens + aux_loss;
  for (const Tensor& loss : mtp_losses)
    total = total + loss * (spec.mtp_loss_scale / static_cast<double>(mtp_losses.size()));
  return total;
}

ReferenceLoss reference_model(const Tensor& ids_BS, const Tensor& labels_BS, const Tensor& mask_BS,
                              const ModelSpec& spec, const ReferenceParameters& p, const Tensor& document_BS) {
  const Tensor& embedding = p.at("embedding.word_embeddings.weight");
  ReferenceLoss result;
  result.aux_loss = at::zeros({}, at::kDouble);
  Tensor x = at::embedding(embedding, ids_BS);
  for (int layer = 0; layer < spec.num_layers(); ++layer) x = reference_layer(x, spec, layer, p, &result.aux_loss);
  const Tensor& output = spec.output_weight == model::OutputWeight::kOwn ? p.at("output_layer.weight") : embedding;
  Tensor hidden = normalise(x, p.at("decoder.final_layernorm.weight"), spec.norm_epsilon);
  result.loss_sum = (token_losses(hidden, output, labels_BS) * mask_BS.to(at::kDouble)).sum();
  for (int depth = 0; depth < spec.num_mtp_layers; ++depth) {
    const auto own = [&](const char* name) { return p.at(fmt::format("mtp.layers.{}.{}.weight", depth, name)); };
    const Tensor ids = shifted(ids_BS, depth + 1, document_BS);
    const Tensor mask = shifted(mask_BS.to(at::kDouble), depth + 1, document_BS);
    const Tensor joined = at::cat({normalise(at::embedding(embedding, ids), own("enorm"), spec.norm_epsilon),
                                   normalise(hidden, own("hnorm"), spec.norm_epsilon)},
                                  -1);
    const Tensor y = reference_layer(project(joined, own("eh_proj")), spec, static_cast<int>(spec.num_layers()) + depth,
                                     p, &result.aux_loss);
    hidden = normalise(y, own("final_layernorm"), spec.norm_epsilon);
    const Tensor losses = token_losses(hidden, output, shifted(labels_BS, depth + 1, document_BS));
    result.mtp_losses.push_back((losses * mask).sum() / mask.sum().clamp_min(1.0));
  }
  return result;
}

}  // namespace primus::test
