// Kimi Linear: delta attention between layers of latent attention without positions, DeepSeek-V3's experts under names
// of its own. Both spellings of config.json are read: the released one, and that of transformers 5.
#include <fmt/format.h>

#include <algorithm>

#include "checkpoint/architecture_fields.hpp"

namespace primus::checkpoint {

using config::Experiment;
using model::ModelSpec;
using namespace fields;  // helpers of these files alone

namespace {

constexpr double kEpsilon = 1e-5;
constexpr double kScaling = 2.446;

/// The released spelling: numbers of the layers of each kind, from 1.
std::vector<std::int64_t> numbered_layers(ConfigReader& config, ConfigReader& linear, std::int64_t layers) {
  std::vector<std::int64_t> is_linear(static_cast<std::size_t>(layers), -1);
  for (const auto& [field, value] : {std::pair{"full_attn_layers", 0}, {"kda_layers", 1}}) {
    for (const Json& number : linear.list(field)) {
      if (!number.is_number_integer() || number < 1 || number > layers) {
        linear.problem(field, "names a layer that is not there", fmt::format("1 to {}", layers), number.dump());
        continue;
      }
      is_linear[number.get<std::size_t>() - 1] = value;
    }
  }
  if (std::ranges::find(is_linear, -1) != is_linear.end()) {
    config.problem("linear_attn_config", "leaves layers without a kind", "each in full_attn_layers or kda_layers");
  }
  return is_linear;
}

/// One kind a layer: named, numbered, or attention in every fourth behind the first.
std::vector<std::int64_t> linear_layers(ConfigReader& config, ConfigReader& linear) {
  const std::int64_t layers = config.integer("num_hidden_layers", 1);
  std::vector<std::int64_t> is_linear;
  for (const Json& type : config.list("layer_types")) {
    if (type != "linear_attention" && type != "full_attention") {
      config.problem("layer_types", "names a layer that is not converted", "linear_attention or full_attention",
                     type.dump());
    }
    is_linear.push_back(type == "linear_attention" ? 1 : 0);
  }
  if (config.has("layer_types")) {
    linear.ignore({"full_attn_layers", "kda_layers"});
  } else if (linear.has("kda_layers")) {
    is_linear = numbered_layers(config, linear, layers);
  } else {
    for (std::int64_t layer = 0; layer < layers; ++layer) is_linear.push_back(layer == 0 || layer % 4 != 0 ? 1 : 0);
  }
  if (std::ssize(is_linear) != layers) {
    config.problem("layer_types", "is not for every layer", fmt::format("{} kinds", layers),
                   fmt::format("{} kinds", is_linear.size()));
  }
  return is_linear;
}

void read_delta_attention(ConfigReader& config, Settings& settings) {
  const Json* object = config.object("linear_attn_config");
  const Json empty = Json::object();
  ConfigReader linear(object != nullptr ? *object : empty, config.file(), "linear_attn_config.");
  settings.set("experimental_attention_variant", value("kda"));
  config::Value::List list;
  for (const std::int64_t one : linear_layers(config, linear)) list.emplace_back().data = one;
  settings.set("linear_attention_freq", {list});
  const std::int64_t heads = linear.integer("num_heads", config.integer("linear_num_heads", 32));
  const std::int64_t size = linear.integer("head_dim", config.integer("linear_head_dim", 128));
  const std::int64_t taps = linear.integer("short_conv_kernel_size", config.integer("linear_conv_kernel_dim", 4));
  settings.set("linear_num_key_heads", value(heads));
  settings.set("linear_num_value_heads", value(heads));
  settings.set("linear_key_head_dim", value(size));
  settings.set("linear_value_head_dim", value(size));
  settings.set("linear_conv_kernel_dim", value(taps));
  settings.set("kda_use_full_rank_gate", flag(false));
  settings.set("kda_gate_lower_bound", none());
  linear.expect("use_full_rank_gate", false, "Kimi Linear's output gate has a low rank");
  linear.expect("gate_lower_bound", nullptr, "Kimi Linear's decays have no lower bound");
  linear.refuse_rest();
  config.take_problems(linear);
}

void read_experts(ConfigReader& config, Settings& settings) {
  const std::int64_t ffn = config.integer("moe_intermediate_size", 1024);
  const std::int64_t top_k = config.integer("num_experts_per_token", 8);
  set_experts(settings, config.integer("num_experts", 256), top_k, ffn);
  const std::int64_t shared = config.integer("num_shared_experts", 1);
  settings.set("moe_shared_expert_intermediate_size", shared > 0 ? value(shared * ffn) : none());
  settings.set("moe_router_topk_scaling_factor", value(config.real("routed_scaling_factor", kScaling)));
  settings.set("moe_router_score_function", value("sigmoid"));
  settings.set("moe_router_pre_softmax", flag(false));
  settings.set("moe_router_enable_expert_bias", flag(true));
  if (top_k == 1)
    config.problem("num_experts_per_token", "a single expert is not renormalised here", "at least 2", "1");
  config.expect("moe_renormalize", true, "sigmoid scores are renormalised here");
  config.expect("moe_router_activation_func", "sigmoid", "Kimi Linear scores by sigmoid");
  config.expect("num_expert_group", 1, "groups of Kimi Linear's experts are not converted");
  config.expect("topk_group", 1, "groups of Kimi Linear's experts are not converted");
  config.ignore({"use_grouped_topk"});
}

}  // namespace

ConfigFacts read_kimi_linear(ConfigReader& config, Settings& settings) {
  read_common(config, settings, kEpsilon, "model_max_length");
  read_latent_attention(config, settings);
  settings.set("mla_use_nope", flag(true));
  settings.set("mla_use_output_gate", flag(false));
  config.expect("mla_use_nope", true, "Kimi Linear's latent attention has no positions");
  config.expect("mla_use_output_gate", false, "Kimi Linear's latent attention has no output gate");
  // Of positions, which nothing reads, and of the queries' share of the width.
  config.ignore({"rope_theta", "rope_scaling", "rope_parameters", "head_dim"});
  read_delta_attention(config, settings);
  read_experts(config, settings);
  read_mlp_kinds(config, settings, 1);
  return {.num_mtp_layers = config.integer("num_nextn_predict_layers", 0),
          .notes = latent_norm_notes(config, kEpsilon)};
}

Json write_kimi_linear(const Experiment& experiment, const ModelSpec& spec) {
  Json json = common_fields(experiment, spec);
  for (const char* field : {"max_position_embeddings", "rope_theta", "rope_scaling"}) json.erase(field);
  json["model_max_length"] = experiment.get_optional_int("max_position_embeddings").value_or(spec.seq_length);
  write_latent_attention(spec, json);
  json["layer_types"] = Json::array();
  for (int layer = 0; layer < spec.num_layers(); ++layer) {
    const bool is_linear = spec.mixer(layer) == model::MixerKind::kKimiDelta;
    json["layer_types"].push_back(is_linear ? "linear_attention" : "full_attention");
  }
  // What has other heads or sizes for keys than for values is noticed when the config is read back.
  const model::GatedDeltaSpec& heads = spec.kimi_delta.heads;
  json["linear_num_heads"] = heads.num_value_heads;
  json["linear_head_dim"] = heads.value_head_dim;
  json["linear_conv_kernel_dim"] = heads.kernel_size;
  if (!spec.moe) return json;
  const model::MoeSpec& moe = *spec.moe;
  for (const model::LayerKind kind : spec.layers) {
    json["mlp_layer_types"].push_back(kind == model::LayerKind::kMoe ? "sparse" : "dense");
  }
  json["num_experts"] = moe.router.num_experts;
  json["num_experts_per_token"] = moe.router.top_k;
  json["moe_intermediate_size"] = moe.ffn_hidden_size;
  json["num_shared_experts"] = moe.shared_ffn_hidden_size / std::max<std::int64_t>(1, moe.ffn_hidden_size);
  json["routed_scaling_factor"] = moe.router.scaling_factor;
  json["moe_renormalize"] = true;
  json["num_expert_group"] = json["topk_group"] = 1;
  return json;
}

}  // namespace primus::checkpoint
