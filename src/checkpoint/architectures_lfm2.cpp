// LFM2, dense and with experts: short convolutions between layers of grouped-query attention.
#include <fmt/format.h>

#include <algorithm>

#include "checkpoint/architecture_fields.hpp"

namespace primus::checkpoint {

using config::Experiment;
using model::ModelSpec;
using namespace fields;  // helpers of these files alone

namespace {

constexpr double kEpsilon = 1e-5;
constexpr double kTheta = 1e6;

/// One kind a layer: named, or attention where an older config lists its layers.
void read_layer_types(ConfigReader& config, Settings& settings) {
  const std::int64_t layers = config.integer("num_hidden_layers", 1);
  const std::vector<Json> types = config.list("layer_types");
  const std::vector<Json> attention = config.list("full_attn_idxs");
  config::Value::List kinds;
  if (!types.empty()) {
    for (const Json& type : types) {
      if (type != "conv" && type != "full_attention") {
        config.problem("layer_types", "names a layer that is not converted", "conv or full_attention", type.dump());
        return;
      }
      kinds.push_back({type.get<std::string>()});
    }
  } else {
    const bool has_list = config.has("full_attn_idxs");
    for (std::int64_t layer = 0; layer < layers; ++layer) {
      const bool is_attention = !has_list || std::ranges::find(attention, Json(layer)) != attention.end();
      kinds.push_back({std::string(is_attention ? "full_attention" : "conv")});
    }
  }
  if (static_cast<std::int64_t>(kinds.size()) != layers) {
    config.problem("layer_types", "is not for every layer", fmt::format("{} kinds", layers),
                   fmt::format("{} kinds", kinds.size()));
    return;
  }
  settings.set("lfm_layer_types", {kinds});
  settings.set("conv_L_cache", value(config.integer("conv_L_cache", 3)));
  settings.set("conv_bias", flag(config.flag("conv_bias", false)));
}

void read_shared(ConfigReader& config, Settings& settings) {
  read_common(config, settings, kEpsilon);
  settings.set("norm_epsilon", value(config.real("norm_eps", kEpsilon)));
  config.expect("rms_norm_eps", config.real("norm_eps", kEpsilon), "contradicts norm_eps");
  const bool is_tied = config.flag("tie_embedding", config.flag("tie_word_embeddings", true));
  settings.set("untie_embeddings_and_output_weights", flag(!is_tied));
  read_rope(config, settings, kTheta);
  read_grouped_queries(config, settings, 8);
  settings.set("qk_layernorm", flag(true));
  read_layer_types(config, settings);
}

Json shared_fields(const Experiment& experiment, const ModelSpec& spec) {
  Json json = common_fields(experiment, spec);
  write_grouped_queries(spec, json);
  json.erase("rms_norm_eps");
  json.erase("attention_dropout");
  json["norm_eps"] = spec.norm_epsilon;
  json["layer_types"] = Json::array();
  for (int layer = 0; layer < spec.num_layers(); ++layer) {
    json["layer_types"].push_back(spec.mixer(layer) == model::MixerKind::kShortConvolution ? "conv" : "full_attention");
  }
  json["conv_L_cache"] = spec.short_convolution.kernel_size;
  json["conv_bias"] = spec.short_convolution.bias == model::Part::kPresent;
  return json;
}

/// The width that the model has: two thirds of the written one, scaled and rounded up, unless the config says not.
std::int64_t adjusted_width(ConfigReader& config) {
  std::int64_t width = config.integer("block_ff_dim", config.integer("intermediate_size", 12288));
  const double multiplier = config.real("block_ffn_dim_multiplier", 1.0);
  const std::int64_t multiple = config.integer("block_multiple_of", 256);
  if (!config.flag("block_auto_adjust_ff_dim", true)) return width;
  width = static_cast<std::int64_t>(multiplier * static_cast<double>(2 * width / 3));
  return (width + multiple - 1) / multiple * multiple;
}

void read_dense_layers(ConfigReader& config, Settings& settings) {
  const std::int64_t layers = config.integer("num_hidden_layers", 1);
  const std::int64_t dense = config.integer("num_dense_layers", 2);
  if (dense >= layers) {
    config.problem("num_dense_layers", "leaves no layer with experts", fmt::format("below {}", layers),
                   std::to_string(dense));
    return;
  }
  std::vector<std::int64_t> is_moe(static_cast<std::size_t>(layers), 1);
  std::fill_n(is_moe.begin(), dense, 0);
  settings.set("moe_layer_freq", layer_pattern(is_moe));
}

}  // namespace

ConfigFacts read_lfm2(ConfigReader& config, Settings& settings) {
  read_shared(config, settings);
  settings.set("ffn_hidden_size", value(adjusted_width(config)));
  config.ignore({"block_dim", "conv_dim", "conv_dim_out", "block_use_swiglu", "block_use_xavier_init", "block_norm_eps",
                 "block_mlp_init_scale", "block_out_init_scale", "conv_use_xavier_init", "num_heads", "use_pos_enc",
                 "theta"});
  return {};
}

Json write_lfm2(const Experiment& experiment, const ModelSpec& spec) {
  Json json = shared_fields(experiment, spec);
  json["block_auto_adjust_ff_dim"] = false;
  return json;
}

ConfigFacts read_lfm2_moe(ConfigReader& config, Settings& settings) {
  read_shared(config, settings);
  const std::int64_t top_k = config.integer("num_experts_per_tok", 4);
  set_experts(settings, config.integer("num_experts", 32), top_k, config.integer("moe_intermediate_size", 1792));
  read_dense_layers(config, settings);
  settings.set("moe_router_score_function", value("sigmoid"));
  settings.set("moe_router_pre_softmax", flag(false));
  settings.set("moe_router_enable_expert_bias", flag(config.flag("use_expert_bias", true)));
  settings.set("moe_router_topk_scaling_factor", value(config.real("routed_scaling_factor", 1.0)));
  if (top_k == 1) config.problem("num_experts_per_tok", "a single expert is not renormalised here", "at least 2", "1");
  config.expect("norm_topk_prob", true, "sigmoid scores are renormalised here");
  return {};
}

Json write_lfm2_moe(const Experiment& experiment, const ModelSpec& spec) {
  Json json = shared_fields(experiment, spec);
  if (!spec.moe) return json;
  const model::RouterSpec& router = spec.moe->router;
  json["num_experts"] = router.num_experts;
  json["num_experts_per_tok"] = router.top_k;
  json["moe_intermediate_size"] = spec.moe->ffn_hidden_size;
  json["num_dense_layers"] = std::ranges::find(spec.layers, model::LayerKind::kMoe) - spec.layers.begin();
  json["use_expert_bias"] = router.expert_bias == model::RouterSpec::ExpertBias::kOn;
  json["routed_scaling_factor"] = router.scaling_factor;
  json["norm_topk_prob"] = true;
  return json;
}

}  // namespace primus::checkpoint
