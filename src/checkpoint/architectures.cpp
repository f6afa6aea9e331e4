#include "checkpoint/architectures.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "base/error.hpp"
#include "config/layer_pattern.hpp"

namespace primus::checkpoint {
namespace {

using config::Experiment;
using config::Value;
using model::ModelSpec;

Value value(std::int64_t number) {
  return {number};
}
Value value(double number) {
  return {number};
}
Value value(const char* text) {
  return {std::string(text)};
}
Value flag(bool is_on) {
  return {is_on};
}
Value none() {
  return {};
}

// ---- every architecture
// ----------------------------------------------------------------------------------------------

struct CommonDefaults {
  double norm_epsilon = 1e-6;
};

/// A vocabulary that is not padded computes what the Hugging Face model computes: padded rows would take a share of the
/// softmax. So it is padded to a multiple that it already is.
std::int64_t exact_multiple(std::int64_t vocab_size) {
  constexpr std::int64_t kMost = 128;  // the key's default
  std::int64_t multiple = 1;
  while (multiple < kMost && vocab_size % (2 * multiple) == 0) multiple *= 2;
  return multiple;
}

void read_common(ConfigReader& config, Settings& settings, const CommonDefaults& defaults) {
  const std::int64_t vocab = config.integer("vocab_size");
  settings.set("vocab_size", value(vocab));
  settings.set("make_vocab_size_divisible_by", value(exact_multiple(vocab)));
  settings.set("num_layers", value(config.integer("num_hidden_layers")));
  settings.set("hidden_size", value(config.integer("hidden_size")));
  settings.set("num_attention_heads", value(config.integer("num_attention_heads")));
  settings.set("ffn_hidden_size", value(config.integer("intermediate_size")));
  const std::int64_t longest = config.integer("max_position_embeddings");
  constexpr std::int64_t kLongestByDefault = 4096;
  settings.set("max_position_embeddings", value(longest));
  settings.set("seq_length", value(std::min(longest, kLongestByDefault)));
  settings.set("norm_epsilon", value(config.real("rms_norm_eps", defaults.norm_epsilon)));
  settings.set("init_method_std", value(config.real("initializer_range", 0.02)));
  settings.set("untie_embeddings_and_output_weights", flag(!config.flag("tie_word_embeddings", false)));
  settings.set("attention_dropout", value(config.real("attention_dropout", 0.0)));
  settings.set("hidden_dropout", value(0.0));
  settings.set("normalization", value("RMSNorm"));
  settings.set("position_embedding_type", value("rope"));
  config.expect("hidden_act", "silu", "only SiLU is converted");
  config.expect("is_encoder_decoder", false, "only decoders are converted");
  if (config.has("quantization_config")) {
    config.problem("quantization_config", "the weights are quantised, which is not converted",
                   "plain fp32, bf16 or fp16", "");
  }
  // Tokens, generation, training choices of the other side, and traces of who wrote the file.
  config.ignore({"architectures",
                 "model_type",
                 "transformers_version",
                 "dtype",
                 "torch_dtype",
                 "use_cache",
                 "bos_token_id",
                 "eos_token_id",
                 "pad_token_id",
                 "pretraining_tp",
                 "output_router_logits",
                 "output_attentions",
                 "output_hidden_states",
                 "return_dict",
                 "router_aux_loss_coef",
                 "aux_loss_alpha",
                 "seq_aux",
                 "ep_size",
                 "auto_map",
                 "quantization_config",
                 "_name_or_path",
                 "id2label",
                 "label2id",
                 "problem_type",
                 "chunk_size_feed_forward",
                 "torchscript"});
}

/// RoPE parameters of transformers 5 (rope_parameters) or 4 (rope_theta and rope_scaling).
void read_rope(ConfigReader& config, Settings& settings, double default_theta) {
  const Json* current = config.object("rope_parameters");
  const Json* older = config.object("rope_scaling");
  if (current != nullptr && (older != nullptr || config.has("rope_theta")))
    config.problem("rope_parameters", "stands beside rope_theta or rope_scaling", "one of the two forms");
  const Json empty = Json::object();
  const Json& source = current != nullptr ? *current : older != nullptr ? *older : empty;
  ConfigReader rope(source, config.file(), current != nullptr ? "rope_parameters." : "rope_scaling.");
  const double older_theta = config.real("rope_theta", default_theta);
  const double theta = rope.real("rope_theta", older_theta);
  const std::string type = rope.text("rope_type", rope.text("type", "default"));
  rope.expect("type", type, "contradicts rope_type");
  settings.set("rotary_base", value(theta));
  settings.set("rope_type", value(type == "yarn" ? "yarn" : "rope"));
  if (type == "yarn") {
    settings.set("rotary_scaling_factor", value(rope.real("factor")));
    settings.set("original_max_position_embeddings", value(rope.integer("original_max_position_embeddings")));
    settings.set("beta_fast", value(rope.real("beta_fast", 32.0)));
    settings.set("beta_slow", value(rope.real("beta_slow", 1.0)));
    if (!rope.flag("truncate", true)) settings.set("yarn_correction_range_round_to_int", flag(false));
    const double all = rope.real("mscale_all_dim", 0.0);
    const double scale = rope.real("mscale", 0.0);
    // With only one of the two, cos and sin get the temperature of strength 1.
    if (all != 0.0 && scale == 0.0) {
      rope.problem("mscale_all_dim", "stands without mscale: its temperature cannot be said here", "both or none");
    }
    if (all == 0.0 && scale != 0.0 && scale != 1.0)
      rope.problem("mscale", "stands without mscale_all_dim and would be ignored", "both or none");
    settings.set("mscale", value(all != 0.0 ? scale : 1.0));
    settings.set("mscale_all_dim", value(all));
    rope.expect("attention_factor", nullptr, "a temperature of its own cannot be said here");
  } else if (type == "llama3") {
    settings.set("use_rope_scaling", flag(true));
    settings.set("rope_scaling_factor", value(rope.real("factor")));
    rope.expect("low_freq_factor", 1.0, "Llama 3's scaling has fixed bounds here");
    rope.expect("high_freq_factor", 4.0, "Llama 3's scaling has fixed bounds here");
    rope.expect("original_max_position_embeddings", 8192, "Llama 3's scaling has fixed bounds here");
  } else if (type != "default") {
    rope.problem("rope_type", "is not converted", "default, yarn or llama3", type);
  }
  rope.expect("partial_rotary_factor", 1.0, "heads that are rotated in part are not converted");
  rope.refuse_rest();
  config.take_problems(rope);
  config.expect("partial_rotary_factor", 1.0, "heads that are rotated in part are not converted");
}

Json common_fields(const Experiment& experiment, const ModelSpec& spec) {
  Json json;
  json["vocab_size"] = spec.vocab_size;
  json["num_hidden_layers"] = spec.num_layers();
  json["hidden_size"] = spec.hidden_size;
  json["num_attention_heads"] = spec.num_heads();
  json["intermediate_size"] = spec.dense_ffn_hidden_size;
  json["max_position_embeddings"] = experiment.get_optional_int("max_position_embeddings").value_or(spec.seq_length);
  json["rms_norm_eps"] = spec.norm_epsilon;
  json["initializer_range"] = spec.init_std;
  json["tie_word_embeddings"] = spec.output_weight == model::OutputWeight::kTiedToEmbedding;
  json["attention_dropout"] = experiment.get_double("attention_dropout");
  json["hidden_act"] = "silu";
  json["rope_theta"] = spec.rope.base;
  json["rope_scaling"] = nullptr;
  if (spec.rope.type == model::RopeType::kYarn) {
    const model::RopeSpec& rope = spec.rope;
    Json& scaling = json["rope_scaling"];
    scaling = {{"rope_type", "yarn"},
               {"factor", rope.scaling_factor},
               {"original_max_position_embeddings", rope.original_max_position},
               {"beta_fast", rope.beta_fast},
               {"beta_slow", rope.beta_slow}};
    if (!experiment.get_bool("yarn_correction_range_round_to_int")) scaling["truncate"] = false;
    if (rope.mscale_all_dim != 0.0) {
      scaling["mscale"] = rope.mscale;
      scaling["mscale_all_dim"] = rope.mscale_all_dim;
    }
  } else if (experiment.get_bool("use_rope_scaling")) {
    json["rope_scaling"] = {{"rope_type", "llama3"},
                            {"factor", experiment.get_double("rope_scaling_factor")},
                            {"low_freq_factor", 1.0},
                            {"high_freq_factor", 4.0},
                            {"original_max_position_embeddings", 8192}};
  }
  return json;
}

// ---- attention
// -------------------------------------------------------------------------------------------------------

void read_grouped_queries(ConfigReader& config, Settings& settings, std::optional<std::int64_t> default_groups) {
  const std::int64_t heads = config.integer("num_attention_heads", 1);
  settings.set("group_query_attention", flag(true));
  settings.set("num_query_groups", value(config.integer("num_key_value_heads", default_groups.value_or(heads))));
  const std::int64_t hidden = config.integer("hidden_size", 1);
  settings.set("kv_channels", value(config.integer("head_dim", heads > 0 ? hidden / heads : 1)));
}

void write_grouped_queries(const ModelSpec& spec, Json& json) {
  const auto* gqa = std::get_if<model::GqaSpec>(&spec.attention);
  if (gqa == nullptr) return;  // the comparison with the experiment names the key
  json["num_key_value_heads"] = gqa->num_query_groups;
  json["head_dim"] = gqa->head_dim;
}

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

// ---- experts
// ---------------------------------------------------------------------------------------------------------

/// "([0]*1+[1]*26)", or 1 where every layer is MoE.
Value layer_pattern(const std::vector<std::int64_t>& is_moe) {
  if (std::ranges::all_of(is_moe, [](std::int64_t one) { return one == 1; })) return value(std::int64_t{1});
  std::string text;
  for (std::size_t i = 0; i < is_moe.size();) {
    std::size_t end = i;
    while (end < is_moe.size() && is_moe[end] == is_moe[i]) ++end;
    text += fmt::format("{}[{}]*{}", text.empty() ? "" : "+", is_moe[i], end - i);
    i = end;
  }
  return {"(" + text + ")"};
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

/// What the routers that balance nothing by a loss of their own have in common.
void set_experts(Settings& settings, std::int64_t num_experts, std::int64_t top_k, std::int64_t ffn) {
  settings.set("num_experts", value(num_experts));
  settings.set("moe_router_topk", value(top_k));
  settings.set("moe_ffn_hidden_size", value(ffn));
  // A loss on the load is a choice of the training to come, not a part of the model.
  settings.set("moe_router_load_balancing_type", value("none"));
  settings.set("moe_aux_loss_coeff", value(0.0));
  settings.set("moe_grouped_gemm", flag(true));
  settings.set("moe_token_dispatcher_type", value("alltoall"));
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
  json["n_shared_experts"] = moe.shared_ffn_hidden_size / moe.ffn_hidden_size;
  json["routed_scaling_factor"] = moe.router.scaling_factor;
}

// ---- Llama
// -----------------------------------------------------------------------------------------------------------

ConfigFacts read_llama(ConfigReader& config, Settings& settings) {
  read_common(config, settings, {});
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

// ---- Mixtral
// ---------------------------------------------------------------------------------------------------------

ConfigFacts read_mixtral(ConfigReader& config, Settings& settings) {
  read_common(config, settings, {.norm_epsilon = 1e-5});
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

// ---- Qwen3-MoE
// -------------------------------------------------------------------------------------------------------

/// Layer i has experts where it is not listed as dense and (i + 1) is a multiple of the step.
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

ConfigFacts read_qwen3_moe(ConfigReader& config, Settings& settings) {
  read_common(config, settings, {});
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
  if (!spec.moe) return json;
  json["num_experts"] = spec.moe->router.num_experts;
  json["num_experts_per_tok"] = spec.moe->router.top_k;
  json["moe_intermediate_size"] = spec.moe->ffn_hidden_size;
  json["norm_topk_prob"] = spec.moe->router.softmax_order == model::SoftmaxOrder::kPost;
  json["decoder_sparse_step"] = 1;
  json["mlp_only_layers"] = Json::array();
  for (std::size_t layer = 0; layer < spec.layers.size(); ++layer) {
    if (spec.layers[layer] == model::LayerKind::kDense) json["mlp_only_layers"].push_back(layer);
  }
  return json;
}

// ---- DeepSeek
// --------------------------------------------------------------------------------------------------------

ConfigFacts read_deepseek_v2(ConfigReader& config, Settings& settings) {
  read_common(config, settings, {});
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
  return {};
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
  read_common(config, settings, {});
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
  return {.num_mtp_layers = config.integer("num_nextn_predict_layers", 0)};
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

// ---- gpt-oss
// ---------------------------------------------------------------------------------------------------------

constexpr double kGptOssAlpha = 1.702;  // of quick_geglu

ConfigFacts read_gpt_oss(ConfigReader& config, Settings& settings) {
  read_common(config, settings, {.norm_epsilon = 1e-5});
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

constexpr std::array<ArchitectureRow, 6> kRows = {{
    {Architecture::kLlama, "llama", "LlamaForCausalLM", read_llama, write_llama},
    {Architecture::kMixtral, "mixtral", "MixtralForCausalLM", read_mixtral, write_mixtral},
    {Architecture::kQwen3Moe, "qwen3_moe", "Qwen3MoeForCausalLM", read_qwen3_moe, write_qwen3_moe},
    {Architecture::kDeepseekV2, "deepseek_v2", "DeepseekV2ForCausalLM", read_deepseek_v2, write_deepseek_v2},
    {Architecture::kDeepseekV3, "deepseek_v3", "DeepseekV3ForCausalLM", read_deepseek_v3, write_deepseek_v3},
    {Architecture::kGptOss, "gpt_oss", "GptOssForCausalLM", read_gpt_oss, write_gpt_oss},
}};

constexpr std::array<std::string_view, 38> kNeutral = {
    "multi_latent_attention",
    "qk_layernorm",
    "qk_l2_norm",
    "qk_clip",
    "add_bias_linear",
    "add_qkv_bias",
    "swiglu",
    "quick_geglu",
    "glu_linear_offset",
    "activation_func_clamp_value",
    "activation_situ_beta",
    "swiglu_limit",
    "use_sink_attention",
    "sink_sliding_window",
    "softmax_type",
    "window_size",
    "attn_sliding_window",
    "attn_logit_softcapping",
    "router_logit_softcapping",
    "final_logit_softcapping",
    "attention_output_gate",
    "no_rope_freq",
    "rotary_interleaved",
    "rotary_percent",
    "use_rope_scaling",
    "yarn_correction_range_round_to_int",
    "apply_layernorm_1p",
    "apply_residual_connection_post_layernorm",
    "experimental_attention_variant",
    "num_experts",
    "moe_router_score_function",
    "moe_router_enable_expert_bias",
    "moe_shared_expert_gate",
    "moe_latent_size",
    "moe_router_num_groups",
    "moe_router_pre_softmax",
    "moe_router_topk_scaling_factor",
    "moe_shared_expert_intermediate_size",
};

}  // namespace

std::span<const ArchitectureRow> architectures() {
  return kRows;
}

const ArchitectureRow& row_of(Architecture architecture) {
  for (const ArchitectureRow& row : kRows) {
    if (row.id == architecture) return row;
  }
  PRIMUS_CHECK(false, "architecture {} has no row", static_cast<int>(architecture));
}

const ArchitectureRow* find_architecture(std::string_view model_type) {
  for (const ArchitectureRow& row : kRows) {
    if (row.model_type == model_type) return &row;
  }
  return nullptr;
}

std::string architecture_names() {
  std::string names;
  for (const ArchitectureRow& row : kRows) names += (names.empty() ? "" : ", ") + std::string(row.model_type);
  return names;
}

std::span<const std::string_view> neutral_keys() {
  return kNeutral;
}

}  // namespace primus::checkpoint
