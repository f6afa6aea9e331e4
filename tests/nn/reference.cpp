#include "nn/reference.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/einsum.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/xlogy.h>

#include <limits>
#include <numbers>

#include "base/philox.hpp"

// Legend: B sequences, S length, H hidden, A heads, D head size, E experts, K top_k.
namespace primus::test {
namespace {

using model::GqaSpec;
using model::MlaSpec;
using model::ModelSpec;

const Tensor& weight(const ReferenceParameters& p, int layer, const std::string& name) {
  return p.at(fmt::format("decoder.layers.{}.{}.weight", layer, name));
}

Tensor unit_rms(const Tensor& x, double epsilon) {
  return x * (x.pow(2).mean(-1, /*keepdim=*/true) + epsilon).rsqrt();
}

/// The model's norm `name` (without ".weight").
Tensor normalise(const Tensor& x, const ModelSpec& spec, const ReferenceParameters& p, const std::string& name) {
  const Tensor weight = p.at(name + ".weight");
  const Tensor factor = spec.norm_around_one == model::Part::kPresent ? weight + 1.0 : weight;
  if (spec.norm == model::NormKind::kRms) return unit_rms(x, spec.norm_epsilon) * factor;
  return unit_rms(x - x.mean(-1, /*keepdim=*/true), spec.norm_epsilon) * factor + p.at(name + ".bias");
}

std::string layer_part(int layer, const char* part) {
  return fmt::format("decoder.layers.{}.{}", layer, part);
}

/// x with elements dropped whose numbers in the stream say so; numbers count x's elements. The tests' seed is 0.
Tensor dropped(const Tensor& x, double probability, const std::string& stream, int repetition = 0) {
  if (probability == 0.0) return x;
  const Philox philox(0, stream_id(stream) + static_cast<std::uint64_t>(repetition) * 0x9E3779B97F4A7C15ULL);
  Tensor factor = at::zeros({x.numel()}, at::kDouble);
  auto* values = factor.data_ptr<double>();
  for (std::int64_t i = 0; i < x.numel(); ++i) {
    if (philox.uniform(static_cast<std::uint64_t>(i)) > probability) values[i] = 1.0 / (1.0 - probability);
  }
  return x * factor.view(x.sizes());
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
    if (rope.type == model::RopeType::kLlama3) {
      // By wavelength, as Llama 3.1's own code has it.
      const double length = static_cast<double>(rope.original_max_position);
      const double wavelength = 2.0 * std::numbers::pi / plain;
      if (wavelength > length) {
        value = plain / rope.scaling_factor;
      } else if (wavelength > length / 4.0) {
        const double smooth = (length / wavelength - 1.0) / (4.0 - 1.0);
        value = (1.0 - smooth) * plain / rope.scaling_factor + smooth * plain;
      }
    }
    if (rope.type == model::RopeType::kYarn) {
      const bool whole = rope.rounded_range == model::Part::kPresent;
      const double fast = whole ? std::floor(corr(rope.beta_fast)) : corr(rope.beta_fast);
      const double slow = whole ? std::ceil(corr(rope.beta_slow)) : corr(rope.beta_slow);
      const double low = std::min(std::max(fast, 0.0), d - 1.0);
      const double high = std::min(std::max(slow, 0.0), d - 1.0);
      const double gap = high > low ? high - low : 0.001;
      const double ramp = std::min(std::max((static_cast<double>(i) - low) / gap, 0.0), 1.0);
      value = ramp * plain / rope.scaling_factor + (1.0 - ramp) * plain;
    }
    frequency.push_back(value / rope.interpolation);
  }
  if (rope.type == model::RopeType::kYarn) {
    const double all = yarn_m(rope.scaling_factor, rope.mscale_all_dim);
    result.magnitude = yarn_m(rope.scaling_factor, rope.mscale) / all;
    result.softmax_factor = all * all;
  }
  result.frequency = at::tensor(at::ArrayRef<double>(frequency), at::kDouble);
  return result;
}

/// x [B, S, A, D], its first P elements rotated by `position` [B, S]; `interleaved` pairs (2i, 2i+1), else (i, i +
/// P/2).
Tensor rotated(const Tensor& x, const Tensor& position, const Rotary& rope, bool interleaved) {
  const std::int64_t half = rope.frequency.size(0);
  const Tensor angle = position.unsqueeze(-1) * rope.frequency.view({1, 1, half});  // [B, S, half]
  const Tensor cos = (angle.cos() * rope.magnitude).unsqueeze(2);
  const Tensor sin = (angle.sin() * rope.magnitude).unsqueeze(2);
  const Tensor turning = x.narrow(-1, 0, 2 * half);
  const Tensor pairs = interleaved ? turning.unflatten(-1, {half, 2})
                                   : at::stack({turning.narrow(-1, 0, half), turning.narrow(-1, half, half)}, -1);
  const Tensor a = pairs.select(-1, 0);
  const Tensor b = pairs.select(-1, 1);
  const Tensor first = a * cos - b * sin;
  const Tensor second = b * cos + a * sin;
  const Tensor turned = interleaved ? at::stack({first, second}, -1).flatten(-2) : at::cat({first, second}, -1);
  return at::cat({turned, x.narrow(-1, 2 * half, x.size(-1) - 2 * half)}, -1);
}

/// Position of each token and the first one that it sees, [B, S], in fp64.
struct Documents {
  Tensor position, first;
  int repetition = 0;
  Tensor* hidden_BSS = nullptr;
};

Documents documents_of(const Tensor& x_BSH, const PackedDocuments& packed) {
  const Tensor column = at::arange(x_BSH.size(1), at::kDouble).unsqueeze(0).expand({x_BSH.size(0), x_BSH.size(1)});
  return {packed.position_BS.defined() ? packed.position_BS.to(at::kDouble) : column,
          packed.first_key_BS.defined() ? packed.first_key_BS.to(at::kDouble) : at::zeros_like(column),
          packed.repetition, packed.hidden_BSS};
}

/// Keys that no query of the layer sees by its place: true, [B, 1, S, S].
Tensor out_of_sight(std::int64_t seq, const ModelSpec& spec, int layer, const Documents& documents) {
  const Tensor row = at::arange(seq, at::kDouble).view({1, 1, seq, 1});
  const Tensor column = at::arange(seq, at::kDouble).view({1, 1, 1, seq});
  Tensor masked = column.gt(row).logical_or(column.lt(documents.first.unsqueeze(1).unsqueeze(3)));
  // A depth's layer is of the last layer's kind.
  if (const auto last = std::min<std::size_t>(static_cast<std::size_t>(layer), spec.windows.size() - 1);
      !spec.windows.empty() && spec.windows[last] > 0) {
    masked = masked.logical_or(row.sub(column).ge(spec.windows[last]));
  }
  return masked;
}

/// Attention's weights [B, A, S, S] of q, k [B, S, A, D]; `extra`: logits a head that take part in the softmax, or
/// undefined.
Tensor attention_weights(const Tensor& q, const Tensor& k, double scale, const ModelSpec& spec, const Tensor& masked,
                         const Tensor& extra) {
  const std::int64_t seq = q.size(1);
  Tensor scores = q.transpose(1, 2).matmul(k.transpose(1, 2).transpose(2, 3)) * scale;
  if (spec.attention_softcap > 0.0) scores = (scores / spec.attention_softcap).tanh() * spec.attention_softcap;
  scores = scores.masked_fill(masked, -std::numeric_limits<double>::infinity());
  if (extra.defined()) {
    scores = at::cat({scores, extra.view({1, -1, 1, 1}).expand({q.size(0), q.size(2), seq, 1})}, -1);
  }
  return scores.softmax(-1).narrow(-1, 0, seq);
}

/// v [B, S, A, V], q and k as above.
Tensor core_attention(const Tensor& q, const Tensor& k, const Tensor& v, double scale, const ModelSpec& spec, int layer,
                      const Documents& documents, const Tensor& masked, const Tensor& extra) {
  const Tensor weights =
      dropped(attention_weights(q, k, scale, spec, masked, extra).contiguous(), spec.dropout.attention,
              layer_part(layer, "self_attention.core_attention.dropout"), documents.repetition);
  return weights.matmul(v.transpose(1, 2)).transpose(1, 2);
}

/// The softmax's extra logits, if it has any.
Tensor extra_logits(const ModelSpec& spec, int layer, const ReferenceParameters& p) {
  if (spec.sinks == model::Part::kPresent) {
    return p.at(fmt::format("decoder.layers.{}.self_attention.core_attention.sinks", layer));
  }
  return spec.zero_sink == model::Part::kPresent ? at::zeros({spec.num_heads()}, at::kDouble) : Tensor();
}

const Tensor& bias(const ReferenceParameters& p, int layer, const std::string& name) {
  return p.at(fmt::format("decoder.layers.{}.{}.bias", layer, name));
}

/// The output projection, with its bias where the model has one.
Tensor project_out(const Tensor& context, const ModelSpec& spec, int layer, const ReferenceParameters& p) {
  const Tensor y = project(context, weight(p, layer, "self_attention.linear_proj"));
  return spec.linear_bias == model::Part::kPresent ? y + bias(p, layer, "self_attention.linear_proj") : y;
}

double score_scale(const ModelSpec& spec, std::int64_t size) {
  const auto width = static_cast<double>(size);
  if (!spec.width_scaling) return 1.0 / std::sqrt(width);
  return std::sqrt(spec.width_scaling->base_head_dim) * std::pow(width, -spec.width_scaling->attention_power);
}

bool turns(const ModelSpec& spec, int layer) {
  const bool has_positions =
      spec.rotated_layers.empty() ||
      spec.rotated_layers[std::min(static_cast<std::size_t>(layer), spec.rotated_layers.size() - 1)] ==
          model::Part::kPresent;
  return has_positions && spec.rope.type != model::RopeType::kNone;
}

/// The indexer's scores [B, S, S] of inputs that no gradient passes.
Tensor indexer_scores(const Tensor& x, const Tensor& latent, const ModelSpec& spec, int layer,
                      const ReferenceParameters& p, const Documents& documents) {
  const model::IndexerSpec& indexer = *spec.indexer();
  const std::string name = layer_part(layer, "self_attention.core_attention.indexer.");
  const auto turned = [&](const Tensor& heads) {
    const bool interleaved = indexer.pairs == model::RopePairs::kNeighbours;
    const Tensor turning =
        turns(spec, layer) ? rotated(heads, documents.position, rotary(spec.rope), interleaved) : heads;
    if (indexer.hadamard == model::Part::kAbsent) return turning;
    Tensor matrix = at::ones({1, 1}, at::kDouble);  // doubled until it is as wide as a head
    while (matrix.size(0) < indexer.head_dim) {
      matrix = at::cat({at::cat({matrix, matrix}, 1), at::cat({matrix, matrix.neg()}, 1)}, 0);
    }
    return turning.matmul(matrix) / std::sqrt(static_cast<double>(indexer.head_dim));
  };
  const Tensor q = turned(project(latent, p.at(name + "linear_wq_b.weight"))
                              .view({x.size(0), x.size(1), indexer.num_heads, indexer.head_dim}));
  const Tensor key = project(x, p.at(name + "linear_wk.weight"));
  const Tensor centred = key - key.mean(-1, true);
  const Tensor variance = centred.square().mean(-1, true) + indexer.norm_epsilon;
  const double around = spec.norm_around_one == model::Part::kPresent ? 1.0 : 0.0;
  const Tensor normed =
      centred / variance.sqrt() * (p.at(name + "k_norm.weight") + around) + p.at(name + "k_norm.bias");
  const Tensor k = turned(normed.unsqueeze(2)).squeeze(2);
  Tensor products = at::einsum("bsid,btd->bsit", {q, k}) / std::sqrt(static_cast<double>(indexer.head_dim));
  if (indexer.rectified == model::Part::kPresent) products = products.relu();
  const Tensor weights =
      project(x, p.at(name + "linear_weights_proj.weight")) / std::sqrt(static_cast<double>(indexer.num_heads));
  return at::einsum("bsit,bsi->bst", {products, weights});
}

/// Which keys are left out: true, [B, S, S]; of equal scores the earlier ones stay.
Tensor not_chosen(const Tensor& scores, const Tensor& masked, std::int64_t top_k) {
  const Tensor seen = scores.detach().masked_fill(masked, -std::numeric_limits<double>::infinity());
  const Tensor order = std::get<1>(at::sort(seen, /*stable=*/true, -1, /*descending=*/true));
  const Tensor chosen = order.narrow(-1, 0, std::min(top_k, scores.size(-1)));
  return at::ones_like(scores, at::kBool).scatter(-1, chosen, false).logical_or(masked);
}

/// coefficient · mean of KL(attention's weights over all heads ‖ the scores' softmax).
Tensor indexer_loss(const Tensor& weights_BASS, const Tensor& scores, const Tensor& masked, double coefficient) {
  const Tensor sum = weights_BASS.detach().sum(1);
  const Tensor wanted = sum / sum.sum(-1, true);
  const Tensor log_q = scores.masked_fill(masked, -std::numeric_limits<double>::infinity()).log_softmax(-1);
  const Tensor terms = at::xlogy(wanted, wanted) - wanted * log_q.masked_fill(masked, 0.0);
  return terms.sum(-1).mean() * coefficient;
}

/// The keys that queries of sparse attention do not look at, [B, 1, S, S], and the loss of what chose them.
Tensor sparse_attention(const Tensor& x, const Tensor& latent, const Tensor& q, const Tensor& k, double scale,
                        const ModelSpec& spec, int layer, const ReferenceParameters& p, Tensor* aux_loss,
                        const Documents& documents) {
  if (!spec.picks_keys(layer)) return documents.hidden_BSS->unsqueeze(1);
  const model::IndexerSpec& indexer = *spec.indexer();
  const Tensor masked = out_of_sight(x.size(1), spec, layer, documents).squeeze(1).expand({x.size(0), -1, -1});
  const Tensor scores = indexer_scores(x.detach(), latent.detach(), spec, layer, p, documents);
  const Tensor hidden = not_chosen(scores, masked, indexer.top_k);
  if (documents.hidden_BSS != nullptr) *documents.hidden_BSS = hidden;
  if (indexer.loss_coefficient > 0.0) {
    const Tensor& over = indexer.sparse_loss == model::Part::kPresent ? hidden : masked;
    const Tensor weights = attention_weights(q, k, scale, spec, over.unsqueeze(1), extra_logits(spec, layer, p));
    *aux_loss = *aux_loss + indexer_loss(weights, scores, over, indexer.loss_coefficient);
  }
  return hidden.unsqueeze(1);
}

Tensor mla(const Tensor& x, const ModelSpec& spec, const MlaSpec& mla, int layer, const ReferenceParameters& p,
           Tensor* aux_loss, const Documents& documents) {
  const std::int64_t batch = x.size(0);
  const std::int64_t seq = x.size(1);
  const auto latent_norm = [&](const Tensor& latent, const char* name) {
    return mla.latent_norms == model::Part::kPresent
               ? normalise(latent, spec, p, layer_part(layer, "self_attention.") + name)
               : latent;
  };
  Tensor query;
  Tensor query_latent = x;
  if (mla.q_lora_rank) {
    query_latent = latent_norm(project(x, weight(p, layer, "self_attention.linear_q_down_proj")), "q_layernorm");
    query = project(query_latent, weight(p, layer, "self_attention.linear_q_up_proj"));
  } else {
    query = project(x, weight(p, layer, "self_attention.linear_q_proj"));
  }
  query = query.view({batch, seq, mla.num_heads, mla.query_dim()});
  const Tensor kv_down = project(x, weight(p, layer, "self_attention.linear_kv_down_proj"));
  const Tensor latent = latent_norm(kv_down.narrow(-1, 0, mla.kv_lora_rank), "kv_layernorm");
  const Tensor kv = project(latent, weight(p, layer, "self_attention.linear_kv_up_proj"))
                        .view({batch, seq, mla.num_heads, mla.qk_head_dim + mla.v_head_dim});
  const Rotary rope = rotary(spec.rope);
  const auto turned = [&](const Tensor& part) {
    return turns(spec, layer) ? rotated(part, documents.position, rope, true) : part;
  };
  const Tensor k_pe = turned(kv_down.narrow(-1, mla.kv_lora_rank, mla.qk_pos_emb_head_dim).unsqueeze(2))
                          .expand({batch, seq, mla.num_heads, mla.qk_pos_emb_head_dim});
  const Tensor q = at::cat(
      {query.narrow(-1, 0, mla.qk_head_dim), turned(query.narrow(-1, mla.qk_head_dim, mla.qk_pos_emb_head_dim))}, -1);
  const Tensor k = at::cat({kv.narrow(-1, 0, mla.qk_head_dim), k_pe}, -1);
  const Tensor v = kv.narrow(-1, mla.qk_head_dim, mla.v_head_dim);
  const double scale = rope.softmax_factor * score_scale(spec, mla.query_dim());
  const Tensor masked = mla.indexer
                            ? sparse_attention(x, query_latent, q, k, scale, spec, layer, p, aux_loss, documents)
                            : out_of_sight(seq, spec, layer, documents);
  const Tensor context = core_attention(q, k, v, scale, spec, layer, documents, masked, extra_logits(spec, layer, p))
                             .reshape({batch, seq, mla.num_heads * mla.v_head_dim});
  if (mla.output_gate == model::Part::kAbsent) return project_out(context, spec, layer, p);
  const Tensor gate = project(x, weight(p, layer, "self_attention.linear_gate_proj")).sigmoid();
  return project_out(context * gate, spec, layer, p);
}

Tensor gqa(const Tensor& x, const ModelSpec& spec, const GqaSpec& gqa, int layer, const ReferenceParameters& p,
           const Documents& documents) {
  const std::int64_t batch = x.size(0);
  const std::int64_t seq = x.size(1);
  const std::int64_t heads = gqa.num_heads;
  const std::int64_t groups = gqa.num_query_groups;
  const std::int64_t dim = gqa.head_dim;
  Tensor qkv = project(x, weight(p, layer, "self_attention.linear_qkv"));
  if (gqa.qkv_bias == model::Part::kPresent) qkv = qkv + bias(p, layer, "self_attention.linear_qkv");
  const bool has_gate = gqa.output_gate == model::Part::kPresent;
  const std::int64_t query_width = heads * dim * (has_gate ? 2 : 1);
  Tensor q = qkv.narrow(-1, 0, query_width).reshape({batch, seq, heads, has_gate ? 2 * dim : dim});
  const Tensor gate = has_gate ? q.narrow(-1, dim, dim) : Tensor();
  q = q.narrow(-1, 0, dim);
  Tensor k = qkv.narrow(-1, query_width, groups * dim).reshape({batch, seq, groups, dim});
  const Tensor v = qkv.narrow(-1, query_width + groups * dim, groups * dim).reshape({batch, seq, groups, dim});
  if (gqa.qk_norms == model::Part::kPresent) {
    q = normalise(q, spec, p, layer_part(layer, "self_attention.q_layernorm"));
    k = normalise(k, spec, p, layer_part(layer, "self_attention.k_layernorm"));
  } else if (gqa.qk_unit_norms == model::Part::kPresent) {
    q = unit_rms(q, spec.norm_epsilon);
    k = unit_rms(k, spec.norm_epsilon);
  }
  const Rotary rope = rotary(spec.rope);
  if (turns(spec, layer)) {
    const bool interleaved = spec.rope.pairs == model::RopePairs::kNeighbours;
    q = rotated(q, documents.position, rope, interleaved);
    k = rotated(k, documents.position, rope, interleaved);
  }
  const double scale = rope.softmax_factor * score_scale(spec, dim);
  Tensor context =
      core_attention(q, k.repeat_interleave(heads / groups, 2), v.repeat_interleave(heads / groups, 2), scale, spec,
                     layer, documents, out_of_sight(seq, spec, layer, documents), extra_logits(spec, layer, p));
  if (has_gate) context = context * gate.sigmoid();
  return project_out(context.reshape({batch, seq, heads * dim}), spec, layer, p);
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

Tensor reference_norm(const Tensor& x, const ModelSpec& spec, const ReferenceParameters& p, const std::string& name) {
  return normalise(x, spec, p, name);
}

Tensor reference_attention(const Tensor& x_BSH, const ModelSpec& spec, int layer, const ReferenceParameters& p,
                           Tensor* aux_loss, const PackedDocuments& packed) {
  const Documents documents = documents_of(x_BSH, packed);
  if (const auto* latent = std::get_if<MlaSpec>(&spec.attention)) {
    return mla(x_BSH, spec, *latent, layer, p, aux_loss, documents);
  }
  return gqa(x_BSH, spec, std::get<GqaSpec>(spec.attention), layer, p, documents);
}

Tensor reference_mixer(const Tensor& x_BSH, const ModelSpec& spec, int layer, const ReferenceParameters& p,
                       Tensor* aux_loss, const PackedDocuments& packed) {
  switch (spec.mixer(layer)) {
    case model::MixerKind::kAttention:
      return reference_attention(x_BSH, spec, layer, p, aux_loss, packed);
    case model::MixerKind::kShortConvolution:
      return reference_short_convolution(x_BSH, spec, layer, p, packed);
    case model::MixerKind::kGatedDelta:
      return reference_gated_delta(x_BSH, spec, layer, p, packed);
    case model::MixerKind::kKimiDelta:
      return reference_kimi_delta(x_BSH, spec, layer, p, packed);
    case model::MixerKind::kUnknown:
      break;
  }
  PRIMUS_CHECK(false, "no reference for the mixer of layer {}", layer);
}

Tensor reference_layer(const Tensor& x_BSC, const ModelSpec& spec, int layer, const ReferenceParameters& p,
                       Tensor* aux_loss, const PackedDocuments& packed) {
  const bool is_after = spec.residual_after_norm == model::Part::kPresent;
  const auto joined = [&](const Tensor& x, const Tensor& normed, const Tensor& y, const char* stream) {
    return (is_after ? normed : x) +
           dropped(y.contiguous(), spec.dropout.hidden, layer_part(layer, stream), packed.repetition);
  };
  if (spec.hyper) {
    const auto behind = [&](const Tensor& y, const char* stream) {
      return dropped(y.contiguous(), spec.dropout.hidden, layer_part(layer, stream), packed.repetition);
    };
    const auto mixer = [&](const Tensor& z) {
      const Tensor normed = normalise(z, spec, p, layer_part(layer, "input_layernorm"));
      return behind(reference_mixer(normed, spec, layer, p, aux_loss, packed), "self_attention.dropout");
    };
    const auto mlp = [&](const Tensor& z) {
      const ReferenceBlock block =
          reference_mlp(normalise(z, spec, p, layer_part(layer, "pre_mlp_layernorm")), spec, layer, p);
      if (block.aux_loss.defined() && aux_loss != nullptr) *aux_loss = *aux_loss + block.aux_loss;
      return behind(block.y_BSH, "mlp.dropout");
    };
    const Tensor middle = reference_connection(x_BSC, spec, layer_part(layer, "self_attention"), p, mixer);
    return reference_connection(middle, spec, layer_part(layer, "mlp"), p, mlp);
  }
  const Tensor normed = normalise(x_BSC, spec, p, layer_part(layer, "input_layernorm"));
  const Tensor middle =
      joined(x_BSC, normed, reference_mixer(normed, spec, layer, p, aux_loss, packed), "self_attention.dropout");
  const Tensor middle_normed = normalise(middle, spec, p, layer_part(layer, "pre_mlp_layernorm"));
  const ReferenceBlock block = reference_mlp(middle_normed, spec, layer, p);
  if (block.aux_loss.defined() && aux_loss != nullptr) *aux_loss = *aux_loss + block.aux_loss;
  return joined(middle, middle_normed, block.y_BSH, "mlp.dropout");
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

/// What a depth reads of the parts before it, token by token. The tests' seed is 0.
Tensor mixed(const std::vector<Tensor>& parts, const ModelSpec& spec, const Tensor& document_BS) {
  const auto depth = std::ssize(parts) - 1;
  if (depth == 0 || spec.mtp_variant.mixed_hidden_states == model::Part::kAbsent) return parts.back();
  const Philox philox(0, fmt::format("mtp.layers.{}.mixing", depth));
  const std::int64_t length = parts[0].size(1);
  std::vector<Tensor> rows;
  for (std::int64_t t = 0; t < parts[0].size(0) * length; ++t) {
    const std::int64_t b = t / length;
    const std::int64_t s = t % length;
    const auto part =
        static_cast<std::int64_t>(philox.uniform(static_cast<std::uint64_t>(t)) * static_cast<double>(depth + 1));
    const std::int64_t place = s + depth - part;
    const bool is_there = place < length && (!document_BS.defined() || document_BS[b][s].item<std::int64_t>() ==
                                                                           document_BS[b][place].item<std::int64_t>());
    rows.push_back(is_there ? parts[static_cast<std::size_t>(part)][b][place] : parts.back()[b][s]);
  }
  return at::stack(rows).view(parts[0].sizes());
}

Tensor token_losses(const Tensor& normed_BSH, const Tensor& output, const Tensor& labels_BS,
                    const model::LogitSpec& spec) {
  Tensor logits = project(normed_BSH, output) * spec.scale;
  if (spec.softcap > 0.0) logits = (logits / spec.softcap).tanh() * spec.softcap;
  return logits.log_softmax(-1).gather(-1, labels_BS.unsqueeze(-1)).squeeze(-1).neg();
}

}  // namespace

Tensor ReferenceLoss::total(const ModelSpec& spec, double num_tokens) const {
  Tensor total = loss_sum / num_tokens + aux_loss;
  for (const Tensor& loss : mtp_losses)
    total = total + loss * (spec.mtp_loss_scale / static_cast<double>(mtp_losses.size()));
  return total;
}

ReferenceLoss reference_model(const Tensor& ids_BS, const Tensor& labels_BS, const Tensor& mask_BS,
                              const ModelSpec& spec, const ReferenceParameters& p, const PackedDocuments& packed,
                              const Tensor& document_BS) {
  const Tensor& embedding = p.at("embedding.word_embeddings.weight");
  ReferenceLoss result;
  result.aux_loss = at::zeros({}, at::kDouble);
  const auto embedded = [&](const Tensor& rows, const std::string& user) {
    const double factor = spec.width_scaling ? spec.width_scaling->embedding : 1.0;
    return dropped((rows * factor).contiguous(), spec.dropout.hidden, user + ".embedding_dropout");
  };
  Tensor x = at::embedding(embedding, ids_BS);
  if (spec.num_learned_positions > 0) {
    const Tensor position = documents_of(x, packed).position.to(at::kLong);
    x = x + at::embedding(p.at("embedding.position_embeddings.weight"), position);
  }
  x = reference_streams(embedded(x, "decoder"), spec);
  Tensor hidden_BSS;
  PackedDocuments shared = packed;
  shared.hidden_BSS = &hidden_BSS;
  for (int layer = 0; layer < spec.num_layers(); ++layer) {
    x = reference_layer(x, spec, layer, p, &result.aux_loss, shared);
  }
  const Tensor& output = spec.output_weight == model::OutputWeight::kOwn ? p.at("output_layer.weight") : embedding;
  Tensor hidden = normalise(reference_contraction(x, spec, p, "decoder"), spec, p, "decoder.final_layernorm");
  result.loss_sum = (token_losses(hidden, output, labels_BS, spec.logits) * mask_BS.to(at::kDouble)).sum();
  const bool is_detached = spec.mtp_variant.detached == model::Part::kPresent;
  const auto cut = [&](const Tensor& part) { return is_detached ? part.detach() : part; };
  std::vector<Tensor> parts = {cut(hidden)};
  for (int depth = 0; depth < spec.num_mtp_layers; ++depth) {
    const int set = spec.mtp_variant.repeated == model::Part::kPresent ? 0 : depth;
    const std::string user = fmt::format("mtp.layers.{}", depth);
    const std::string own = fmt::format("mtp.layers.{}", set);
    const Tensor ids = shifted(ids_BS, depth + 1, document_BS);
    const Tensor mask = shifted(mask_BS.to(at::kDouble), depth + 1, document_BS);
    const Tensor joined =
        at::cat({normalise(cut(embedded(at::embedding(embedding, ids), user)), spec, p, own + ".enorm"),
                 normalise(mixed(parts, spec, document_BS), spec, p, own + ".hnorm")},
                -1);
    const Tensor y = reference_layer(reference_streams(project(joined, p.at(own + ".eh_proj.weight")), spec), spec,
                                     static_cast<int>(spec.num_layers()) + set, p, &result.aux_loss,
                                     {packed.position_BS, packed.first_key_BS, depth - set});
    parts.push_back(normalise(reference_contraction(y, spec, p, own), spec, p, own + ".final_layernorm"));
    const Tensor losses =
        token_losses(parts.back(), cut(output), shifted(labels_BS, depth + 1, document_BS), spec.logits);
    result.mtp_losses.push_back((losses * mask).sum() / mask.sum().clamp_min(1.0));
  }
  return result;
}

}  // namespace primus::test
