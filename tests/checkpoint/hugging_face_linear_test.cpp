// config.json of models whose layers mix tokens in several ways: LFM2, Qwen3-Next and Kimi Linear.
#include <gtest/gtest.h>

#include "checkpoint/hugging_face_config.hpp"
#include "checkpoint/hugging_face_tensors.hpp"
#include "data/temporary_folder.hpp"
#include "model/parameters.hpp"

namespace primus::checkpoint {
namespace {

// The released models' own files.
constexpr const char* kLfm2Moe = R"({
  "architectures": ["Lfm2MoeForCausalLM"], "bos_token_id": 1, "conv_L_cache": 3, "conv_bias": false, "dtype": "bfloat16",
  "eos_token_id": 7, "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 7168,
  "layer_types": ["conv", "conv", "full_attention", "conv", "conv", "conv", "full_attention", "conv", "conv", "conv",
                  "full_attention", "conv", "conv", "conv", "full_attention", "conv", "conv", "conv", "full_attention",
                  "conv", "conv", "full_attention", "conv", "conv"],
  "max_position_embeddings": 128000, "model_type": "lfm2_moe", "moe_intermediate_size": 1792, "norm_eps": 1e-05,
  "norm_topk_prob": true, "num_attention_heads": 32, "num_dense_layers": 2, "num_experts": 32, "num_experts_per_tok": 4,
  "num_hidden_layers": 24, "num_key_value_heads": 8, "pad_token_id": 0, "rope_theta": 1000000.0,
  "routed_scaling_factor": 1.0, "tie_word_embeddings": true, "transformers_version": "4.56.1", "use_cache": true,
  "use_expert_bias": true, "vocab_size": 65536})";

constexpr const char* kLfm2 = R"({
  "architectures": ["Lfm2ForCausalLM"], "block_auto_adjust_ff_dim": true, "block_dim": 1024,
  "block_ffn_dim_multiplier": 1.0, "block_mlp_init_scale": 1.0, "block_multiple_of": 256, "block_norm_eps": 1e-05,
  "block_out_init_scale": 1.0, "block_use_swiglu": true, "block_use_xavier_init": true, "bos_token_id": 1,
  "conv_L_cache": 3, "conv_bias": false, "conv_dim": 1024, "conv_dim_out": 1024, "conv_use_xavier_init": true,
  "eos_token_id": 7, "full_attn_idxs": [2, 5, 8, 10, 12, 14], "hidden_size": 1024, "initializer_range": 0.02,
  "intermediate_size": 6656, "max_position_embeddings": 128000, "model_type": "lfm2", "norm_eps": 1e-05,
  "num_attention_heads": 16, "num_heads": 16, "num_hidden_layers": 16, "num_key_value_heads": 8, "pad_token_id": 0,
  "rope_theta": 1000000.0, "torch_dtype": "bfloat16", "transformers_version": "4.54.0.dev0", "use_cache": true,
  "use_pos_enc": true, "vocab_size": 65536})";

constexpr const char* kQwen3Next = R"({
  "architectures": ["Qwen3NextForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 151643,
  "decoder_sparse_step": 1, "eos_token_id": 151645, "full_attention_interval": 4, "head_dim": 256, "hidden_act": "silu",
  "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 5120, "linear_conv_kernel_dim": 4,
  "linear_key_head_dim": 128, "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_value_head_dim": 128,
  "max_position_embeddings": 262144, "mlp_only_layers": [], "model_type": "qwen3_next", "moe_intermediate_size": 512,
  "norm_topk_prob": true, "num_attention_heads": 16, "num_experts": 512, "num_experts_per_tok": 10,
  "num_hidden_layers": 48, "num_key_value_heads": 2, "output_router_logits": false, "partial_rotary_factor": 0.25,
  "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 10000000, "router_aux_loss_coef": 0.001,
  "shared_expert_intermediate_size": 512, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
  "transformers_version": "4.57.0.dev0", "use_cache": true, "vocab_size": 151936})";

