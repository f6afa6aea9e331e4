// DeepSeek-V2 and V3: latent attention, shared experts, leading dense layers.
#include <fmt/format.h>

#include <algorithm>

#include "checkpoint/architecture_fields.hpp"

namespace primus::checkpoint {

using config::Experiment;
using model::ModelSpec;
using namespace fields;  // helpers of these files alone

namespace {

void read_latent_attention(ConfigReader& config, Settings& settings) {
  settings.set("multi_latent_attention", flag(true));
  settings.set("qk_layernorm", flag(true));
  const auto q_rank = config.optional_integer("q_lora_rank");
  settings.set("q_lora_rank", q_rank ? value(*q_rank) : none());
  settings.set("kv_lora_rank", value(config.integer("kv_lora_rank", 512)));
  const std::int64_t plain = config.integer("qk_nope_head_dim", 128);
  const std::int64_t rotated = config.integer("qk_rope_head_dim", 64);
  settings.set("qk_head_dim", value(plain));
  settings.set("qk_pos_emb_head_dim", value(rotated));
  settings.set("v_head_dim", value(config.integer("v_head_dim", 128)));
  config.expect("head_dim", rotated, "contradicts qk_rope_head_dim");
  config.expect("qk_head_dim", plain + rotated, "contradicts qk_nope_head_dim + qk_rope_head_dim");
  config.expect("num_key_value_heads", config.integer("num_attention_heads", 1),
                "latent attention has a key and a value a head");
  config.expect("attention_bias", false, "biases in latent attention are not converted");
  config.expect("rope_interleave", true, "latent attention rotates neighbouring pairs here");
}

void write_latent_attention(const ModelSpec& spec, Json& json) {
  const auto* mla = std::get_if<model::MlaSpec>(&spec.attention);
  if (mla == nullptr) return;
  json["num_key_value_heads"] = mla->num_heads;
  json["q_lora_rank"] = mla->q_lora_rank ? Json(*mla->q_lora_rank) : Json(nullptr);
  json["kv_lora_rank"] = mla->kv_lora_rank;
  json["qk_nope_head_dim"] = mla->qk_head_dim;
  json["qk_rope_head_dim"] = mla->qk_pos_emb_head_dim;
  json["v_head_dim"] = mla->v_head_dim;
  json["attention_bias"] = false;
}

/// There, norms of latent vectors have an epsilon of their own, which no field says.
std::vector<std::string> latent_norm_notes(ConfigReader& config) {
  constexpr double kLatentEpsilon = 1e-6;
  const double epsilon = config.real("rms_norm_eps", kLatentEpsilon);
  if (epsilon == kLatentEpsilon) return {};
  return {fmt::format("rms_norm_eps is {}: here all norms have it, transformers' norms of latent vectors have {}",
                      epsilon, kLatentEpsilon)};
}

void read_first_dense(ConfigReader& config, Settings& settings, std::int64_t default_dense) {
  const std::int64_t layers = config.integer("num_hidden_layers", 1);
  const std::int64_t dense = config.integer("first_k_dense_replace", default_dense);
  if (dense >= layers) {
    config.problem("first_k_dense_replace", "leaves no layer with experts", fmt::format("below {}", layers),
                   std::to_string(dense));
    return;
  }
  std::vector<std::int64_t> is_moe(static_cast<std::size_t>(layers), 1);
  std::fill_n(is_moe.begin(), dense, 0);
  settings.set("moe_layer_freq", layer_pattern(is_moe));
  config.expect("moe_layer_freq", 1, "other patterns than leading dense layers are not converted");
}

/// Leading dense layers; another pattern is noticed when the config is read back.
std::int64_t num_leading_dense(const ModelSpec& spec) {
  return std::ranges::find(spec.layers, model::LayerKind::kMoe) - spec.layers.begin();
}

void read_deepseek_experts(ConfigReader& config, Settings& settings, std::int64_t default_top_k) {
  const std::int64_t ffn = config.integer("moe_intermediate_size");
  set_experts(settings, config.integer("n_routed_experts"), config.integer("num_experts_per_tok", default_top_k), ffn);
  const std::int64_t shared = config.integer("n_shared_experts", 0);
  settings.set("moe_shared_expert_intermediate_size", shared > 0 ? value(shared * ffn) : none());
  settings.set("moe_router_topk_scaling_factor", value(config.real("routed_scaling_factor", 1.0)));
}

void write_deepseek_experts(const ModelSpec& spec, Json& json) {
  if (!spec.moe) return;
  const model::MoeSpec& moe = *spec.moe;
  json["first_k_dense_replace"] = num_leading_dense(spec);
  json["n_routed_experts"] = moe.router.num_experts;
  json["num_experts_per_tok"] = moe.router.top_k;
  json["moe_intermediate_size"] = moe.ffn_hidden_size;
  json["n_shared_experts"] = moe.shared_ffn_hidden_size / std::max<std::int64_t>(1, moe.ffn_hidden_size);
  json["routed_scaling_factor"] = moe.router.scaling_factor;
}

}  // namespace

ConfigFacts read_deepseek_v2(ConfigReader& config, Settings& settings) {
  read_common(config, settings, 1e-6);
  read_rope(config, settings, 10000.0);
  read_latent_attention(config, settings);
  read_deepseek_experts(config, settings, 0);
  read_first_dense(config, settings, 0);
  settings.set("moe_router_pre_softmax", flag(true));
  const std::string method = config.text("topk_method", "greedy");
  const std::int64_t groups = config.integer("n_group", 1);
  const std::int64_t chosen = config.integer("topk_group", 1);
  if (method == "group_limited_greedy") {
    settings.set("moe_router_num_groups", value(groups));
    settings.set("moe_router_group_topk", value(chosen));
  } else if (method != "greedy") {
    config.problem("topk_method", "is not DeepSeek-V2's", "greedy or group_limited_greedy", method);
  }
  config.expect("norm_topk_prob", false, "DeepSeek-V2 does not renormalise the chosen probabilities");
  config.expect("scoring_func", "softmax", "DeepSeek-V2 scores by softmax");
  config.expect("mlp_bias", false, "biases in DeepSeek's MLP are not converted");
  return {.num_mtp_layers = 0, .notes = latent_norm_notes(config)};
}

Json write_deepseek_v2(const Experiment& experiment, const ModelSpec& spec) {
  Json json = common_fields(experiment, spec);
  write_latent_attention(spec, json);
  write_deepseek_experts(spec, json);
  json["norm_topk_prob"] = json["mlp_bias"] = false;
  const bool has_groups = spec.moe && spec.moe->router.num_groups;
  json["topk_method"] = has_groups ? "group_limited_greedy" : "greedy";
  json["n_group"] = has_groups ? *spec.moe->router.num_groups : 1;
  json["topk_group"] = has_groups ? spec.moe->router.group_top_k.value_or(1) : 1;
  return json;
}

ConfigFacts read_deepseek_v3(ConfigReader& config, Settings& settings) {
  read_common(config, settings, 1e-6);
  read_rope(config, settings, 10000.0);
  read_latent_attention(config, settings);
  read_deepseek_experts(config, settings, 8);
  read_first_dense(config, settings, 3);
  settings.set("moe_router_score_function", value("sigmoid"));
  settings.set("moe_router_pre_softmax", flag(false));
  settings.set("moe_router_enable_expert_bias", flag(true));
  const std::int64_t top_k = config.integer("num_experts_per_tok", 8);
  const std::int64_t groups = config.integer("n_group", 8);
  const std::int64_t chosen = config.integer("topk_group", 4);
  if (groups > 1) {
    settings.set("moe_router_num_groups", value(groups));
    settings.set("moe_router_group_topk", value(chosen));
    // There a group's score is the sum of its best two, here that of its best top_k / groups.
    if (chosen == 0 || top_k / chosen != 2) {
      config.problem("topk_group",
                     "a group's score sums its two best experts there and num_experts_per_tok / topk_group here",
                     "num_experts_per_tok / topk_group = 2", fmt::format("{} / {}", top_k, chosen));
    }
  }
  if (top_k == 1) config.problem("num_experts_per_tok", "a single expert is not renormalised here", "at least 2", "1");
  config.expect("norm_topk_prob", true, "sigmoid scores are renormalised here");
  config.expect("scoring_func", "sigmoid", "DeepSeek-V3 scores by sigmoid");
  config.expect("topk_method", "noaux_tc", "DeepSeek-V3 balances by expert biases");
  return {.num_mtp_layers = config.integer("num_nextn_predict_layers", 0), .notes = latent_norm_notes(config)};
}

Json write_deepseek_v3(const Experiment& experiment, const ModelSpec& spec) {
  Json json = common_fields(experiment, spec);
  write_latent_attention(spec, json);
  write_deepseek_experts(spec, json);
  json["norm_topk_prob"] = json["rope_interleave"] = true;
  json["num_nextn_predict_layers"] = spec.num_mtp_layers;
  const bool has_groups = spec.moe && spec.moe->router.num_groups;
  json["n_group"] = has_groups ? *spec.moe->router.num_groups : 1;
  json["topk_group"] = has_groups ? spec.moe->router.group_top_k.value_or(1) : 1;
  return json;
}

}  // namespace primus::checkpoint
