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

}  // namespace
}  // namespace primus::model
