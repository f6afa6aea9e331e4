#include "model/saved_tensors.hpp"

#include <gtest/gtest.h>

#include "model/preset_spec.hpp"

namespace primus::model {
namespace {

using test::preset_spec;

TEST(SavedTensorsTest, DeepSeekV2LiteLayersByHand) {
  const ModelSpec spec = preset_spec("deepseek_v2_lite");
  NumericPolicy policy;
  policy.parameters = policy.activations = DType::kBFloat16;
  const BatchShape batch{.num_sequences = 1, .seq_length = 4096};
  const std::int64_t tokens = 4096;
  // bf16: kv_down 512 + 64, query and key 16·192, value and context 16·128; fp32: one rstd, 16 log-sum-exp.
  const std::int64_t attention = tokens * (2 * (576 + 2 * 16 * 192 + 2 * 16 * 128) + 4 + 4 * 16);
  EXPECT_EQ(mixer_saved(spec, policy, batch, 0).size_bytes(), attention);
  const std::int64_t norms = 2 * tokens * (2 * 2048 + 4);
  EXPECT_EQ(layer_saved(spec, policy, batch, 0).size_bytes(), norms + attention + tokens * 2 * 2 * 10944);
  // Router: 64 logits and 6 probabilities in fp32, 6 indices, 6 rows and 6 slots in int32; 64 slopes, 65 offsets.
  const std::int64_t router = tokens * 4 * (64 + 6 + 3 * 6) + 4 * 64 + 4 * 65;
  const std::int64_t experts = tokens * 6 * 2 * 2 * 1408 + tokens * 2 * 2 * 2816;
  EXPECT_EQ(layer_saved(spec, policy, batch, 1).size_bytes(), norms + attention + router + experts);
}

// Norms on queries and keys: 32 + 2·4 heads of 128 as the projection gave them, and a factor for each normed head.
TEST(SavedTensorsTest, NormsOnQueriesAndKeysByHand) {
  NumericPolicy policy;
  policy.parameters = policy.activations = DType::kBFloat16;
  const BatchShape batch{.num_sequences = 1, .seq_length = 4096};
  const ModelSpec with = preset_spec("qwen3_30B_A3B");
  const std::int64_t fused = 2 * (32 + 2 * 4) * 128;
  const std::int64_t context = 2 * 32 * 128 + 4 * 32;
  EXPECT_EQ(mixer_saved(with, policy, batch, 0).size_bytes(), 4096 * (fused + context + 4 * (32 + 4)));
  const ModelSpec without = preset_spec("qwen3_30B_A3B", {"--qk_layernorm", "False"});
  EXPECT_EQ(mixer_saved(without, policy, batch, 0).size_bytes(), 4096 * (fused + context));
  const ModelSpec gated = preset_spec("qwen3_30B_A3B", {"--attention_output_gate", "True"});
  EXPECT_EQ(mixer_saved(gated, policy, batch, 0).size_bytes(), 4096 * (fused + 2 * 32 * 128 + context + 4 * (32 + 4)));
}

// A layer's mixer keeps what its own kind does; kinds that are not described are never counted as nothing.
TEST(SavedTensorsTest, EachLayerKeepsWhatItsMixerKeeps) {
  ModelSpec spec = preset_spec("qwen3_30B_A3B");
  const BatchShape batch{.num_sequences = 1, .seq_length = 8};
  const std::int64_t attention = mixer_saved(spec, {}, batch, 0).size_bytes();
  for (const MixerKind kind : {MixerKind::kAttention, MixerKind::kGatedDelta, MixerKind::kKimiDelta,
                               MixerKind::kShortConvolution, MixerKind::kUnknown}) {
    spec.mixers.assign(spec.layers.size(), MixerKind::kAttention);
    spec.mixers[3] = kind;
    EXPECT_EQ(mixer_saved(spec, {}, batch, 2).size_bytes(), attention);
    if (has_saved_tensors(kind)) {
      EXPECT_GT(mixer_saved(spec, {}, batch, 3).size_bytes(), 0);
    } else {
      EXPECT_THROW(layer_saved(spec, {}, batch, 3), InternalError);
    }
  }
}

TEST(SavedTensorsTest, FusedLossNeverHoldsTheLogits) {
  const ModelSpec spec = preset_spec("deepseek_v2_lite");
  const NumericPolicy policy;
  const BatchShape batch{.num_sequences = 2, .seq_length = 4096};
  const std::int64_t fused = output_saved(spec, policy, batch, LossFusion::kFused).size_bytes();
  const std::int64_t unfused = output_saved(spec, policy, batch, LossFusion::kUnfused).size_bytes();
  EXPECT_EQ(unfused - fused, batch.num_tokens() * 4 * (spec.padded_vocab_size - spec.hidden_size));
}

TEST(SavedTensorsTest, CategoriesAddUp) {
  const ModelSpec spec = preset_spec("deepseek_v2");
  const SavedDeclaration declaration =
      model_saved(spec, {}, {.num_sequences = 1, .seq_length = 512}, LossFusion::kFused);
  std::int64_t by_category[kNumSavedCategories] = {};
  declaration.add_by_category(by_category);
  std::int64_t sum = 0;
  for (const std::int64_t bytes : by_category) sum += bytes;
  EXPECT_EQ(sum, declaration.size_bytes());
  EXPECT_EQ(declaration.children.size(), 61U);
}

// The choice: one bit a key and token, 128 words of 4096 keys; a layer that shares a choice keeps none.
TEST(SavedTensorsTest, SparseAttentionKeepsItsChoiceAlone) {
  const BatchShape batch{.num_sequences = 2, .seq_length = 4096};
  const ModelSpec dense = preset_spec("deepseek_v3");
  const ModelSpec sparse = test::sparse_spec({"--dsa_indexer_topk_freq", "4", "--dsa_indexer_skip_topk_offset", "3"});
  const std::int64_t without = mixer_saved(dense, {}, batch, 0).size_bytes();
  EXPECT_EQ(mixer_saved(sparse, {}, batch, 2).size_bytes(), without + 2 * 4096 * 128 * 4);
  EXPECT_EQ(mixer_saved(sparse, {}, batch, 3).size_bytes(), without);
  EXPECT_EQ(mixer_saved(sparse, {}, batch, 6).size_bytes(), without + 2 * 4096 * 128 * 4);
}

}  // namespace
}  // namespace primus::model
