// FLOPs a token against the reference values of Megatron's formula at sequence 4096.
#include "model/flops.hpp"

#include <gtest/gtest.h>

#include "model/preset_spec.hpp"

namespace primus::model {
namespace {

using test::preset_spec;
using test::sparse_spec;

TEST(FlopsTest, DeepSeekReferenceValues) {
  EXPECT_EQ(flops_per_token(preset_spec("deepseek_v2_lite")).training(), 16'386'180'096);
  EXPECT_EQ(flops_per_token(preset_spec("deepseek_v2")).training(), 155'014'348'800);
  EXPECT_EQ(flops_per_token(preset_spec("deepseek_v3")).training(), 249'812'054'016);  // without MTP
}

TEST(FlopsTest, OnlyTheAttentionCoreGrowsWithTheSequence) {
  const FlopsPerToken at_4096 = flops_per_token(preset_spec("deepseek_v2_lite"));
  const FlopsPerToken at_2048 = flops_per_token(preset_spec("deepseek_v2_lite", {"--seq_length", "2048"}));
  EXPECT_EQ(at_4096.attention_core, 2 * at_2048.attention_core);
  EXPECT_EQ(at_4096.forward() - at_4096.attention_core, at_2048.forward() - at_2048.attention_core);
}

// Of 4096 tokens a query sees 2048 on average; behind a window of 128, 128 − 128²/8192 = 126.
TEST(FlopsTest, AWindowCountsTheKeysThatAreSeen) {
  const FlopsPerToken half = flops_per_token(preset_spec("gpt_oss_20B_released"));
  const FlopsPerToken full = flops_per_token(preset_spec("gpt_oss_20B_released", {"--sink_sliding_window", "0"}));
  EXPECT_EQ(full.attention_core, 24 * 2 * 64 * 64 * 4096);
  EXPECT_EQ(half.attention_core, 12 * 2 * 64 * 64 * (4096 + 2 * 126));
  EXPECT_EQ(half.forward() - half.attention_core, full.forward() - full.attention_core);
  EXPECT_EQ(flops_per_token(preset_spec("gpt_oss_20B_released", {"--sink_sliding_window", "9999"})).attention_core,
            full.attention_core);
}

// A query looks at the 2048 keys picked of those in its sight: 1536 of 4096 on average. The indexer's heads meet them
// all.
TEST(FlopsTest, SparseAttentionCountsThePickedKeysAndItsIndexer) {
  const FlopsPerToken dense = flops_per_token(preset_spec("deepseek_v3"));
  const FlopsPerToken sparse = flops_per_token(sparse_spec());
  EXPECT_EQ(sparse.attention_core, 61LL * (128 * (192 + 128) * 2 * 1536 + 64 * 128 * 4096));
  EXPECT_EQ(sparse.attention_linear - dense.attention_linear, 61LL * 2 * (64 * 128 * 1536 + 7168 * (128 + 64)));
  const FlopsPerToken shared =
      flops_per_token(sparse_spec({"--dsa_indexer_topk_freq", "4", "--dsa_indexer_skip_topk_offset", "3"}));
  // Layers 1 to 3 choose, then 7, 11, ... 59.
  EXPECT_EQ(shared.attention_linear - dense.attention_linear, 17LL * 2 * (64 * 128 * 1536 + 7168 * (128 + 64)));
  EXPECT_EQ(shared.attention_core, 61LL * 128 * (192 + 128) * 2 * 1536 + 17LL * 64 * 128 * 4096);
}

}  // namespace
}  // namespace primus::model
