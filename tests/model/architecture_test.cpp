// Parts of an architecture are named, and known to be counted or not.
#include "model/architecture.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "model/flops.hpp"
#include "model/parameters.hpp"
#include "model/preset_spec.hpp"

namespace primus::model {
namespace {

std::vector<std::string> names(const std::vector<ArchitecturePart>& parts) {
  std::vector<std::string> result;
  for (const ArchitecturePart& part : parts) result.push_back(part.name);
  return result;
}

TEST(ArchitectureTest, NothingIsUnsupportedInDeepSeekV2Lite) {
  EXPECT_EQ(names(unsupported_parts(test::preset_experiment("deepseek_v2_lite"))), std::vector<std::string>{});
}

TEST(ArchitectureTest, EveryPresetOfAKnownShapeIsCountedWhole) {
  for (const char* preset : {"deepseek_v3", "qwen3_5_35B_A3B", "lfm2_8B_A1B", "grok2", "llama4_17B16E",
                             "gpt_oss_120B_released", "minimax_m2.5", "glm5", "moe_4T", "llama3.1_70B"}) {
    EXPECT_EQ(names(uncounted_parts(test::preset_experiment(preset))), std::vector<std::string>{}) << preset;
  }
}

TEST(ArchitectureTest, PartsOfUnknownShapeAreNamed) {
  EXPECT_EQ(names(uncounted_parts(test::preset_experiment("deepseek_v4_flash"))),
            (std::vector<std::string>{"DeepSeek-V4's compressed attention", "routing by token id"}));
  EXPECT_EQ(names(uncounted_parts(test::preset_experiment("kimi_k3"))), std::vector<std::string>{});
  EXPECT_EQ(names(unsupported_parts(test::preset_experiment("kimi_k3"))),
            std::vector<std::string>{"attention over residuals"});
}

TEST(ArchitectureTest, TrainingIsToldWhatItCannotBuild) {
  const std::vector<std::string> parts = names(
      unsupported_parts(test::preset_experiment("qwen3_5_35B_A3B", {"--experimental_attention_variant", "gdn2"})));
  EXPECT_EQ(parts, std::vector<std::string>{"linear attention"});
  for (const char* preset : {"qwen3_5_35B_A3B", "lfm2_8B_A1B"}) {
    EXPECT_EQ(names(unsupported_parts(test::preset_experiment(preset))), std::vector<std::string>()) << preset;
  }
}

TEST(ArchitectureTest, LatentAttentionIsNotGivenWhatItHasNot) {
  EXPECT_EQ(names(unsupported_parts(test::preset_experiment(
                "deepseek_v2_lite", {"--attention_output_gate", "True", "--add_qkv_bias", "True", "--qk_layernorm",
                                     "False", "--qk_l2_norm", "True", "--rotary_percent", "0.5"}))),
            (std::vector<std::string>{"latent heads that are rotated in part", "a gate on latent attention",
                                      "biases in latent attention", "unit norms in latent attention"}));
}

// 30 gated delta nets of 33,718,464 parameters, 10 layers of gated attention of 27,263,488, experts as in every layer.
TEST(ArchitectureTest, Qwen35ByHand) {
  const ModelSpec spec = test::preset_spec("qwen3_5_35B_A3B");
  EXPECT_EQ(spec.num_layers_of(MixerKind::kGatedDelta), 30);
  EXPECT_EQ(spec.mixer(3), MixerKind::kAttention);
  EXPECT_EQ(spec.mixer(4), MixerKind::kGatedDelta);
  const std::int64_t hidden = 2048;
  const std::int64_t delta =
      hidden * (2 * 2048 + 2 * 4096 + 2 * 32) + 4 * (2 * 2048 + 4096) + 2 * 32 + 128 + hidden * 4096;
  const std::int64_t attention = hidden * (2 * 4096 + 2 * 512) + 4096 * hidden + 2 * 256;
  const std::int64_t layer = 2 * hidden + 256 * hidden + 256 * 3 * hidden * 512 + 3 * hidden * 512 + hidden;
  EXPECT_EQ(count_parameters(spec).total, 30 * delta + 10 * attention + 40 * layer + hidden + 2 * 248'320 * hidden);
}

// Kimi Linear (48 B, 3 B active): 20 layers of delta attention, 7 of latent attention without positions.
TEST(ArchitectureTest, KimiLinearByHand) {
  std::vector<std::string> words;
  for (const auto& [key, value] :
       std::initializer_list<std::pair<const char*, const char*>>{{"num_layers", "27"},
                                                                  {"hidden_size", "2304"},
                                                                  {"ffn_hidden_size", "9216"},
                                                                  {"num_attention_heads", "32"},
                                                                  {"q_lora_rank", "null"},
                                                                  {"mla_use_nope", "true"},
                                                                  {"experimental_attention_variant", "kda"},
                                                                  {"linear_attention_freq", "([1]*3+[0])*6+[1]*2+[0]"},
                                                                  {"linear_num_key_heads", "32"},
                                                                  {"linear_num_value_heads", "32"},
                                                                  {"num_experts", "256"},
                                                                  {"moe_layer_freq", "([0]*1+[1]*26)"},
                                                                  {"moe_ffn_hidden_size", "1024"},
                                                                  {"moe_shared_expert_intermediate_size", "1024"},
                                                                  {"mtp_num_layers", "null"},
                                                                  {"vocab_size", "163840"}}) {
    words.push_back(std::string("--") + key + "=" + value);
  }
  const ModelSpec spec = test::preset_spec("deepseek_v3", words);
  const std::int64_t hidden = 2304;
  const std::int64_t inner = 32 * 128;
  const std::int64_t delta =
      hidden * (3 * inner + 32 + 2 * 128) + 2 * 128 * inner + 4 * 3 * inner + inner + 32 + 128 + inner * hidden;
  const std::int64_t latent = hidden * 32 * 192 + hidden * (512 + 64) + 512 + 512 * 32 * (128 + 128) + inner * hidden;
  const std::int64_t moe = 257 * 3 * hidden * 1024 + 256 * hidden + 256;
  EXPECT_EQ(spec.num_layers_of(MixerKind::kKimiDelta), 20);
  EXPECT_FALSE(spec.is_rotated(3));
  const ParameterCount count = count_parameters(spec);
  EXPECT_EQ(count.total,
            20 * delta + 7 * latent + 3 * hidden * 9216 + 26 * moe + (27 * 2 + 1) * hidden + 2 * 163'840 * hidden);
  EXPECT_EQ(count.total, 49'122'681'728);
  const std::int64_t full_rank =
      count_parameters(test::preset_spec(
                           "deepseek_v3",
                           [&] {
                             words.insert(words.end(), {"--kda_use_full_rank_gate=true", "--mla_use_output_gate=true"});
                             return words;
                           }()))
          .total;
  EXPECT_EQ(full_rank - count.total, 20 * (hidden * inner - hidden * 128 - 128 * inner) + 7 * hidden * inner);
}

// 69 layers of delta attention, 24 of latent attention; 92 with experts in a latent space. Moonshot says 2.8 T, 104 B
// active.
TEST(ArchitectureTest, KimiK3ByHand) {
  const ModelSpec spec = test::preset_spec("kimi_k3");
  EXPECT_EQ(spec.num_layers_of(MixerKind::kKimiDelta), 69);
  EXPECT_EQ(spec.num_layers_of(MixerKind::kAttention), 24);
  EXPECT_EQ(spec.mixer(92), MixerKind::kAttention);
  EXPECT_EQ(spec.kimi_delta.lowest_decay, -5.0);
  const std::int64_t hidden = 7168;
  const std::int64_t inner = 96 * 128;
  const std::int64_t delta =
      hidden * (4 * inner + 96 + 128) + 128 * inner + 4 * 3 * inner + inner + 96 + 128 + inner * hidden;
  const std::int64_t latent =
      hidden * 1536 + 1536 + 1536 * 96 * 192 + hidden * (512 + 64) + 512 + 512 * 96 * (128 + 128) + 2 * inner * hidden;
  const std::int64_t expert = 3 * 3584 * 3072;
  const std::int64_t beside_experts = 896 * hidden + 896 + 2 * hidden * 3584 + 3584 + 3 * hidden * 6144;
  const std::int64_t norms = 93 * 2 * hidden + hidden;
  const std::int64_t residuals = 2 * norms;  // a norm and a query for each half of a layer, and for the output
  const std::int64_t rest =
      69 * delta + 24 * latent + 3 * hidden * 33792 + 92 * beside_experts + norms + residuals + 2 * 163'840 * hidden;
  const ParameterCount count = count_parameters(spec);
  EXPECT_EQ(count.total, rest + 92 * 896 * expert);
  EXPECT_EQ(count.active, rest + 92 * 16 * expert);
  EXPECT_NEAR(static_cast<double>(count.total), 2.8e12, 0.05e12);
  // A token reads one row of the embedding.
  EXPECT_NEAR(static_cast<double>(count.active - 163'840 * hidden), 104e9, 0.5e9);
}

TEST(ArchitectureTest, Lfm2ByHand) {
  const ModelSpec spec = test::preset_spec("lfm2_8B_A1B");
  EXPECT_EQ(spec.num_layers_of(MixerKind::kShortConvolution), 18);
  const std::int64_t hidden = 2048;
  const std::int64_t convolution = 4 * hidden * hidden + 3 * hidden;
  const std::int64_t attention = hidden * (4096 + 2 * 1024) + 4096 * hidden + 2 * 128;
  const std::int64_t dense = 3 * hidden * 7168;
  const std::int64_t moe = 32 * hidden + 32 * 3 * hidden * 1792;
  EXPECT_EQ(count_parameters(spec).total,
            18 * convolution + 6 * attention + 2 * dense + 22 * moe + 24 * 2 * hidden + hidden + 2 * 65'536 * hidden);
}

TEST(ArchitectureTest, ReleasedGptOss) {
  EXPECT_EQ(count_parameters(test::preset_spec("gpt_oss_20B_released")).total, 20'914'757'184);
  EXPECT_EQ(count_parameters(test::preset_spec("gpt_oss_120B_released")).total, 116'829'156'672);
}

}  // namespace
}  // namespace primus::model
