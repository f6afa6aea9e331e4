// DeepSeek-V2, V3 and V3.2, and GLM-MoE-DSA: latent attention, an indexer, shared experts, leading dense layers.
#include <fmt/format.h>

#include <algorithm>

#include "checkpoint/architecture_fields.hpp"

namespace primus::checkpoint {

using config::Experiment;
using model::ModelSpec;
namespace fields {

void read_latent_attention(ConfigReader& config, Settings& settings, HeadSizes defaults) {
  settings.set("multi_latent_attention", flag(true));
  settings.set("qk_layernorm", flag(true));
  const auto q_rank = config.optional_integer("q_lora_rank");
  settings.set("q_lora_rank", q_rank ? value(*q_rank) : none());
  settings.set("kv_lora_rank", value(config.integer("kv_lora_rank", 512)));
  const std::int64_t plain = config.integer("qk_nope_head_dim", defaults.plain);
  const std::int64_t rotated = config.integer("qk_rope_head_dim", 64);
  settings.set("qk_head_dim", value(plain));
  settings.set("qk_pos_emb_head_dim", value(rotated));
  settings.set("v_head_dim", value(config.integer("v_head_dim", defaults.value)));
  config.expect("qk_head_dim", plain + rotated, "contradicts qk_nope_head_dim + qk_rope_head_dim");
  config.expect("num_key_value_heads", config.integer("num_attention_heads", 1),
                "latent attention has a key and a value a head");
  config.expect("attention_bias", false, "biases in latent attention are not converted");
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

std::vector<std::string> latent_norm_notes(ConfigReader& config, double default_epsilon) {
  constexpr double kLatentEpsilon = 1e-6;
  const double epsilon = config.real("rms_norm_eps", default_epsilon);
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

void read_mlp_kinds(ConfigReader& config, Settings& settings, std::int64_t default_dense) {
  if (!config.has("mlp_layer_types")) return read_first_dense(config, settings, default_dense);
  config.ignore({"first_k_dense_replace", "moe_layer_freq"});
  std::vector<std::int64_t> is_moe;
  for (const Json& kind : config.list("mlp_layer_types")) is_moe.push_back(kind == "sparse" ? 1 : 0);
  if (std::ssize(is_moe) != config.integer("num_hidden_layers", 1)) {
    config.problem("mlp_layer_types", "names another number of layers than num_hidden_layers");
    return;
  }
  if (std::ranges::find(is_moe, 1) == is_moe.end()) {
    config.problem("mlp_layer_types", "leaves no layer with experts", "sparse somewhere");
    return;
  }
  settings.set("moe_layer_freq", layer_pattern(is_moe));
}

}  // namespace fields

using namespace fields;  // helpers of these files alone

namespace {

/// Fields that only some of these architectures have.
void expect_rotated_neighbours(ConfigReader& config) {
  config.expect("rope_interleave", true, "latent attention rotates neighbouring pairs here");
}

/// Latent attention whose head_dim, where it stands, is the rotated part.
void read_rotated_attention(ConfigReader& config, Settings& settings, HeadSizes defaults = {}) {
  read_latent_attention(config, settings, defaults);
  config.expect("head_dim", config.integer("qk_rope_head_dim", 64), "contradicts qk_rope_head_dim");
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
  read_rotated_attention(config, settings);
  expect_rotated_neighbours(config);
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
  return {.num_mtp_layers = 0, .notes = latent_norm_notes(config, 1e-6)};
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

namespace {

/// Sigmoid scores with expert biases, in groups where there are several.
void read_v3_router(ConfigReader& config, Settings& settings, std::int64_t default_groups,
                    std::int64_t default_chosen) {
  settings.set("moe_router_score_function", value("sigmoid"));
  settings.set("moe_router_pre_softmax", flag(false));
  settings.set("moe_router_enable_expert_bias", flag(true));
  const std::int64_t top_k = config.integer("num_experts_per_tok", 8);
  const std::int64_t groups = config.integer("n_group", default_groups);
  const std::int64_t chosen = config.integer("topk_group", default_chosen);
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
}

}  // namespace

ConfigFacts read_deepseek_v3(ConfigReader& config, Settings& settings) {
  read_common(config, settings, 1e-6);
  read_rope(config, settings, 10000.0);
  read_rotated_attention(config, settings);
  expect_rotated_neighbours(config);
  read_deepseek_experts(config, settings, 8);
  read_first_dense(config, settings, 3);
  read_v3_router(config, settings, 8, 4);
  return {.num_mtp_layers = config.integer("num_nextn_predict_layers", 0), .notes = latent_norm_notes(config, 1e-6)};
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

namespace {

constexpr double kIndexerEpsilon = 1e-6;  // of transformers' norm on the indexer's keys, which no field says

enum class IndexerPairs { kHalves, kNeighbours };

void read_indexer(ConfigReader& config, Settings& settings, std::int64_t default_heads, IndexerPairs pairs) {
  settings.set("experimental_attention_variant", value("dsa"));
  settings.set("dsa_indexer_n_heads", value(config.integer("index_n_heads", default_heads)));
  const std::int64_t head_dim = config.integer("index_head_dim", 128);
  settings.set("dsa_indexer_head_dim", value(head_dim));
  settings.set("dsa_indexer_topk", value(config.integer("index_topk", 2048)));
  settings.set("dsa_indexer_k_norm_epsilon", value(kIndexerEpsilon));
  settings.set("dsa_indexer_scoring_relu", flag(true));
  settings.set("dsa_indexer_rotate_activation", flag(false));  // there it is left out: it changes no score
  settings.set("dsa_indexer_rope_interleaved", flag(pairs == IndexerPairs::kNeighbours));
  if (config.integer("qk_rope_head_dim", 64) > head_dim) {
    config.problem("index_head_dim", "is smaller than qk_rope_head_dim", "room for the rotated part", "");
  }
  if (!config.has("q_lora_rank")) {
    config.problem("q_lora_rank", "is what the indexer's queries are made of there", "a number", "null");
  }
  for (const Json& type : config.list("layer_types")) {
    if (type == "indexed_attention") continue;
    config.problem("layer_types", "every layer has sparse attention here", "indexed_attention", type.dump());
  }
}

/// Layers that share one choice of keys (dsa_indexer_topk_freq), and the number of the last layer before them.
struct Sharing {
  std::int64_t period = 1;
  std::int64_t offset = 0;

  bool chooses(std::int64_t layer) const { return std::max<std::int64_t>(layer + 1 - offset, 0) % period == 0; }
};

void set_sharing(Settings& settings, const Sharing& sharing) {
  settings.set("dsa_indexer_topk_freq", value(sharing.period));
  settings.set("dsa_indexer_skip_topk_offset", value(sharing.offset));
}

/// The numbers behind a list of "full" and "shared".
void read_sharing_list(ConfigReader& config, Settings& settings) {
  std::vector<bool> chooses;
  for (const Json& type : config.list("indexer_types")) chooses.push_back(type == "full");
  const std::int64_t layers = std::ssize(chooses);
  const auto fits = [&](const Sharing& sharing) {
    for (std::int64_t layer = 0; layer < layers; ++layer) {
      if (sharing.chooses(layer) != chooses[static_cast<std::size_t>(layer)]) return false;
    }
    return true;
  };
  if (layers != config.integer("num_hidden_layers", 1)) {
    config.problem("indexer_types", "names another number of layers than num_hidden_layers");
    return;
  }
  if (fits({})) return set_sharing(settings, {});
  for (std::int64_t offset = 1; offset <= layers; ++offset) {
    for (std::int64_t period = 2; period <= layers; ++period) {
      if (fits({period, offset})) return set_sharing(settings, {period, offset});
    }
  }
  config.problem("indexer_types", "is no period behind some first layers",
                 "full up to a layer, from there on full at each n-th");
}

void read_sharing(ConfigReader& config, Settings& settings) {
  const Sharing said{std::max<std::int64_t>(config.integer("index_topk_freq", 1), 1),
                     config.integer("index_skip_topk_offset", 2)};
  config.expect("index_topk_pattern", nullptr, "a pattern as one text is not converted: write indexer_types");
  if (config.has("indexer_types")) return read_sharing_list(config, settings);
  set_sharing(settings, said.period == 1 ? Sharing{} : said);
}

Json write_sparse(const Experiment& experiment, const ModelSpec& spec) {
  Json json = write_deepseek_v3(experiment, spec);
  json.erase("rope_interleave");
  json["mlp_bias"] = false;
  for (const model::LayerKind kind : spec.layers) {
    json["mlp_layer_types"].push_back(kind == model::LayerKind::kMoe ? "sparse" : "dense");
  }
  if (const model::IndexerSpec* indexer = spec.indexer()) {
    json["index_n_heads"] = indexer->num_heads;
    json["index_head_dim"] = indexer->head_dim;
    json["index_topk"] = indexer->top_k;
  }
  return json;
}

}  // namespace

ConfigFacts read_deepseek_v32(ConfigReader& config, Settings& settings) {
  read_common(config, settings, 1e-6);
  read_rope(config, settings, 10000.0);
  read_rotated_attention(config, settings);
  read_indexer(config, settings, 64, IndexerPairs::kHalves);
  set_sharing(settings, {});
  read_deepseek_experts(config, settings, 8);
  read_mlp_kinds(config, settings, 3);
  read_v3_router(config, settings, 8, 4);
  config.expect("mlp_bias", false, "biases in DeepSeek's MLP are not converted");
  return {.num_mtp_layers = config.integer("num_nextn_predict_layers", 0), .notes = latent_norm_notes(config, 1e-6)};
}

Json write_deepseek_v32(const Experiment& experiment, const ModelSpec& spec) {
  return write_sparse(experiment, spec);
}

ConfigFacts read_glm_moe_dsa(ConfigReader& config, Settings& settings) {
  read_common(config, settings, 1e-5);
  read_rope(config, settings, 10000.0);
  read_rotated_attention(config, settings, {.plain = 192, .value = 256});
  read_indexer(config, settings, 32, IndexerPairs::kNeighbours);
  read_sharing(config, settings);
  read_deepseek_experts(config, settings, 8);
  read_mlp_kinds(config, settings, 3);
  read_v3_router(config, settings, 1, 1);
  config.expect("mlp_bias", false, "biases in the MLP are not converted");
  return {.num_mtp_layers = config.integer("num_nextn_predict_layers", 0), .notes = latent_norm_notes(config, 1e-6)};
}

Json write_glm_moe_dsa(const Experiment& experiment, const ModelSpec& spec) {
  Json json = write_sparse(experiment, spec);
  for (int layer = 0; layer < spec.num_layers(); ++layer) {
    json["indexer_types"].push_back(spec.picks_keys(layer) ? "full" : "shared");
  }
  return json;
}

}  // namespace primus::checkpoint
