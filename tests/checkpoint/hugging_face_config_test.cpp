#include "checkpoint/hugging_face_config.hpp"

#include "data/temporary_folder.hpp"
#include "model/parameters.hpp"
#include "model/preset_spec.hpp"

namespace primus::checkpoint {
namespace {

// config.json as the authors published them, without auto_map and quantization_config.
constexpr const char* kDeepseekV2Lite = R"({
  "architectures": ["DeepseekV2ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "aux_loss_alpha": 0.001,
  "bos_token_id": 100000, "eos_token_id": 100001, "first_k_dense_replace": 1, "hidden_act": "silu", "hidden_size": 2048,
  "initializer_range": 0.02, "intermediate_size": 10944, "kv_lora_rank": 512, "max_position_embeddings": 163840,
  "model_type": "deepseek_v2", "moe_intermediate_size": 1408, "moe_layer_freq": 1, "n_group": 1, "n_routed_experts": 64,
  "n_shared_experts": 2, "norm_topk_prob": false, "num_attention_heads": 16, "num_experts_per_tok": 6,
  "num_hidden_layers": 27, "num_key_value_heads": 16, "pretraining_tp": 1, "q_lora_rank": null, "qk_nope_head_dim": 128,
  "qk_rope_head_dim": 64, "rms_norm_eps": 1e-06,
  "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 0.707, "mscale_all_dim": 0.707,
                   "original_max_position_embeddings": 4096, "type": "yarn"},
  "rope_theta": 10000, "routed_scaling_factor": 1.0, "scoring_func": "softmax", "seq_aux": true,
  "tie_word_embeddings": false, "topk_group": 1, "topk_method": "greedy", "torch_dtype": "bfloat16",
  "transformers_version": "4.33.1", "use_cache": true, "v_head_dim": 128, "vocab_size": 102400})";

constexpr const char* kDeepseekV3 = R"({
  "architectures": ["DeepseekV3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 0,
  "eos_token_id": 1, "ep_size": 1, "first_k_dense_replace": 3, "hidden_act": "silu", "hidden_size": 7168,
  "initializer_range": 0.02, "intermediate_size": 18432, "kv_lora_rank": 512, "max_position_embeddings": 163840,
  "model_type": "deepseek_v3", "moe_intermediate_size": 2048, "moe_layer_freq": 1, "n_group": 8, "n_routed_experts": 256,
  "n_shared_experts": 1, "norm_topk_prob": true, "num_attention_heads": 128, "num_experts_per_tok": 8,
  "num_hidden_layers": 61, "num_key_value_heads": 128, "num_nextn_predict_layers": 1, "q_lora_rank": 1536,
  "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-06,
  "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0,
                   "original_max_position_embeddings": 4096, "type": "yarn"},
  "rope_theta": 10000, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "tie_word_embeddings": false,
  "topk_group": 4, "topk_method": "noaux_tc", "torch_dtype": "bfloat16", "transformers_version": "4.33.1",
  "use_cache": true, "v_head_dim": 128, "vocab_size": 129280})";

constexpr const char* kMixtral = R"({
  "architectures": ["MixtralForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2,
  "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336,
  "max_position_embeddings": 32768, "model_type": "mixtral", "num_attention_heads": 32, "num_experts_per_tok": 2,
  "num_hidden_layers": 32, "num_key_value_heads": 8, "num_local_experts": 8, "output_router_logits": false,
  "rms_norm_eps": 1e-05, "rope_theta": 1000000.0, "router_aux_loss_coef": 0.02, "sliding_window": null,
  "tie_word_embeddings": false, "torch_dtype": "bfloat16", "transformers_version": "4.36.0.dev0", "use_cache": true,
  "vocab_size": 32000})";

