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

}  // namespace
}  // namespace primus::model
