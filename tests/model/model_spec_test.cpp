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
  EXPECT_DOUBLE_EQ(spec.moe->router.losses.seq_aux, 0.001);
  EXPECT_EQ(spec.moe->router.losses.aux, 0.0);
  EXPECT_EQ(spec.moe->shared_ffn_hidden_size, 2816);
}

TEST(ModelSpecTest, DeepSeekV3RoutesInGroupsWithABias) {
  const ModelSpec spec = preset_spec("deepseek_v3");
  EXPECT_EQ(spec.num_layers() - spec.num_moe_layers(), 3);
  EXPECT_EQ(spec.moe->router.score_function, ScoreFunction::kSigmoid);
  EXPECT_EQ(spec.moe->router.num_groups, 8);
  EXPECT_EQ(spec.moe->router.expert_bias, RouterSpec::ExpertBias::kOn);
  EXPECT_EQ(spec.moe->router.group_score, RouterSpec::GroupScore::kSumOfBest);
  EXPECT_DOUBLE_EQ(spec.moe->router.expert_bias_rate, 0.001);
  EXPECT_EQ(spec.num_mtp_layers, 1);
  EXPECT_DOUBLE_EQ(spec.moe->router.scaling_factor, 2.5);
}

TEST(ModelSpecTest, DeepSeekV2RoutesInGroupsByTheirBestExpert) {
  const RouterSpec router = preset_spec("deepseek_v2").moe->router;
  EXPECT_EQ(router.num_groups, 8);
  EXPECT_EQ(router.group_top_k, 3);
  EXPECT_EQ(router.group_score, RouterSpec::GroupScore::kMax);
}

TEST(ModelSpecTest, ReleasedGptOssHasItsGatedUnitAndBiases) {
  const ModelSpec spec = preset_spec("gpt_oss_20B_released");
  EXPECT_EQ(spec.mlp_gate, Part::kPresent);
  EXPECT_EQ(spec.activation.function, ActivationSpec::Function::kQuickGelu);
  EXPECT_EQ(spec.activation.clamp, 7.0);
  EXPECT_EQ(spec.activation.linear_offset, 1.0);
  EXPECT_EQ(spec.linear_bias, Part::kPresent);
  EXPECT_EQ(spec.moe->router.softmax_order, SoftmaxOrder::kPost);
  EXPECT_EQ(spec.num_moe_layers(), 24);
}

TEST(ModelSpecTest, SeveralLossesHaveAWeightEach) {
  const RouterSpec router =
      preset_spec("deepseek_v2_lite", {"--moe_router_load_balancing_type", "[aux_loss, seq_aux_loss, global_aux_loss]",
                                       "--moe_aux_loss_coeff", "[0.1, 0.2, 0.3]", "--moe_z_loss_coeff", "0.4"})
          .moe->router;
  EXPECT_EQ(router.losses.aux, 0.1);
  EXPECT_EQ(router.losses.seq_aux, 0.2);
  EXPECT_EQ(router.losses.global_aux, 0.3);
  EXPECT_EQ(router.losses.z, 0.4);
}

TEST(ModelSpecTest, RouterOptions) {
  const auto router = [](std::vector<std::string> words) {
    return preset_spec("deepseek_v2_lite", std::move(words)).moe->router;
  };
  EXPECT_EQ(router({"--moe_router_load_balancing_type", "none"}).losses.has_balance(), false);
  EXPECT_EQ(router({"--moe_router_load_balancing_type", "sinkhorn"}).assignment, RouterSpec::Assignment::kSinkhorn);
  const RouterSpec quantile =
      router({"--moe_router_load_balancing_type", "quantile_balancing", "--moe_router_quantile_balancing_ema", "0.9"});
  EXPECT_EQ(quantile.assignment, RouterSpec::Assignment::kQuantile);
  EXPECT_EQ(quantile.quantile_ema, 0.9);
  const RouterSpec capacity = router({"--moe_expert_capacity_factor", "1.25", "--moe_token_drop_policy", "position",
                                      "--moe_pad_expert_input_to_capacity", "true"});
  EXPECT_EQ(capacity.capacity->factor, 1.25);
  EXPECT_EQ(capacity.capacity->drop, ExpertCapacity::Drop::kPosition);
  EXPECT_EQ(capacity.capacity->free_rows, ExpertCapacity::FreeRows::kKept);
  EXPECT_EQ(router({"--moe_input_jitter_eps", "0.1"}).input_jitter, 0.1);
  EXPECT_EQ(router({"--router_logit_softcapping", "30"}).logit_softcap, 30.0);
  EXPECT_EQ(router({"--moe_router_force_load_balancing", "true", "--moe_router_force_load_balancing_type", "uniform"})
                .balance,
            RouterSpec::Balance::kRandom);
  EXPECT_EQ(router({"--moe_router_force_biased", "-0.5"}).forced_imbalance, -0.5);
  EXPECT_FALSE(router({}).capacity.has_value());
}

TEST(ModelSpecTest, ActivationsByTheirSwitches) {
  using Function = ActivationSpec::Function;
  const auto of = [](std::vector<std::string> words) { return preset_spec("llama3.1_8B", std::move(words)); };
  EXPECT_EQ(of({}).activation.function, Function::kSilu);
  EXPECT_EQ(of({"--squared_relu", "true"}).activation.function, Function::kSquaredRelu);
  EXPECT_EQ(of({"--squared_relu", "true"}).mlp_gate, Part::kAbsent);
  EXPECT_EQ(of({"--openai_gelu", "true"}).activation.function, Function::kTanhGelu);
  EXPECT_EQ(of({"--swiglu", "false"}).activation.function, Function::kGelu);
  // As Megatron's fused kernel computes a biased GELU.
  EXPECT_EQ(of({"--swiglu", "false", "--add_bias_linear", "true"}).activation.function, Function::kTanhGelu);
  EXPECT_EQ(of({"--swiglu", "false", "--add_bias_linear", "true", "--bias_gelu_fusion", "false"}).activation.function,
            Function::kGelu);
}

TEST(ModelSpecTest, ExpertRowsAreBoundedByTheCapacity) {
  RouterSpec router;
  router.num_experts = 8;
  router.top_k = 2;
  EXPECT_EQ(router.num_expert_rows(100), 200);
  router.capacity = ExpertCapacity{.factor = 0.5};
  EXPECT_EQ(router.num_expert_rows(100), 8 * 13);
  router.capacity->factor = 4.0;
  EXPECT_EQ(router.num_expert_rows(100), 200);  // no more rows than choices
  router.capacity->free_rows = ExpertCapacity::FreeRows::kKept;
  EXPECT_EQ(router.num_expert_rows(100), 800);
  router.capacity->factor = 100.0;
  EXPECT_EQ(router.num_expert_rows(100), 800);  // an expert has at most every token
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
