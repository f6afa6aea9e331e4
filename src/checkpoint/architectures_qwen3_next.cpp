// Qwen3-Next: gated delta nets between layers of gated attention, norms around one, a gated shared expert. And what all
// of Qwen3's models with experts share.
#include <fmt/format.h>

#include <algorithm>

#include "checkpoint/architecture_fields.hpp"

namespace primus::checkpoint {

using config::Experiment;
using model::ModelSpec;

namespace fields {

void read_qwen_pattern(ConfigReader& config, Settings& settings) {
  const std::int64_t layers = config.integer("num_hidden_layers", 1);
  const std::int64_t step = std::max<std::int64_t>(1, config.integer("decoder_sparse_step", 1));
  std::vector<std::int64_t> is_moe(static_cast<std::size_t>(layers));
  for (std::int64_t i = 0; i < layers; ++i) is_moe[static_cast<std::size_t>(i)] = (i + 1) % step == 0 ? 1 : 0;
  for (const Json& layer : config.list("mlp_only_layers")) {
    if (!layer.is_number_unsigned() || layer >= layers) {
      config.problem("mlp_only_layers", "names a layer that is not there", fmt::format("0 to {}", layers - 1),
                     layer.dump());
      continue;
    }
    is_moe[layer.get<std::size_t>()] = 0;
  }
  settings.set("moe_layer_freq", layer_pattern(is_moe));
}

void write_qwen_experts(const ModelSpec& spec, Json& json) {
  if (!spec.moe) return;
  json["num_experts"] = spec.moe->router.num_experts;
  json["num_experts_per_tok"] = spec.moe->router.top_k;
  json["moe_intermediate_size"] = spec.moe->ffn_hidden_size;
  json["norm_topk_prob"] = spec.moe->router.softmax_order == model::SoftmaxOrder::kPost;
  json["decoder_sparse_step"] = 1;
  json["mlp_only_layers"] = Json::array();
  for (std::size_t layer = 0; layer < spec.layers.size(); ++layer) {
    if (spec.layers[layer] == model::LayerKind::kDense) json["mlp_only_layers"].push_back(layer);
  }
}

}  // namespace fields

using namespace fields;  // helpers of these files alone

namespace {

/// Kinds by layer, or every n-th layer has attention.
void read_linear_layers(ConfigReader& config, Settings& settings) {
  const std::int64_t layers = config.integer("num_hidden_layers", 1);
  const std::int64_t interval = std::max<std::int64_t>(1, config.integer("full_attention_interval", 4));
  const std::vector<Json> types = config.list("layer_types");
  std::vector<std::int64_t> is_linear;
  if (types.empty()) {
    for (std::int64_t layer = 0; layer < layers; ++layer) is_linear.push_back((layer + 1) % interval != 0 ? 1 : 0);
  }
  for (const Json& type : types) {
    if (type != "linear_attention" && type != "full_attention") {
      config.problem("layer_types", "names a layer that is not converted", "linear_attention or full_attention",
                     type.dump());
      return;
    }
    is_linear.push_back(type == "linear_attention" ? 1 : 0);
  }
  if (static_cast<std::int64_t>(is_linear.size()) != layers) {
    config.problem("layer_types", "is not for every layer", fmt::format("{} kinds", layers),
                   fmt::format("{} kinds", is_linear.size()));
    return;
  }
  // A list in every case: the integer 1 would mean none.
  config::Value::List list;
  for (const std::int64_t one : is_linear) list.emplace_back().data = one;
  settings.set("linear_attention_freq", {list});
}

void read_delta_net(ConfigReader& config, Settings& settings) {
  settings.set("experimental_attention_variant", value("gated_delta_net"));
  read_linear_layers(config, settings);
  const std::int64_t keys = config.integer("linear_num_key_heads", 16);
  const std::int64_t values = config.integer("linear_num_value_heads", 32);
  settings.set("linear_num_key_heads", value(keys));
  settings.set("linear_num_value_heads", value(values));
  settings.set("linear_key_head_dim", value(config.integer("linear_key_head_dim", 128)));
  settings.set("linear_value_head_dim", value(config.integer("linear_value_head_dim", 128)));
  settings.set("linear_conv_kernel_dim", value(config.integer("linear_conv_kernel_dim", 4)));
  if (keys < 1 || values % keys != 0) {
    config.problem("linear_num_value_heads", "is no multiple of linear_num_key_heads", "a multiple",
                   fmt::format("{} and {}", values, keys));
  }
}

}  // namespace

ConfigFacts read_qwen3_next(ConfigReader& config, Settings& settings) {
  constexpr double kRotatedPart = 0.25;
  read_common(config, settings, 1e-6);
  read_rope(config, settings, 10000.0, PartialRotary::kRead, kRotatedPart);
  read_grouped_queries(config, settings, 2);
  settings.set("kv_channels", value(config.integer("head_dim", 256)));
  settings.set("qk_layernorm", flag(true));
  settings.set("attention_output_gate", flag(true));
  settings.set("apply_layernorm_1p", flag(true));
  read_delta_net(config, settings);
  const std::int64_t listed = config.integer("num_local_experts", 0);
  set_experts(settings, config.integer("num_experts", listed > 0 ? listed : 512),
              config.integer("num_experts_per_tok", 10), config.integer("moe_intermediate_size", 512));
  settings.set("moe_shared_expert_intermediate_size", value(config.integer("shared_expert_intermediate_size", 512)));
  settings.set("moe_shared_expert_gate", flag(true));
  settings.set("moe_router_pre_softmax", flag(!config.flag("norm_topk_prob", true)));
  read_qwen_pattern(config, settings);
  config.expect("attention_bias", false, "biases in Qwen3-Next's attention are not converted");
  return {};
}

Json write_qwen3_next(const Experiment& experiment, const ModelSpec& spec) {
  Json json = common_fields(experiment, spec);
  write_grouped_queries(spec, json);
  json["attention_bias"] = false;
  json["partial_rotary_factor"] = experiment.get_double("rotary_percent");
  json["layer_types"] = Json::array();
  for (int layer = 0; layer < spec.num_layers(); ++layer) {
    json["layer_types"].push_back(spec.mixer(layer) == model::MixerKind::kGatedDelta ? "linear_attention"
                                                                                     : "full_attention");
  }
  const model::GatedDeltaSpec& delta = spec.gated_delta;
  json["linear_num_key_heads"] = delta.num_key_heads;
  json["linear_num_value_heads"] = delta.num_value_heads;
  json["linear_key_head_dim"] = delta.key_head_dim;
  json["linear_value_head_dim"] = delta.value_head_dim;
  json["linear_conv_kernel_dim"] = delta.kernel_size;
  write_qwen_experts(spec, json);
  if (spec.moe) json["shared_expert_intermediate_size"] = spec.moe->shared_ffn_hidden_size;
  return json;
}

}  // namespace primus::checkpoint