constexpr const char* kQwen3Moe = R"({
  "architectures": ["Qwen3MoeForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 151643,
  "decoder_sparse_step": 1, "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu", "hidden_size": 2048,
  "initializer_range": 0.02, "intermediate_size": 6144, "max_position_embeddings": 40960, "max_window_layers": 48,
  "mlp_only_layers": [], "model_type": "qwen3_moe", "moe_intermediate_size": 768, "norm_topk_prob": true,
  "num_attention_heads": 32, "num_experts": 128, "num_experts_per_tok": 8, "num_hidden_layers": 48,
  "num_key_value_heads": 4, "output_router_logits": false, "rms_norm_eps": 1e-06, "rope_scaling": null,
  "rope_theta": 1000000.0, "router_aux_loss_coef": 0.001, "sliding_window": null, "tie_word_embeddings": false,
  "torch_dtype": "bfloat16", "transformers_version": "4.51.0", "use_cache": true, "use_sliding_window": false,
  "vocab_size": 151936})";

constexpr const char* kLlama31 = R"({
  "architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 128000,
  "eos_token_id": 128001, "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
  "intermediate_size": 14336, "max_position_embeddings": 131072, "mlp_bias": false, "model_type": "llama",
  "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
  "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                   "original_max_position_embeddings": 8192, "rope_type": "llama3"},
  "rope_theta": 500000.0, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
  "transformers_version": "4.43.0.dev0", "use_cache": true, "vocab_size": 128256})";

constexpr const char* kGptOss = R"({
  "architectures": ["GptOssForCausalLM"], "attention_bias": true, "attention_dropout": 0.0, "eos_token_id": 200002,
  "experts_per_token": 4, "head_dim": 64, "hidden_act": "silu", "hidden_size": 2880, "initial_context_length": 4096,
  "initializer_range": 0.02, "intermediate_size": 2880, "max_position_embeddings": 131072, "model_type": "gpt_oss",
  "num_attention_heads": 64, "num_experts_per_tok": 4, "num_hidden_layers": 24, "num_key_value_heads": 8,
  "num_local_experts": 32, "output_router_logits": false, "pad_token_id": 199999, "rms_norm_eps": 1e-05,
  "rope_scaling": {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0, "original_max_position_embeddings": 4096,
                   "rope_type": "yarn", "truncate": false},
  "rope_theta": 150000, "router_aux_loss_coef": 0.9, "sliding_window": 128, "swiglu_limit": 7.0,
  "tie_word_embeddings": false, "transformers_version": "4.55.0.dev0", "use_cache": true, "vocab_size": 201088})";

struct Published {
  const char* config;
  const char* preset;
};
constexpr std::array<Published, 6> kPublished = {{{kDeepseekV2Lite, "deepseek_v2_lite"},
                                                  {kDeepseekV3, "deepseek_v3"},
                                                  {kMixtral, "mixtral_8x7B_v0.1"},
                                                  {kQwen3Moe, "qwen3_30B_A3B"},
                                                  {kLlama31, "llama3.1_8B"},
                                                  {kGptOss, "gpt_oss_20B_released"}}};

config::Experiment imported(const std::string& text) {
  return parse_hugging_face_config(text, "config.json").experiment;
}

