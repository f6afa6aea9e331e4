// Llama, Mixtral, Qwen3-MoE and gpt-oss: grouped-query attention.
#include <fmt/format.h>

#include <algorithm>

#include "checkpoint/architecture_fields.hpp"

namespace primus::checkpoint {

using config::Experiment;
using model::ModelSpec;
using namespace fields;  // helpers of these files alone

namespace {

constexpr double kGptOssAlpha = 1.702;  // of quick_geglu

}  // namespace

ConfigFacts read_llama(ConfigReader& config, Settings& settings) {
  read_common(config, settings, 1e-6);
  read_rope(config, settings, 10000.0);
  read_grouped_queries(config, settings, std::nullopt);
  config.expect("attention_bias", false, "biases in Llama's attention are not converted");
  config.expect("mlp_bias", false, "biases in Llama's MLP are not converted");
  return {};
}

Json write_llama(const Experiment& experiment, const ModelSpec& spec) {
  Json json = common_fields(experiment, spec);
  write_grouped_queries(spec, json);
  json["attention_bias"] = json["mlp_bias"] = false;
  return json;
}

ConfigFacts read_mixtral(ConfigReader& config, Settings& settings) {
  read_common(config, settings, 1e-5);
  read_rope(config, settings, 1e6);
  read_grouped_queries(config, settings, 8);
  set_experts(settings, config.integer("num_local_experts", 8), config.integer("num_experts_per_tok", 2),
              config.integer("intermediate_size", 1));
  settings.set("moe_layer_freq", value(std::int64_t{1}));
  config.expect("sliding_window", nullptr, "sliding windows in Mixtral are not converted");
  config.expect("router_jitter_noise", 0.0, "jitter in the router is not converted");
  return {};
}

Json write_mixtral(const Experiment& experiment, const ModelSpec& spec) {
  Json json = common_fields(experiment, spec);
  write_grouped_queries(spec, json);
  json["sliding_window"] = nullptr;
  json["router_jitter_noise"] = 0.0;
  if (!spec.moe) return json;
  json["num_local_experts"] = spec.moe->router.num_experts;
  json["num_experts_per_tok"] = spec.moe->router.top_k;
  json["intermediate_size"] = spec.moe->ffn_hidden_size;
  return json;
}

ConfigFacts read_qwen3_moe(ConfigReader& config, Settings& settings) {
  read_common(config, settings, 1e-6);
  read_rope(config, settings, 10000.0);
  read_grouped_queries(config, settings, 4);
  settings.set("qk_layernorm", flag(true));
  const std::int64_t listed = config.integer("num_local_experts", 0);  // transformers 5 writes this one
  set_experts(settings, config.integer("num_experts", listed > 0 ? listed : 128),
              config.integer("num_experts_per_tok", 8), config.integer("moe_intermediate_size", 768));
  if (listed > 0) config.expect("num_experts", listed, "contradicts num_local_experts");
  settings.set("moe_router_pre_softmax", flag(!config.flag("norm_topk_prob", false)));
  read_qwen_pattern(config, settings);
  config.expect("use_sliding_window", false, "sliding windows in Qwen3 are not converted");
  config.expect("attention_bias", false, "biases in Qwen3's attention are not converted");
  config.ignore({"sliding_window", "max_window_layers"});  // read with use_sliding_window only
  return {};
}

Json write_qwen3_moe(const Experiment& experiment, const ModelSpec& spec) {
  Json json = common_fields(experiment, spec);
  write_grouped_queries(spec, json);
  json["attention_bias"] = json["use_sliding_window"] = false;
  write_qwen_experts(spec, json);
  return json;
}

ConfigFacts read_gpt_oss(ConfigReader& config, Settings& settings) {
  read_common(config, settings, 1e-5);
  read_rope(config, settings, 150000.0);
  read_grouped_queries(config, settings, 8);
  set_experts(settings, config.integer("num_local_experts"), config.integer("num_experts_per_tok", 4),
              config.integer("intermediate_size", 1));
  settings.set("moe_layer_freq", value(std::int64_t{1}));
  config.expect("experts_per_token", config.integer("num_experts_per_tok", 4), "contradicts num_experts_per_tok");
  config.expect("attention_bias", true, "gpt-oss has biases in attention");
  settings.set("add_bias_linear", flag(true));
  settings.set("swiglu", flag(false));
  settings.set("quick_geglu", flag(true));
  settings.set("glu_linear_offset", value(1.0));
  settings.set("activation_func_clamp_value", value(config.real("swiglu_limit", 7.0)));
  config.expect("swiglu_alpha", kGptOssAlpha, "the gated unit's gain is fixed here");
  settings.set("use_sink_attention", flag(true));
  const std::int64_t window = config.integer("sliding_window", 0);
  const std::vector<Json> types = config.list("layer_types");
  for (std::size_t layer = 0; layer < types.size(); ++layer) {
    const char* expected = layer % 2 == 0 && window > 0 ? "sliding_attention" : "full_attention";
    if (types[layer] != expected)
      config.problem("layer_types", fmt::format("layer {}: windows on other than every second layer", layer), expected,
                     types[layer].dump());
  }
  settings.set("sink_sliding_window", value(window));
  settings.set("sink_window_even_layers_only", flag(true));
  if (const Json* scaling = config.object("rope_scaling");
      scaling != nullptr && scaling->contains("original_max_position_embeddings"))
    config.expect("initial_context_length", (*scaling)["original_max_position_embeddings"], "contradicts rope_scaling");
  config.ignore({"initial_context_length"});
  return {};
}

Json write_gpt_oss(const Experiment& experiment, const ModelSpec& spec) {
  Json json = common_fields(experiment, spec);
  write_grouped_queries(spec, json);
  const std::int64_t window = experiment.get_int("sink_sliding_window");
  json["sliding_window"] = window > 0 ? Json(window) : Json(nullptr);
  json["layer_types"] = Json::array();
  for (std::int64_t layer = 0; layer < spec.num_layers(); ++layer)
    json["layer_types"].push_back(layer % 2 == 0 && window > 0 ? "sliding_attention" : "full_attention");
  json["attention_bias"] = true;
  json["swiglu_limit"] = experiment.get_optional_double("activation_func_clamp_value").value_or(0.0);
  if (!spec.moe) return json;
  json["num_local_experts"] = spec.moe->router.num_experts;
  json["num_experts_per_tok"] = spec.moe->router.top_k;
  json["intermediate_size"] = spec.moe->ffn_hidden_size;
  return json;
}

}  // namespace primus::checkpoint
