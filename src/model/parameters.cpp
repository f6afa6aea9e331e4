#include "model/parameters.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "model/descriptors.hpp"
#include "model/sharding.hpp"

namespace primus::model {
namespace {

/// Elements that one token uses: top_k of the experts, the whole of everything else.
std::int64_t active_elements(const ModelSpec& spec, const ParameterDescriptor& parameter) {
  if (parameter.component != Component::kExperts) return parameter.num_elements();
  return parameter.num_elements() / spec.moe->router.num_experts * spec.moe->router.top_k;
}

struct LayerGroup {
  int first = 0;
  std::int64_t times = 0;
};

/// Layers that have the same parameters.
std::vector<LayerGroup> layer_groups(const ModelSpec& spec) {
  std::vector<LayerGroup> groups;
  for (int layer = 0; layer < static_cast<int>(spec.num_layers()); ++layer) {
    const auto same = std::find_if(groups.begin(), groups.end(), [&](const LayerGroup& group) {
      return spec.likeness(group.first) == spec.likeness(layer);
    });
    if (same == groups.end()) {
      groups.push_back({layer, 1});
    } else {
      ++same->times;
    }
  }
  return groups;
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
    case Component::kExpertLatent:
      return "expert_latent";
    case Component::kOutput:
      return "output";
    case Component::kPrediction:
      return "prediction";
    case Component::kHyperConnections:
      return "hyper_connections";
  }
  return "?";
}

std::int64_t ParameterDescriptor::num_elements() const {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

Descriptors embedding_parameters(const ModelSpec& spec) {
  const Naming naming{"embedding.", "model.", -1};
  ParameterDescriptor weight = matrix(naming, "word_embeddings.weight", {spec.padded_vocab_size, spec.hidden_size},
                                      Component::kEmbedding, embedding_init(spec));
  weight.shards = {{0, ShardGroup::kTensor, {}}};
  weight.hugging_face = {{"model.embed_tokens.weight", 0, spec.vocab_size}};
  Descriptors parameters = {std::move(weight)};
  if (spec.num_learned_positions > 0) {
    parameters.push_back(matrix(naming, "position_embeddings.weight", {spec.num_learned_positions, spec.hidden_size},
                                Component::kEmbedding, embedding_init(spec)));
  }
  return parameters;
}

namespace {

/// What a part of a layer, or the output, attends to the residual stream's blocks with (ops/residual_attention): with
/// queries of zero it begins with their mean. Nothing where they read the stream itself.
Descriptors residual_attention(const ModelSpec& spec, const Naming& naming, const std::string& name) {
  if (spec.residual_block == 0) return {};
  ParameterDescriptor query =
      matrix(naming, name + ".query", {spec.hidden_size}, Component::kAttention, {InitKind::kZeros});
  query.decay = Decay::kNo;
  query.tensor_gradient = TensorGradient::kPartial;
  return {norm_weight(naming, name + ".norm.weight", spec.hidden_size, Component::kNorm, ""), std::move(query)};
}

}  // namespace

Descriptors layer_parameters(const ModelSpec& spec, int layer) {
  const Naming naming = layer_naming(layer);
  Descriptors parameters;
  if (layer < spec.num_layers()) {
    append(parameters, residual_attention(spec, naming, "attention_residual"));
    append(parameters, residual_attention(spec, naming, "mlp_residual"));
  }
  append(parameters, layer_norm(spec, naming, "input_layernorm", "input_layernorm"));
  append(parameters, mixer_parameters(spec, layer));
  append(parameters, layer_norm(spec, naming, "pre_mlp_layernorm", "post_attention_layernorm"));
  const bool is_moe = spec.kind(layer) == LayerKind::kMoe;
  append(parameters, is_moe ? moe_parameters(spec, layer) : dense_mlp_parameters(spec, layer));
  append(parameters, hyper_connection(spec, naming, "self_attention_hyper_connection", "attn_hc"));
  append(parameters, hyper_connection(spec, naming, "mlp_hyper_connection", "ffn_hc"));
  return parameters;
}

Descriptors output_parameters(const ModelSpec& spec) {
  const Naming naming{"decoder.", "model.", -1};
  Descriptors parameters = residual_attention(spec, naming, "output_residual");
  append(parameters, hyper_head(spec, naming));
  append(parameters, layer_norm(spec, naming, "final_layernorm", "norm"));
  if (spec.output_weight == OutputWeight::kOwn) {
    ParameterDescriptor weight =
        matrix({"output_layer.", "", -1}, "weight", {spec.padded_vocab_size, spec.hidden_size}, Component::kOutput,
               spec.width_scaling ? embedding_init(spec) : input_init(spec));
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

Descriptors mtp_depth_parameters(const ModelSpec& spec, int depth) {
  const int layer = static_cast<int>(spec.num_layers()) + depth;
  const Naming naming{fmt::format("mtp.layers.{}.", depth), fmt::format("model.layers.{}.", layer), layer};
  Descriptors parameters = layer_norm(spec, naming, "enorm", "enorm");
  append(parameters, layer_norm(spec, naming, "hnorm", "hnorm"));
  ParameterDescriptor joining = matrix(naming, "eh_proj.weight", {spec.hidden_size, 2 * spec.hidden_size},
                                       Component::kPrediction, input_init(spec));
  // Columns: the embedding's half, then the hidden state's.
  joining.shards = {{0, ShardGroup::kTensor, {}}};
  joining.hugging_face = {whole_rows(naming.hugging_face + "eh_proj.weight", joining)};
  parameters.push_back(std::move(joining));
  append(parameters, layer_parameters(spec, layer));
  append(parameters, hyper_head(spec, naming));
  append(parameters, layer_norm(spec, naming, "final_layernorm", "shared_head.norm"));
  return parameters;
}

Descriptors mtp_parameters(const ModelSpec& spec) {
  Descriptors parameters;
  for (int depth = 0; depth < spec.num_mtp_parameter_sets(); ++depth) {
    append(parameters, mtp_depth_parameters(spec, depth));
  }
  return parameters;
}

ParameterDescriptor word_embedding(const ModelSpec& spec) {
  return embedding_parameters(spec).front();
}

Descriptors stage_parameters(const ModelSpec& spec, const StageContent& content) {
  Descriptors parameters;
  if (content.embedding == Part::kPresent) append(parameters, embedding_parameters(spec));
  for (int layer = 0; layer < content.num_layers; ++layer) {
    append(parameters, layer_parameters(spec, content.first_layer + layer));
  }
  if (content.output == Part::kPresent) append(parameters, output_parameters(spec));
  if (content.num_mtp_layers > 0) append(parameters, mtp_parameters(spec));
  return parameters;
}

std::vector<std::int64_t> local_shape(const ParameterDescriptor& parameter, const Sharding& sharding) {
  std::vector<std::int64_t> shape = parameter.shape;
  for (const Shard& shard : parameter.shards) {
    std::int64_t& size = shape.at(static_cast<std::size_t>(shard.axis));
    size = share(size, sharding.size(shard.group));
  }
  return shape;
}

std::int64_t local_elements(const ParameterDescriptor& parameter, const Sharding& sharding) {
  const std::vector<std::int64_t> shape = local_shape(parameter, sharding);
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

Descriptors training_parameters(const ModelSpec& spec) {
  Descriptors parameters = model_parameters(spec);
  append(parameters, mtp_parameters(spec));
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
  for (const auto& [first, times] : layer_groups(spec)) add(layer_parameters(spec, first), times);
  add(output_parameters(spec), 1);
  const auto component = [&](Component part) { return count.by_component[static_cast<int>(part)]; };
  count.active_without_embedding = count.active - component(Component::kEmbedding) - component(Component::kOutput);
  return count;
}

std::int64_t count_mtp_parameters(const ModelSpec& spec) {
  std::int64_t count = 0;
  for (const ParameterDescriptor& parameter : mtp_depth_parameters(spec, 0)) count += parameter.num_elements();
  return count;
}

std::int64_t closed_form_active_parameters(const ModelSpec& spec) {
  const std::int64_t hidden = spec.hidden_size;
  const std::int64_t experts = spec.moe ? spec.moe->router.top_k * 3 * hidden * spec.moe->ffn_hidden_size : 0;
  return spec.num_layers() * (hidden * hidden + experts) + 2 * spec.padded_vocab_size * hidden;
}

}  // namespace primus::model