// The presets were written from the papers and Primus' files, the mapping from transformers' source: two ways to the
// same parameters.
TEST(HuggingFaceConfig, PublishedModelsAreTheirPresets) {
  for (const Published& published : kPublished) {
    const model::ModelSpec ours = test::preset_spec(published.preset);
    const model::ModelSpec theirs = model::build_model_spec(imported(published.config));
    EXPECT_EQ(theirs.padded_vocab_size, theirs.vocab_size) << published.preset;
    EXPECT_EQ(theirs.vocab_size, ours.vocab_size) << published.preset;
    EXPECT_EQ(theirs.norm_epsilon, ours.norm_epsilon) << published.preset;
    // Primus' Llama 3.1 presets leave the scaling of its frequencies out (use_rope_scaling brings it).
    const bool is_scaled_there = std::string_view(published.preset) == "llama3.1_8B";
    EXPECT_EQ(theirs.rope.type, is_scaled_there ? model::RopeType::kLlama3 : ours.rope.type) << published.preset;
    EXPECT_EQ(theirs.rope.base, ours.rope.base) << published.preset;
    if (ours.rope.type == model::RopeType::kYarn) {
      EXPECT_EQ(theirs.rope.scaling_factor, ours.rope.scaling_factor) << published.preset;
      EXPECT_EQ(theirs.rope.original_max_position, ours.rope.original_max_position) << published.preset;
      EXPECT_EQ(theirs.rope.mscale, ours.rope.mscale) << published.preset;
      EXPECT_EQ(theirs.rope.mscale_all_dim, ours.rope.mscale_all_dim) << published.preset;
    }
    ASSERT_EQ(theirs.moe.has_value(), ours.moe.has_value()) << published.preset;
    if (ours.moe) {
      const model::RouterSpec& a = theirs.moe->router;
      const model::RouterSpec& b = ours.moe->router;
      EXPECT_EQ(std::tuple(a.top_k, a.score_function, a.softmax_order, a.scaling_factor, a.num_groups, a.group_top_k,
                           a.expert_bias),
                std::tuple(b.top_k, b.score_function, b.softmax_order, b.scaling_factor, b.num_groups, b.group_top_k,
                           b.expert_bias))
          << published.preset;
    }
    const auto theirs_all = model::model_parameters(theirs);
    auto ours_all = model::model_parameters(ours);
    if (ours.num_mtp_layers > 0) {  // the files decide whether those layers are imported
      model::ModelSpec without = ours;
      without.num_mtp_layers = 0;
      ours_all = model::model_parameters(without);
    }
    ASSERT_EQ(theirs_all.size(), ours_all.size()) << published.preset;
    for (std::size_t i = 0; i < ours_all.size(); ++i) {
      EXPECT_EQ(theirs_all[i].name, ours_all[i].name);
      // The vocabulary's rows are padded in one and not in the other.
      if (ours_all[i].shape.front() != ours.padded_vocab_size) {
        EXPECT_EQ(theirs_all[i].shape, ours_all[i].shape) << ours_all[i].name;
      }
    }
  }
}

TEST(HuggingFaceConfig, AnImportIsExportedUnchanged) {
  for (const Published& published : kPublished) {
    const Json source = Json::parse(published.config);
    const ExportedConfig exported =
        write_hugging_face_config(imported(published.config), source, DType::kBFloat16, "experiment.json");
    Json expected = source;
    if (!expected.contains("torch_dtype")) expected["torch_dtype"] = "bfloat16";
    EXPECT_EQ(exported.json, expected) << published.preset;
  }
}

TEST(HuggingFaceConfig, WithoutASourceTheArchitectureIsFound) {
  for (const Published& published : kPublished) {
    const config::Experiment experiment = imported(published.config);
    const ExportedConfig exported =
        write_hugging_face_config(experiment, std::nullopt, DType::kFloat32, "experiment.json");
    EXPECT_EQ(exported.json["model_type"], Json::parse(published.config)["model_type"]);
    const HuggingFaceConfig again = parse_hugging_face_config(exported.json.dump(), "config.json");
    for (const auto& [key, setting] : experiment.settings()) {
      EXPECT_EQ(again.experiment.setting(key).value, setting.value) << published.preset << " " << key;
    }
  }
}

// A size changed after the import is written into the source's config, which keeps everything else.
TEST(HuggingFaceConfig, AChangedExperimentIsExportedChanged) {
  const Json source = Json::parse(kMixtral);
  config::Experiment experiment = imported(kMixtral);
  experiment.set("max_position_embeddings", {std::int64_t{65536}}, {});
  experiment.set("rotary_base", {2e6}, {});
  const ExportedConfig exported = write_hugging_face_config(experiment, source, DType::kFloat32, "experiment.json");
  EXPECT_EQ(exported.json["max_position_embeddings"], 65536);
  EXPECT_EQ(exported.json["rope_theta"], 2e6);
  EXPECT_EQ(exported.json["eos_token_id"], 2);
  EXPECT_EQ(exported.json["torch_dtype"], "float32");
}

