// FLOPs a token against the reference values of Megatron's formula at sequence 4096.
#include "model/flops.hpp"

#include <gtest/gtest.h>

#include "model/preset_spec.hpp"

namespace primus::model {
namespace {

using test::preset_spec;

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

}  // namespace
}  // namespace primus::model