constexpr const char* kKimiLinear = R"({
  "architectures": ["KimiLinearForCausalLM"], "bos_token_id": 163584, "dtype": "bfloat16", "eos_token_id": 163586,
  "first_k_dense_replace": 1, "head_dim": 72, "hidden_act": "silu", "hidden_size": 2304, "initializer_range": 0.02,
  "intermediate_size": 9216, "kv_lora_rank": 512,
  "linear_attn_config": {"full_attn_layers": [4, 8, 12, 16, 20, 24, 27], "head_dim": 128,
                         "kda_layers": [1, 2, 3, 5, 6, 7, 9, 10, 11, 13, 14, 15, 17, 18, 19, 21, 22, 23, 25, 26],
                         "num_heads": 32, "short_conv_kernel_size": 4},
  "mla_use_nope": true, "model_max_length": 1048576, "model_type": "kimi_linear", "moe_intermediate_size": 1024,
  "moe_layer_freq": 1, "moe_renormalize": true, "moe_router_activation_func": "sigmoid", "num_attention_heads": 32,
  "num_expert_group": 1, "num_experts": 256, "num_experts_per_token": 8, "num_hidden_layers": 27,
  "num_key_value_heads": 32, "num_nextn_predict_layers": 0, "num_shared_experts": 1, "pad_token_id": 163839,
  "q_lora_rank": null, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-05, "rope_scaling": null,
  "rope_theta": 10000.0, "routed_scaling_factor": 2.446, "tie_word_embeddings": false, "topk_group": 1,
  "transformers_version": "4.56.2", "use_cache": true, "use_grouped_topk": true, "v_head_dim": 128,
  "vocab_size": 163840})";

constexpr std::array kAll = {kLfm2Moe, kLfm2, kQwen3Next, kKimiLinear};

config::Experiment imported(const std::string& text) {
  return parse_hugging_face_config(text, "config.json").experiment;
}