TEST(HuggingFaceConfig, WhatNoConfigCanSayIsNamed) {
  const std::vector<std::tuple<const char*, config::Value, const char*>> cases = {
      {"qk_layernorm", {true}, "qk_layernorm: cannot be said in a config.json of mixtral (expected false, found true)"},
      {"moe_shared_expert_intermediate_size", {std::int64_t{64}}, "moe_shared_expert_intermediate_size"},
      {"moe_router_pre_softmax", {true}, "moe_router_pre_softmax"},
      {"moe_layer_freq", {std::int64_t{2}}, "moe_layer_freq"},
      {"final_logit_softcapping", {30.0}, "final_logit_softcapping"},
      {"moe_router_topk_scaling_factor", {2.5}, "moe_router_topk_scaling_factor"},
      {"add_qkv_bias", {true}, "add_qkv_bias"},
      {"mtp_num_layers", {std::int64_t{1}}, "mtp_num_layers"},
      {"hc_mult", {std::int64_t{4}}, "hc_mult: cannot be said"},
      {"enable_mhc_connections", {true}, "enable_mhc_connections: cannot be said"},
  };
  for (const auto& [key, value, expected] : cases) {
    config::Experiment experiment = imported(kMixtral);
    experiment.set(key, value, {});
    const std::string message = data::user_error(
        [&] { write_hugging_face_config(experiment, Json::parse(kMixtral), DType::kFloat32, "experiment.json"); });
    EXPECT_NE(message.find(expected), std::string::npos) << message;
  }
}

// Without a source the architecture is chosen that can say most, not one that the sizes make no model of.
TEST(HuggingFaceConfig, WithoutASourceWhatNoConfigCanSayIsNamedToo) {
  config::Experiment experiment = imported(kMixtral);
  experiment.set("hc_mult", {std::int64_t{4}}, {});
  const std::string message = data::user_error(
      [&] { write_hugging_face_config(experiment, std::nullopt, DType::kFloat32, "experiment.json"); });
  EXPECT_NE(message.find("hc_mult: cannot be said in a config.json of mixtral"), std::string::npos) << message;
}

