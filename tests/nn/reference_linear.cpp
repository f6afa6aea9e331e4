// Mixers other than attention: token by token, as their papers have them.
#include <ATen/TensorOperators.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/softplus.h>
#include <ATen/ops/stack.h>

#include "nn/reference.hpp"

// Legend: B sequences, S length, H hidden, C channels, K taps.
namespace primus::test {
namespace {

using model::ModelSpec;

const Tensor& parameter(const ReferenceParameters& p, int layer, const std::string& name) {
  return p.at(fmt::format("decoder.layers.{}.self_attention.{}", layer, name));
}

/// A linear layer, with its bias where there is one of that name.
Tensor linear(const Tensor& x, const ReferenceParameters& p, int layer, const std::string& name) {
  const Tensor y = x.matmul(parameter(p, layer, name + ".weight").t());
  const auto bias = p.find(fmt::format("decoder.layers.{}.self_attention.{}.bias", layer, name));
  return bias == p.end() ? y : y + bias->second;
}

/// The first token that token (b, s) sees.
std::int64_t first_of(const PackedDocuments& packed, std::int64_t b, std::int64_t s) {
  return packed.first_key_BS.defined() ? packed.first_key_BS[b][s].item().toLong() : 0;
}

/// x [B, S, C]: the sum of each channel's taps over the tokens of the same document.
Tensor convolved(const Tensor& x, const Tensor& weight_C1K, const Tensor& bias_C, const PackedDocuments& packed) {
  const std::int64_t taps = weight_C1K.size(2);
  std::vector<Tensor> sequences;
  for (std::int64_t b = 0; b < x.size(0); ++b) {
    std::vector<Tensor> tokens;
    for (std::int64_t s = 0; s < x.size(1); ++s) {
      Tensor sum = bias_C.defined() ? bias_C : at::zeros({x.size(2)}, at::kDouble);
      for (std::int64_t from = std::max(first_of(packed, b, s), s - taps + 1); from <= s; ++from) {
        sum = sum + weight_C1K.select(1, 0).select(1, taps - 1 - (s - from)) * x[b][from];
      }
      tokens.push_back(sum);
    }
    sequences.push_back(at::stack(tokens));
  }
  return at::stack(sequences);
}

/// Rows of unit length, as the delta rule reads them.
Tensor unit(const Tensor& x) {
  return x * (x.pow(2).sum(-1, /*keepdim=*/true) + 1e-6).rsqrt();
}

/// The gated delta rule, token by token: q and k [B, S, A, K], v [B, S, A, V], log decay [B, S, A, 1 or K], beta
/// [B, S, A].
Tensor delta_rule(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& log_decay, const Tensor& beta,
                  const PackedDocuments& packed) {
  std::vector<Tensor> sequences;
  for (std::int64_t b = 0; b < q.size(0); ++b) {
    std::vector<Tensor> tokens;
    Tensor state;  // [A, K, V]
    for (std::int64_t s = 0; s < q.size(1); ++s) {
      if (first_of(packed, b, s) == s) state = at::zeros({q.size(2), q.size(3), v.size(3)}, at::kDouble);
      state = state * log_decay[b][s].exp().unsqueeze(-1);
      const Tensor key = k[b][s].unsqueeze(-1);
      const Tensor x = beta[b][s].unsqueeze(-1) * (v[b][s] - (state * key).sum(1));
      state = state + key * x.unsqueeze(1);
      tokens.push_back((state * q[b][s].unsqueeze(-1)).sum(1));
    }
    sequences.push_back(at::stack(tokens));
  }
  return at::stack(sequences);
}

}  // namespace

Tensor reference_gated_delta(const Tensor& x_BSH, const ModelSpec& spec, int layer, const ReferenceParameters& p,
                             const PackedDocuments& packed) {
  const model::GatedDeltaSpec& delta = spec.gated_delta;
  const std::int64_t heads = delta.num_value_heads;
  const std::int64_t of_key = heads / delta.num_key_heads;
  const Tensor projected = linear(x_BSH, p, layer, "in_proj");
  std::int64_t reached = 0;
  const auto take = [&](std::int64_t width) {
    reached += width;
    return projected.narrow(-1, reached - width, width);
  };
  const Tensor mixed = at::silu(
      convolved(take(2 * delta.key_width() + delta.value_width()), parameter(p, layer, "conv1d.weight"), {}, packed));
  const Tensor gate = take(delta.value_width()).unflatten(-1, {heads, delta.value_head_dim});
  const Tensor beta = at::sigmoid(take(heads));
  const Tensor rate = parameter(p, layer, "A_log").exp();
  // A threshold beyond all values: softplus itself, not torch's straight line from 20 on.
  const Tensor log_decay = -rate * at::softplus(take(heads) + parameter(p, layer, "dt_bias"), 1, 700);
  const auto keys = [&](std::int64_t first) {
    return unit(mixed.narrow(-1, first, delta.key_width()).unflatten(-1, {delta.num_key_heads, delta.key_head_dim}))
        .repeat_interleave(of_key, 2);
  };
  const Tensor value =
      mixed.narrow(-1, 2 * delta.key_width(), delta.value_width()).unflatten(-1, {heads, delta.value_head_dim});
  const Tensor context = delta_rule(keys(0) / std::sqrt(static_cast<double>(delta.key_head_dim)),
                                    keys(delta.key_width()), value, log_decay.unsqueeze(-1), beta, packed);
  const Tensor normed = context * (context.pow(2).mean(-1, true) + spec.norm_epsilon).rsqrt() *
                        parameter(p, layer, "out_norm.weight") * at::silu(gate);
  return linear(normed.flatten(-2), p, layer, "out_proj");
}

Tensor reference_kimi_delta(const Tensor& x_BSH, const ModelSpec& spec, int layer, const ReferenceParameters& p,
                            const PackedDocuments& packed) {
  const model::KimiDeltaSpec& delta = spec.kimi_delta;
  const model::GatedDeltaSpec& sizes = delta.heads;
  const std::int64_t heads = sizes.num_value_heads;
  const std::int64_t mixed_width = 2 * sizes.key_width() + sizes.value_width();
  const Tensor projected = linear(x_BSH, p, layer, "in_proj");
  const Tensor low = linear(x_BSH, p, layer, "low_rank_proj");
  const Tensor mixed =
      at::silu(convolved(projected.narrow(-1, 0, mixed_width), parameter(p, layer, "conv1d.weight"), {}, packed));
  const auto part = [&](std::int64_t first, std::int64_t num_heads, std::int64_t size) {
    return mixed.narrow(-1, first, num_heads * size).unflatten(-1, {num_heads, size});
  };
  const auto keys = [&](std::int64_t first) {
    return unit(part(first, sizes.num_key_heads, sizes.key_head_dim)).repeat_interleave(heads / sizes.num_key_heads, 2);
  };
  const Tensor raw =
      (linear(low.narrow(-1, 0, sizes.value_head_dim), p, layer, "decay_proj") + parameter(p, layer, "dt_bias"))
          .unflatten(-1, {heads, sizes.key_head_dim});
  const Tensor rate = parameter(p, layer, "A_log").exp().unsqueeze(-1);
  // A threshold beyond all values: softplus itself, not torch's straight line from 20 on.
  const Tensor log_decay =
      delta.lowest_decay ? *delta.lowest_decay * at::sigmoid(rate * raw) : -rate * at::softplus(raw, 1, 700);
  const Tensor context = delta_rule(keys(0) / std::sqrt(static_cast<double>(sizes.key_head_dim)),
                                    keys(sizes.key_width()), part(2 * sizes.key_width(), heads, sizes.value_head_dim),
                                    log_decay, at::sigmoid(projected.narrow(-1, mixed_width, heads)), packed);
  const Tensor gate = delta.full_rank_gate == model::Part::kPresent
                          ? projected.narrow(-1, mixed_width + heads, sizes.value_width())
                          : linear(low.narrow(-1, sizes.value_head_dim, sizes.value_head_dim), p, layer, "gate_proj");
  const Tensor normed =
      context * (context.pow(2).mean(-1, true) + spec.norm_epsilon).rsqrt() * parameter(p, layer, "out_norm.weight");
  return linear(normed.flatten(-2) * at::sigmoid(gate), p, layer, "out_proj");
}

Tensor reference_short_convolution(const Tensor& x_BSH, const ModelSpec& spec, int layer, const ReferenceParameters& p,
                                   const PackedDocuments& packed) {
  const std::int64_t hidden = spec.hidden_size;
  const Tensor projected = linear(x_BSH, p, layer, "in_proj");
  const Tensor bias =
      spec.short_convolution.bias == model::Part::kPresent ? parameter(p, layer, "conv.bias") : Tensor();
  const Tensor mixed = convolved(projected.narrow(-1, 0, hidden) * projected.narrow(-1, 2 * hidden, hidden),
                                 parameter(p, layer, "conv.weight"), bias, packed);
  return linear(projected.narrow(-1, hidden, hidden) * mixed, p, layer, "out_proj");
}

}  // namespace primus::test
