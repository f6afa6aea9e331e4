#include "model/model_spec.hpp"

#include <gtest/gtest.h>

#include "model/preset_spec.hpp"

namespace primus::model {
namespace {

using test::preset_spec;

TEST(ModelSpecTest, DeepSeekV2Lite) {
  const ModelSpec spec = preset_spec("deepseek_v2_lite");
  EXPECT_EQ(spec.num_layers(), 27);
  EXPECT_EQ(spec.num_moe_layers(), 26);
  EXPECT_EQ(spec.layers.front(), LayerKind::kDense);
  EXPECT_EQ(spec.padded_vocab_size, 102'400);
  const MlaSpec& mla = std::get<MlaSpec>(spec.attention);
  EXPECT_FALSE(mla.q_lora_rank.has_value());
  EXPECT_EQ(mla.query_dim(), 192);
  EXPECT_EQ(spec.rope.type, RopeType::kYarn);  // rope_type: null with MLA (decision 8)
  EXPECT_EQ(spec.rope.rotary_dim, 64);
  EXPECT_EQ(spec.moe->router.softmax_order, SoftmaxOrder::kPre);
  EXPECT_EQ(spec.moe->router.load_balancing, LoadBalancing::kSeqAuxLoss);
  EXPECT_EQ(spec.moe->shared_ffn_hidden_size, 2816);
}

TEST(ModelSpecTest, DeepSeekV3RoutesInGroupsWithABias) {
  const ModelSpec spec = preset_spec("deepseek_v3");
  EXPECT_EQ(spec.num_layers() - spec.num_moe_layers(), 3);
  EXPECT_EQ(spec.moe->router.score_function, ScoreFunction::kSigmoid);
  EXPECT_EQ(spec.moe->router.num_groups, 8);
  EXPECT_EQ(spec.moe->router.expert_bias, RouterSpec::ExpertBias::kOn);
  EXPECT_EQ(spec.num_mtp_layers, 1);
  EXPECT_DOUBLE_EQ(spec.moe->router.scaling_factor, 2.5);
}

TEST(ModelSpecTest, WithoutLatentAttentionItIsGroupedQueryAttention) {
  const ModelSpec spec = preset_spec("deepseek_v2_lite", {"--multi_latent_attention", "False"});
  const GqaSpec& gqa = std::get<GqaSpec>(spec.attention);
  EXPECT_EQ(gqa.num_query_groups, gqa.num_heads);
  EXPECT_EQ(gqa.head_dim, 128);
  EXPECT_EQ(spec.rope.type, RopeType::kRope);
}

TEST(ModelSpecTest, VocabularyIsPadded) {
  const ModelSpec spec = preset_spec("deepseek_v2_tiny");
  EXPECT_EQ(spec.vocab_size, 257);
  EXPECT_EQ(spec.padded_vocab_size, 384);
}

TEST(ModelSpecTest, LayerPatterns) {
  const auto kinds = [](config::Value value) {
    std::string text;
    for (const LayerKind kind : layer_kinds(value, 6)) text += kind == LayerKind::kMoe ? 'm' : 'd';
    return text;
  };
  EXPECT_EQ(kinds({std::int64_t{1}}), "mmmmmm");
  EXPECT_EQ(kinds({std::int64_t{2}}), "mdmdmd");
  EXPECT_EQ(kinds({std::string("([0]*2+[1]*4)")}), "ddmmmm");
}

const std::vector<std::string> kSixLayers = {"--num_layers", "6", "--moe_layer_freq", "1"};

ModelSpec six_layers(std::vector<std::string> more) {
  more.insert(more.end(), kSixLayers.begin(), kSixLayers.end());
  return preset_spec("mixtral_8x7B_v0.1", more);
}

// Megatron counts layers from one: with a frequency of 3, layers 3 and 6 see everything.
TEST(ModelSpecTest, WindowsByLayer) {
  using Windows = std::vector<std::int64_t>;
  EXPECT_EQ(six_layers({}).windows, Windows());
  EXPECT_EQ(six_layers({}).window(3), 0);
  EXPECT_EQ(six_layers({"--window_size", "127,0"}).windows, (Windows{128, 128, 128, 128, 128, 128}));
  EXPECT_EQ(six_layers({"--window_size", "-1,0"}).windows, Windows());
  EXPECT_EQ(six_layers({"--window_size", "7,-1", "--window_attn_skip_freq", "3"}).windows, (Windows{8, 8, 0, 8, 8, 0}));
  EXPECT_EQ(six_layers({"--window_size", "0,0", "--window_attn_skip_freq", "[1]*2+[0]*4"}).windows,
            (Windows{1, 1, 0, 0, 0, 0}));
  EXPECT_EQ(six_layers({"--use_sink_attention", "True", "--sink_sliding_window", "128"}).windows,
            (Windows{128, 0, 128, 0, 128, 0}));
  EXPECT_EQ(six_layers({"--use_sink_attention", "True", "--sink_sliding_window", "5", "--sink_window_even_layers_only",
                        "False"})
                .windows,
            (Windows{5, 5, 5, 5, 5, 5}));
}

TEST(ModelSpecTest, GptOssAsReleased) {
  const ModelSpec spec = preset_spec("gpt_oss_20B_released");
  EXPECT_EQ(spec.window(0), 128);
  EXPECT_EQ(spec.window(1), 0);
  EXPECT_EQ(spec.sinks, Part::kPresent);
  EXPECT_EQ(spec.rope.type, RopeType::kYarn);
  EXPECT_EQ(spec.rope.rounded_range, Part::kAbsent);
  EXPECT_EQ(std::get<GqaSpec>(spec.attention).qkv_bias, Part::kPresent);
}

TEST(ModelSpecTest, RotationOfThePresets) {
  const auto rotated = [](const char* preset) { return preset_spec(preset).rope.rotary_dim; };
  EXPECT_EQ(rotated("minimax_m2.5"), 64);        // half of 128
  EXPECT_EQ(rotated("qwen3_5_35B_A3B"), 64);     // a quarter of 256
  EXPECT_EQ(rotated("mixtral_8x7B_v0.1"), 128);  // all
  const RopeSpec llama = preset_spec("llama4_17B16E").rope;
  EXPECT_EQ(llama.type, RopeType::kLlama3);
  EXPECT_EQ(llama.scaling_factor, 16.0);
  EXPECT_EQ(llama.original_max_position, 8192);
  EXPECT_EQ(preset_spec("llama3.1_8B").rope.type, RopeType::kRope);
  EXPECT_EQ(preset_spec("deepseek_v2_lite").rope.type, RopeType::kYarn);
}

TEST(ModelSpecTest, LayersWithoutRotation) {
  const auto layers = [](const ModelSpec& spec) {
    std::vector<bool> result;
    for (int layer = 0; layer < 6; ++layer) result.push_back(spec.is_rotated(layer));
    return result;
  };
  EXPECT_EQ(layers(six_layers({})), std::vector<bool>(6, true));
  EXPECT_EQ(layers(six_layers({"--no_rope_freq", "3"})), (std::vector<bool>{true, true, false, true, true, false}));
  EXPECT_EQ(layers(six_layers({"--no_rope_freq", "[1]+[0]*5"})),
            (std::vector<bool>{false, true, true, true, true, true}));
  EXPECT_EQ(layers(six_layers({"--position_embedding_type", "none"})), std::vector<bool>(6, false));
  EXPECT_EQ(layers(six_layers({"--position_embedding_type", "learned_absolute"})), std::vector<bool>(6, false));
}

}  // namespace
}  // namespace primus::model
