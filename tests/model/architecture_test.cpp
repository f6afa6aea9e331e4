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
  EXPECT_EQ(names(uncounted_parts(test::preset_experiment("kimi_k3"))),
            (std::vector<std::string>{"Kimi K3's delta and latent attention", "attention over residuals"}));
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