TEST(HuggingFaceConfig, ConfigsThatAreRefused) {
  const std::vector<std::tuple<const char*, const char*, Json, const char*>> cases = {
      {kMixtral, "model_type", "bert", "model_type: is not converted (expected one of llama, mixtral"},
      {kMixtral, "model_type", nullptr, "model_type: is missing"},
      {kMixtral, "architectures", {"MixtralForSequenceClassification"}, "architectures: is not the language model"},
      {kMixtral, "vocab_size", nullptr, "vocab_size: is missing"},
      {kMixtral, "vocab_size", "many", "vocab_size: is no size"},
      {kMixtral, "hidden_size", -4, "hidden_size: is no size"},
      {kMixtral, "num_hidden_layers", 3'000'000'000, "num_hidden_layers: is no size (expected integer from 0 to 16384"},
      {kMixtral, "num_local_experts", 3'000'000'000, "num_local_experts: is no size"},
      {kMixtral, "hidden_act", "gelu", "hidden_act: only SiLU is converted (expected \"silu\", found \"gelu\")"},
      {kMixtral, "sliding_window", 4096, "sliding_window"},
      {kMixtral, "router_jitter_noise", 0.1, "router_jitter_noise"},
      {kMixtral, "num_expert_per_tok", 2, "num_expert_per_tok: is a field whose meaning is not known here"},
      {kMixtral, "num_expert_per_tok", 2, "did you mean 'num_experts_per_tok'?"},
      {kMixtral, "quantization_config", Json{{"quant_method", "fp8"}}, "the weights are quantised"},
      {kMixtral, "rope_scaling", Json{{"type", "linear"}, {"factor", 2.0}}, "rope_type: is not converted"},
      {kMixtral, "rope_parameters", Json{{"rope_theta", 1e4}}, "stands beside rope_theta"},
      {kLlama31, "attention_bias", true, "attention_bias"},
      {kLlama31, "rope_scaling", Json{{"rope_type", "llama3"}, {"factor", 8.0}, {"high_freq_factor", 5.0}},
       "rope_scaling.high_freq_factor"},
      {kLlama31, "rope_scaling", Json{{"rope_type", "yarn"}, {"factor", 8.0}},
       "original_max_position_embeddings: is missing"},
      {kDeepseekV2Lite, "norm_topk_prob", true, "norm_topk_prob"},
      {kDeepseekV2Lite, "topk_method", "best", "topk_method"},
      {kDeepseekV2Lite, "num_key_value_heads", 8, "num_key_value_heads"},
      {kDeepseekV2Lite, "qk_head_dim", 100, "qk_head_dim: contradicts qk_nope_head_dim + qk_rope_head_dim"},
      {kDeepseekV2Lite, "first_k_dense_replace", 27, "first_k_dense_replace: leaves no layer with experts"},
      {kDeepseekV3, "topk_group", 2, "num_experts_per_tok / topk_group = 2"},
      {kDeepseekV3, "norm_topk_prob", false, "norm_topk_prob"},
      {kDeepseekV3, "rope_interleave", false, "rope_interleave"},
      {kQwen3Moe, "num_local_experts", 64, "num_experts: contradicts num_local_experts"},
      {kQwen3Moe, "mlp_only_layers", {48}, "mlp_only_layers: names a layer that is not there"},
      {kQwen3Moe, "use_sliding_window", true, "use_sliding_window"},
      {kGptOss, "swiglu_alpha", 1.5, "swiglu_alpha"},
      {kGptOss, "experts_per_token", 8, "experts_per_token"},
      {kGptOss, "layer_types", Json(24, "full_attention"), "layer 0"},
  };
  for (const auto& [text, field, value, expected] : cases) {
    Json json = Json::parse(text);
    json[field] = value;
    const std::string message = data::user_error([&] { parse_hugging_face_config(json.dump(), "config.json"); });
    EXPECT_NE(message.find(expected), std::string::npos) << field << "\n" << message;
  }
}

// Each field by itself, so that no meaning is read past: another number gives another experiment, or an error.
TEST(HuggingFaceConfig, EveryFieldIsReadOrKnownToMeanNothing) {
  const std::vector<std::string> ignored = {
      "architectures", "attention_dropout", "aux_loss_alpha", "bos_token_id", "eos_token_id", "ep_size", "pad_token_id",
      "pretraining_tp", "router_aux_loss_coef", "sliding_window", "max_window_layers", "initial_context_length",
      // Read only beside another choice.
      "n_group", "topk_group", "num_nextn_predict_layers"};
  for (const Published& published : kPublished) {
    const Json source = Json::parse(published.config);
    const config::Experiment before = imported(published.config);
    for (const auto& [field, value] : source.items()) {
      if (!value.is_number() || std::ranges::find(ignored, field) != ignored.end()) continue;
      Json changed = source;
      changed[field] =
          value.is_number_integer() ? Json(value.get<std::int64_t>() + 2) : Json(value.get<double>() * 1.5);
      bool is_noticed = false;
      try {
        const config::Experiment after = imported(changed.dump());
        for (const auto& [key, setting] : before.settings())
          is_noticed = is_noticed || !(after.setting(key).value == setting.value);
      } catch (const ConfigError&) {
        is_noticed = true;
      }
      EXPECT_TRUE(is_noticed) << published.preset << " " << field;
    }
  }
}

}  // namespace
}  // namespace primus::checkpoint