// Kimi-Linear-48B-A3B: tests/model/architecture_test.cpp has the sum.
TEST(HuggingFaceLinear, KimiLinearAsReleased) {
  const model::ModelSpec kimi = model::build_model_spec(imported(kKimiLinear));
  EXPECT_EQ(kimi.num_layers_of(model::MixerKind::kKimiDelta), 20);
  EXPECT_EQ(kimi.mixer(26), model::MixerKind::kAttention);
  EXPECT_FALSE(kimi.is_rotated(3));
  EXPECT_EQ(model::count_parameters(kimi).total, 49'122'681'728);
  std::map<std::string, std::vector<std::int64_t>> shapes;
  for (const HuggingFaceTensor& tensor : map_tensors(parameters_of(kimi), Architecture::kKimiLinear).tensors) {
    shapes[tensor.name] = tensor.shape;
  }
  using Shape = std::vector<std::int64_t>;
  for (const auto& [name, shape] : std::initializer_list<std::pair<const char*, Shape>>{
           {"model.layers.0.mlp.gate_proj.weight", {9216, 2304}},
           {"model.layers.0.self_attn.A_log", {1, 1, 32, 1}},
           {"model.layers.0.self_attn.dt_bias", {4096}},
           {"model.layers.0.self_attn.b_proj.weight", {32, 2304}},
           {"model.layers.0.self_attn.f_a_proj.weight", {128, 2304}},
           {"model.layers.0.self_attn.f_b_proj.weight", {4096, 128}},
           {"model.layers.0.self_attn.g_a_proj.weight", {128, 2304}},
           {"model.layers.0.self_attn.g_b_proj.weight", {4096, 128}},
           {"model.layers.0.self_attn.k_conv1d.weight", {4096, 1, 4}},
           {"model.layers.0.self_attn.o_norm.weight", {128}},
           {"model.layers.0.self_attn.o_proj.weight", {2304, 4096}},
           {"model.layers.1.block_sparse_moe.experts.255.w2.weight", {2304, 1024}},
           {"model.layers.1.block_sparse_moe.gate.e_score_correction_bias", {256}},
           {"model.layers.1.block_sparse_moe.shared_experts.down_proj.weight", {2304, 1024}},
           {"model.layers.3.self_attn.kv_a_proj_with_mqa.weight", {576, 2304}}}) {
    EXPECT_EQ(shapes[name], shape) << name;
  }
}

// LFM2-8B-A1B has 8.34 B parameters, LFM2-350M 354 M (its width is 2/3 of what is written, up to a multiple of 256),
// Qwen3-Next 79.7 B.
TEST(HuggingFaceLinear, PublishedModelsByHand) {
  const std::int64_t conv = 4 * 2048 * 2048 + 3 * 2048;
  const std::int64_t attention = 2 * 2048 * 2048 + 2048 * 1024 + 2 * 64;
  const std::int64_t moe =
      32 * 3 * 2048 * 1792 + 32 * 2048 + 32;  // the last: the experts' biases, which are no weights
  EXPECT_EQ(model::count_parameters(model::build_model_spec(imported(kLfm2Moe))).total,
            18 * conv + 6 * attention + 2 * 3 * 2048 * 7168 + 22 * moe + 49 * 2048 + 65536 * 2048);
  const std::int64_t small = 10 * (4 * 1024 * 1024 + 3 * 1024) + 6 * (2 * 1024 * 1024 + 1024 * 1024 + 2 * 64);
  EXPECT_EQ(model::count_parameters(model::build_model_spec(imported(kLfm2))).total,
            small + 16 * 3 * 1024 * 4608 + 33 * 1024 + 65536 * 1024);
  const model::ModelSpec next = model::build_model_spec(imported(kQwen3Next));
  EXPECT_EQ(next.num_layers_of(model::MixerKind::kGatedDelta), 36);
  EXPECT_EQ(next.mixer(3), model::MixerKind::kAttention);
  const std::int64_t delta = 2048 * (2 * 2048 + 2 * 4096 + 64) + 4 * 8192 + 2 * 32 + 128 + 2048 * 4096;
  const std::int64_t gated = 2048 * (2 * 4096 + 2 * 512) + 4096 * 2048 + 2 * 256;
  const std::int64_t layer = 2 * 2048 + 512 * 2048 + 513 * 3 * 2048 * 512 + 2048;
  EXPECT_EQ(model::count_parameters(next).total, 36 * delta + 12 * gated + 48 * layer + 2048 + 2 * 151936L * 2048);
}

TEST(HuggingFaceLinear, AnImportIsExportedUnchangedAndFoundWithoutASource) {
  for (const char* config : kAll) {
    const Json source = Json::parse(config);
    const config::Experiment experiment = imported(config);
    const ExportedConfig same = write_hugging_face_config(experiment, source, DType::kBFloat16, "experiment.json");
    EXPECT_EQ(same.json, source);
    const ExportedConfig found =
        write_hugging_face_config(experiment, std::nullopt, DType::kFloat32, "experiment.json");
    EXPECT_EQ(found.json["model_type"], source["model_type"]);
    const HuggingFaceConfig again = parse_hugging_face_config(found.json.dump(), "config.json");
    for (const auto& [key, setting] : experiment.settings()) {
      EXPECT_EQ(again.experiment.setting(key).value, setting.value) << key;
    }
  }
}

TEST(HuggingFaceLinear, WhatNoConfigCanSayIsNamed) {
  const std::vector<std::tuple<const char*, const char*, config::Value, const char*>> cases = {
      {kLfm2, "apply_layernorm_1p", {true}, "apply_layernorm_1p"},
      {kLfm2Moe, "attention_output_gate", {true}, "attention_output_gate"},
      {kQwen3Next, "apply_layernorm_1p", {false}, "apply_layernorm_1p"},
      {kQwen3Next, "attention_output_gate", {false}, "attention_output_gate"},
      {kQwen3Next, "moe_shared_expert_gate", {false}, "moe_shared_expert_gate"},
      {kQwen3Next, "moe_router_score_function", {std::string("sigmoid")}, "moe_router_score_function"},
      {kKimiLinear, "kda_gate_lower_bound", {-5.0}, "kda_gate_lower_bound"},
      {kKimiLinear, "kda_use_full_rank_gate", {true}, "kda_use_full_rank_gate"},
      {kKimiLinear, "mla_use_output_gate", {true}, "mla_use_output_gate"},
      {kKimiLinear, "mla_use_nope", {false}, "mla_use_nope"},
      {kKimiLinear, "linear_num_key_heads", {std::int64_t{16}}, "linear_num_key_heads"},
      {kKimiLinear, "linear_key_head_dim", {std::int64_t{64}}, "linear_key_head_dim"}};
  for (const auto& [config, key, value, expected] : cases) {
    config::Experiment experiment = imported(config);
    experiment.set(key, value, {});
    const std::string message = data::user_error(
        [&] { write_hugging_face_config(experiment, Json::parse(config), DType::kFloat32, "experiment.json"); });
    EXPECT_NE(message.find(expected), std::string::npos) << message;
  }
}

// gdn is another word for the same; a list and an integer may name the same layers.
TEST(HuggingFaceLinear, OtherWordsForTheSameAreExported) {
  config::Experiment experiment = imported(kQwen3Next);
  experiment.set("experimental_attention_variant", {std::string("gdn")}, {});
  experiment.set("linear_attention_freq", {std::int64_t{4}}, {});
  EXPECT_NO_THROW(write_hugging_face_config(experiment, Json::parse(kQwen3Next), DType::kFloat32, "experiment.json"));
  experiment.set("linear_attention_freq", {std::int64_t{3}}, {});
  const ExportedConfig exported =
      write_hugging_face_config(experiment, Json::parse(kQwen3Next), DType::kFloat32, "experiment.json");
  EXPECT_EQ(exported.json["layer_types"][2], "full_attention");
  EXPECT_EQ(exported.json["layer_types"][3], "linear_attention");
}

TEST(HuggingFaceLinear, ConfigsThatAreRefused) {
  const std::vector<std::tuple<const char*, const char*, Json, const char*>> cases = {
      {kLfm2Moe, "layer_types", {"conv"}, "layer_types: is not for every layer"},
      {kLfm2Moe, "layer_types", Json(24, "mamba"), "names a layer that is not converted"},
      {kLfm2Moe, "num_dense_layers", 24, "num_dense_layers: leaves no layer with experts"},
      {kLfm2Moe, "norm_topk_prob", false, "norm_topk_prob"},
      {kLfm2Moe, "num_experts_per_tok", 1, "num_experts_per_tok: a single expert"},
      {kLfm2Moe, "rms_norm_eps", 1e-6, "rms_norm_eps: contradicts norm_eps"},
      {kQwen3Next, "layer_types", {"linear_attention"}, "layer_types: is not for every layer"},
      {kQwen3Next, "layer_types", Json(48, "conv"), "names a layer that is not converted"},
      {kQwen3Next, "linear_num_key_heads", 5, "linear_num_value_heads: is no multiple"},
      {kQwen3Next, "attention_bias", true, "attention_bias"},
      {kQwen3Next, "mlp_only_layers", {48}, "mlp_only_layers: names a layer that is not there"},
      {kKimiLinear, "layer_types", {"linear_attention"}, "layer_types: is not for every layer"},
      {kKimiLinear, "layer_types", Json(27, "conv"), "names a layer that is not converted"},
      {kKimiLinear, "linear_attn_config", {{"kda_layers", {1, 28}}}, "kda_layers: names a layer that is not there"},
      {kKimiLinear, "linear_attn_config", {{"kda_layers", {1}}}, "leaves layers without a kind"},
      {kKimiLinear, "linear_attn_config", {{"gate_lower_bound", -5.0}}, "gate_lower_bound: Kimi Linear's decays"},
      {kKimiLinear, "mla_use_output_gate", true, "mla_use_output_gate"},
      {kKimiLinear, "moe_router_activation_func", "softmax", "moe_router_activation_func"},
      {kKimiLinear, "num_experts_per_token", 1, "num_experts_per_token: a single expert"}};
  for (const auto& [config, field, value, expected] : cases) {
    Json json = Json::parse(config);
    json[field] = value;
    const std::string message = data::user_error([&] { parse_hugging_face_config(json.dump(), "config.json"); });
    EXPECT_NE(message.find(expected), std::string::npos) << field << ": " << message;
  }
}

}  // namespace
}  // namespace primus::checkpoint
