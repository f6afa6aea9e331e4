#include "model/parameters.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <numeric>

#include "base/error.hpp"

namespace primus::model {
namespace {

using Descriptors = std::vector<ParameterDescriptor>;

/// What the descriptors of one layer share: names and the two standard deviations of Megatron's initialisation.
struct Naming {
  std::string ours;          // "decoder.layers.3."
  std::string hugging_face;  // "model.layers.3."
  int layer;
};

Naming layer_naming(int layer) {
  return {fmt::format("decoder.layers.{}.", layer), fmt::format("model.layers.{}.", layer), layer};
}

Init input_init(const ModelSpec& spec) {
  return {InitKind::kNormal, spec.init_std};
}

/// Projections back into the residual stream: σ/sqrt(2·layers), so that its variance does not grow with depth.
Init output_init(const ModelSpec& spec) {
  return {InitKind::kNormal, spec.init_std / std::sqrt(2.0 * static_cast<double>(spec.num_layers()))};
}

ParameterDescriptor matrix(const Naming& naming, const std::string& name, std::vector<std::int64_t> shape,
                           Component component, Init init) {
  ParameterDescriptor parameter;
  parameter.name = naming.ours + name;
  parameter.shape = std::move(shape);
  parameter.component = component;
  parameter.layer = naming.layer;
  parameter.init = init;
  return parameter;
}

ParameterDescriptor norm_weight(const Naming& naming, const std::string& name, std::int64_t width, Component component,
                                const std::string& hugging_face) {
  ParameterDescriptor parameter = matrix(naming, name, {width}, component, {InitKind::kOnes, 0.0});
  parameter.decay = Decay::kNo;
  parameter.tensor_gradient = TensorGradient::kPartial;
  parameter.hugging_face = {{naming.hugging_face + hugging_face, 0, width}};
  return parameter;
}

HuggingFaceSlice whole_rows(const std::string& name, const ParameterDescriptor& parameter, int axis = 0) {
  return {name, 0, parameter.shape[static_cast<std::size_t>(axis)]};
}

Descriptors mla_parameters(const ModelSpec& spec, const MlaSpec& mla, const Naming& naming) {
  Descriptors parameters;
  const std::int64_t hidden = spec.hidden_size;
  const std::int64_t query_width = mla.num_heads * mla.query_dim();
  const auto add = [&](ParameterDescriptor parameter, const std::string& hugging_face) {
    parameter.hugging_face = {whole_rows(naming.hugging_face + "self_attn." + hugging_face, parameter)};
    parameters.push_back(std::move(parameter));
  };
  const auto projection = [&](const std::string& name, std::int64_t rows, std::int64_t columns, Init init) {
    return matrix(naming, "self_attention." + name + ".weight", {rows, columns}, Component::kAttention, init);
  };
  const auto split_heads = [](ParameterDescriptor parameter, int axis) {
    parameter.shards = {{axis, ShardGroup::kTensor, {}}};
    return parameter;
  };
  // The down projections are whole on every tensor-parallel rank; their gradients are parts of a sum.
  const auto replicated = [](ParameterDescriptor parameter) {
    parameter.tensor_gradient = TensorGradient::kPartial;
    return parameter;
  };
  if (mla.q_lora_rank) {
    add(replicated(projection("linear_q_down_proj", *mla.q_lora_rank, hidden, input_init(spec))), "q_a_proj.weight");
    parameters.push_back(norm_weight(naming, "self_attention.q_layernorm.weight", *mla.q_lora_rank,
                                     Component::kAttention, "self_attn.q_a_layernorm.weight"));
    add(split_heads(projection("linear_q_up_proj", query_width, *mla.q_lora_rank, input_init(spec)), 0),
        "q_b_proj.weight");
  } else {
    add(split_heads(projection("linear_q_proj", query_width, hidden, input_init(spec)), 0), "q_proj.weight");
  }
  add(replicated(
          projection("linear_kv_down_proj", mla.kv_lora_rank + mla.qk_pos_emb_head_dim, hidden, input_init(spec))),
      "kv_a_proj_with_mqa.weight");
  parameters.push_back(norm_weight(naming, "self_attention.kv_layernorm.weight", mla.kv_lora_rank,
                                   Component::kAttention, "self_attn.kv_a_layernorm.weight"));
  add(split_heads(projection("linear_kv_up_proj", mla.num_heads * (mla.qk_head_dim + mla.v_head_dim), mla.kv_lora_rank,
                             input_init(spec)),
                  0),
      "kv_b_proj.weight");
  add(split_heads(projection("linear_proj", hidden, mla.num_heads * mla.v_head_dim, output_init(spec)), 1),
      "o_proj.weight");
  return parameters;
}

Descriptors gqa_parameters(const ModelSpec& spec, const GqaSpec& gqa, const Naming& naming) {
  const std::int64_t q = gqa.num_heads * gqa.head_dim;
  const std::int64_t kv = gqa.num_query_groups * gqa.head_dim;
  ParameterDescriptor qkv = matrix(naming, "self_attention.linear_qkv.weight", {q + 2 * kv, spec.hidden_size},
                                   Component::kAttention, input_init(spec));
  qkv.shards = {{0, ShardGroup::kTensor, {q, kv, kv}}};
  const std::string prefix = naming.hugging_face + "self_attn.";
  qkv.hugging_face = {{prefix + "q_proj.weight", 0, q},
                      {prefix + "k_proj.weight", q, q + kv},
                      {prefix + "v_proj.weight", q + kv, q + 2 * kv}};
  ParameterDescriptor proj = matrix(naming, "self_attention.linear_proj.weight", {spec.hidden_size, q},
                                    Component::kAttention, output_init(spec));
  proj.shards = {{1, ShardGroup::kTensor, {}}};
  proj.hugging_face = {whole_rows(prefix + "o_proj.weight", proj)};
  return {std::move(qkv), std::move(proj)};
}

/// Gate and up as one matrix, and the down projection, of a dense MLP or the shared experts.
Descriptors gated_mlp(const ModelSpec& spec, const Naming& naming, const std::string& name, std::int64_t ffn,
                      Component component) {
  ParameterDescriptor fc1 =
      matrix(naming, name + ".linear_fc1.weight", {2 * ffn, spec.hidden_size}, component, input_init(spec));
  fc1.shards = {{0, ShardGroup::kTensor, {ffn, ffn}}};
  fc1.hugging_face = {{naming.hugging_face + name + ".gate_proj.weight", 0, ffn},
                      {naming.hugging_face + name + ".up_proj.weight", ffn, 2 * ffn}};
  ParameterDescriptor fc2 =
      matrix(naming, name + ".linear_fc2.weight", {spec.hidden_size, ffn}, component, output_init(spec));
  fc2.shards = {{1, ShardGroup::kTensor, {}}};
  fc2.hugging_face = {whole_rows(naming.hugging_face + name + ".down_proj.weight", fc2)};
  return {std::move(fc1), std::move(fc2)};
}

Descriptors expert_parameters(const ModelSpec& spec, const MoeSpec& moe, const Naming& naming) {
  const std::int64_t num_experts = moe.router.num_experts;
  const std::int64_t ffn = moe.ffn_hidden_size;
  const std::string prefix = naming.hugging_face + "mlp.experts.{e}.";
  ParameterDescriptor fc1 = matrix(naming, "mlp.experts.linear_fc1.weight", {num_experts, 2 * ffn, spec.hidden_size},
                                   Component::kExperts, input_init(spec));
  fc1.shards = {{0, ShardGroup::kExpert, {}}, {1, ShardGroup::kExpertTensor, {ffn, ffn}}};
  fc1.hugging_face = {{prefix + "gate_proj.weight", 0, ffn}, {prefix + "up_proj.weight", ffn, 2 * ffn}};
  ParameterDescriptor fc2 = matrix(naming, "mlp.experts.linear_fc2.weight", {num_experts, spec.hidden_size, ffn},
                                   Component::kExperts, output_init(spec));
  fc2.shards = {{0, ShardGroup::kExpert, {}}, {2, ShardGroup::kExpertTensor, {}}};
  fc2.hugging_face = {whole_rows(prefix + "down_proj.weight", fc2, 1)};
  fc1.reduction = fc2.reduction = GradReduction::kExpertDataParallel;
  return {std::move(fc1), std::move(fc2)};
}

void append(Descriptors& all, Descriptors more) {
  all.insert(all.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
}

/// Elements that one token uses: top_k of the experts, the whole of everything else.
std::int64_t active_elements(const ModelSpec& spec, const ParameterDescriptor& parameter) {
  if (parameter.component != Component::kExperts) return parameter.num_elements();
  return parameter.num_elements() / spec.moe->router.num_experts * spec.moe->router.top_k;
}

}  // namespace

std::string_view name(Component component) {
  switch (component) {
    case Component::kEmbedding:
      return "embedding";
    case Component::kNorm:
      return "norm";
    case Component::kAttention:
      return "attention";
    case Component::kDenseMlp:
      return "mlp";
    case Component::kRouter:
      return "router";
    case Component::kExperts:
      return "experts";
    case Component::kSharedExperts:
      return "shared_experts";
    case Component::kOutput:
      return "output";
  }
  return "?";
}

std::int64_t ParameterDescriptor::num_elements() const {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

Descriptors embedding_parameters(const ModelSpec& spec) {
  const Naming naming{"embedding.", "model.", -1};
  ParameterDescriptor weight = matrix(naming, "word_embeddings.weight", {spec.padded_vocab_size, spec.hidden_size},
                                      Component::kEmbedding, input_init(spec));
  weight.shards = {{0, ShardGroup::kTensor, {}}};
  weight.hugging_face = {{"model.embed_tokens.weight", 0, spec.vocab_size}};
  return {std::move(weight)};
}

Descriptors attention_parameters(const ModelSpec& spec, int layer) {
  const Naming naming = layer_naming(layer);
  if (const auto* mla = std::get_if<MlaSpec>(&spec.attention)) return mla_parameters(spec, *mla, naming);
  return gqa_parameters(spec, std::get<GqaSpec>(spec.attention), naming);
}

Descriptors dense_mlp_parameters(const ModelSpec& spec, int layer) {
  return gated_mlp(spec, layer_naming(layer), "mlp", spec.dense_ffn_hidden_size, Component::kDenseMlp);
}

Descriptors moe_parameters(const ModelSpec& spec, int layer) {
  PRIMUS_CHECK(spec.moe.has_value(), "layer {} is MoE in a model without experts", layer);
  const Naming naming = layer_naming(layer);
  const MoeSpec& moe = *spec.moe;
  const std::int64_t num_experts = moe.router.num_experts;
  Descriptors parameters;
  ParameterDescriptor router =
      matrix(naming, "mlp.router.weight", {num_experts, spec.hidden_size}, Component::kRouter, input_init(spec));
  router.tensor_gradient = TensorGradient::kPartial;
  router.hugging_face = {whole_rows(naming.hugging_face + "mlp.gate.weight", router)};
  parameters.push_back(std::move(router));
  if (moe.router.expert_bias == RouterSpec::ExpertBias::kOn) {
    ParameterDescriptor bias =
        matrix(naming, "mlp.router.expert_bias", {num_experts}, Component::kRouter, {InitKind::kZeros, 0.0});
    bias.trained = Trained::kNo;
    bias.decay = Decay::kNo;
    bias.hugging_face = {whole_rows(naming.hugging_face + "mlp.gate.e_score_correction_bias", bias)};
    parameters.push_back(std::move(bias));
  }
  append(parameters, expert_parameters(spec, moe, naming));
  if (moe.shared_ffn_hidden_size > 0) {
    append(parameters,
           gated_mlp(spec, naming, "mlp.shared_experts", moe.shared_ffn_hidden_size, Component::kSharedExperts));
  }
  return parameters;
}

Descriptors layer_parameters(const ModelSpec& spec, int layer) {
  const Naming naming = layer_naming(layer);
  Descriptors parameters = {
      norm_weight(naming, "input_layernorm.weight", spec.hidden_size, Component::kNorm, "input_layernorm.weight")};
  append(parameters, attention_parameters(spec, layer));
  parameters.push_back(norm_weight(naming, "pre_mlp_layernorm.weight", spec.hidden_size, Component::kNorm,
                                   "post_attention_layernorm.weight"));
  const bool is_moe = spec.layers.at(static_cast<std::size_t>(layer)) == LayerKind::kMoe;
  append(parameters, is_moe ? moe_parameters(spec, layer) : dense_mlp_parameters(spec, layer));
  return parameters;
}

Descriptors output_parameters(const ModelSpec& spec) {
  Descriptors parameters = {norm_weight({"decoder.", "model.", -1}, "final_layernorm.weight", spec.hidden_size,
                                        Component::kNorm, "norm.weight")};
  if (spec.output_weight == OutputWeight::kOwn) {
    ParameterDescriptor weight = matrix({"output_layer.", "", -1}, "weight", {spec.padded_vocab_size, spec.hidden_size},
                                        Component::kOutput, input_init(spec));
    weight.shards = {{0, ShardGroup::kTensor, {}}};
    weight.hugging_face = {{"lm_head.weight", 0, spec.vocab_size}};
    parameters.push_back(std::move(weight));
  }
  return parameters;
}

Descriptors model_parameters(const ModelSpec& spec) {
  Descriptors parameters = embedding_parameters(spec);
  for (int layer = 0; layer < spec.num_layers(); ++layer) append(parameters, layer_parameters(spec, layer));
  append(parameters, output_parameters(spec));
  return parameters;
}

ParameterCount count_parameters(const ModelSpec& spec) {
  ParameterCount count;
  const auto add = [&](const Descriptors& parameters, std::int64_t times) {
    for (const ParameterDescriptor& parameter : parameters) {
      count.total += times * parameter.num_elements();
      count.active += times * active_elements(spec, parameter);
      count.by_component[static_cast<int>(parameter.component)] += times * parameter.num_elements();
    }
  };
  add(embedding_parameters(spec), 1);
  // All layers of a kind are alike: describing each of 96 would cost more than adding them up.
  for (const LayerKind kind : {LayerKind::kDense, LayerKind::kMoe}) {
    const auto first = std::find(spec.layers.begin(), spec.layers.end(), kind);
    if (first == spec.layers.end()) continue;
    add(layer_parameters(spec, static_cast<int>(first - spec.layers.begin())),
        std::count(spec.layers.begin(), spec.layers.end(), kind));
  }
  add(output_parameters(spec), 1);
  return count;
}

std::int64_t count_mtp_parameters(const ModelSpec& spec) {
  std::int64_t count = 0;
  for (const ParameterDescriptor& parameter : layer_parameters(spec, static_cast<int>(spec.num_layers()) - 1)) {
    count += parameter.num_elements();
  }
  // enorm, hnorm, the final norm, and eh_proj [H, 2H].
  return count + 3 * spec.hidden_size + 2 * spec.hidden_size * spec.hidden_size;
}

}  // namespace primus::model
