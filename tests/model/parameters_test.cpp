// Counts against published totals, and the descriptors' own consistency.
#include "model/parameters.hpp"

#include <gtest/gtest.h>

#include <set>

#include "model/preset_spec.hpp"

namespace primus::model {
namespace {

using test::preset_spec;

struct Published {
  const char* preset;
  std::int64_t total;
  std::int64_t active;
};

class PublishedCountTest : public ::testing::TestWithParam<Published> {};

TEST_P(PublishedCountTest, MatchesToTheLastParameter) {
  const Published expected = GetParam();
  const ModelSpec spec = preset_spec(expected.preset);
  const ParameterCount count = count_parameters(spec);
  EXPECT_EQ(count.total, expected.total);
  EXPECT_EQ(count.active, expected.active);
  std::int64_t by_component = 0;
  for (const std::int64_t part : count.by_component) by_component += part;
  EXPECT_EQ(by_component, count.total);
}

// V3: 671,026,404,352 and 58·256 expert biases; active likewise with the biases.
INSTANTIATE_TEST_SUITE_P(DeepSeek, PublishedCountTest,
                         ::testing::Values(Published{"deepseek_v2_lite", 15'706'484'224, 2'661'150'208},
                                           Published{"deepseek_v2", 235'741'434'880, 21'375'800'320},
                                           Published{"deepseek_v3", 671'026'419'200, 37'552'282'624 + 58 * 256}));

TEST(ParametersTest, MultiTokenPredictionOfDeepSeekV3) {
  // 682,636,472,320 with one depth and no biases; the depth's own layer carries one bias vector more.
  const ModelSpec spec = preset_spec("deepseek_v3");
  EXPECT_EQ(count_mtp_parameters(spec), 682'636'472'320 - 671'026'404'352 + 256);
}

/// Part by part as in transformers' models of the same sizes; beside them biases of experts, where they steer, and
/// tables of experts.
TEST(ParametersTest, PartsOfDeepSeekV4) {
  struct Parts {
    const char* preset;
    std::int64_t attention, gates, biases, experts, shared, norms;
  };
  constexpr std::int64_t kTables = 3 * 129'280 * 6;
  for (const Parts& parts :
       {Parts{"deepseek_v4_flash", 5'086'317'888, 45'088'768, 40 * 256, 277'025'390'592, 1'082'130'432, 356'352},
        Parts{"deepseek_v4_pro", 19'465'103'232, 167'903'232, 58 * 384, 1'547'396'186'112, 4'029'677'568, 881'664}}) {
    const ParameterCount count = count_parameters(preset_spec(parts.preset));
    const auto of = [&](Component component) { return count.by_component[static_cast<int>(component)]; };
    EXPECT_EQ(of(Component::kAttention), parts.attention) << parts.preset;
    EXPECT_EQ(of(Component::kRouter), parts.gates + parts.biases + kTables) << parts.preset;
    EXPECT_EQ(of(Component::kExperts), parts.experts) << parts.preset;
    EXPECT_EQ(of(Component::kSharedExperts), parts.shared) << parts.preset;
    EXPECT_EQ(of(Component::kNorm), parts.norms) << parts.preset;
  }
}

TEST(ParametersTest, ListAndCountAgree) {
  for (const char* preset :
       {"deepseek_v2_lite", "deepseek_v2", "deepseek_v3", "deepseek_v2_tiny", "deepseek_v4_flash"}) {
    const ModelSpec spec = preset_spec(preset);
    std::int64_t total = 0;
    std::set<std::string> names;
    for (const ParameterDescriptor& parameter : model_parameters(spec)) {
      total += parameter.num_elements();
      EXPECT_TRUE(names.insert(parameter.name).second) << parameter.name;
    }
    EXPECT_EQ(total, count_parameters(spec).total) << preset;
  }
}

// An indexer: queries from the latent vector, keys with a LayerNorm, weights of its heads; layers that share have none.
TEST(ParametersTest, IndexersOfSparseAttention) {
  const std::int64_t dense = count_parameters(preset_spec("deepseek_v3")).total;
  const std::int64_t indexer = 64 * 128 * 1536 + 7168 * (128 + 64) + 2 * 128;
  EXPECT_EQ(count_parameters(test::sparse_spec()).total - dense, 61 * indexer);
  const ModelSpec shared = test::sparse_spec({"--dsa_indexer_topk_freq", "4", "--dsa_indexer_skip_topk_offset", "3"});
  EXPECT_EQ(count_parameters(shared).total - dense, 17 * indexer);
  std::int64_t listed = 0;
  for (const ParameterDescriptor& parameter : model_parameters(shared)) listed += parameter.num_elements();
  EXPECT_EQ(listed, count_parameters(shared).total);
}

TEST(ParametersTest, ShardsAndHuggingFaceSlicesCoverTheirAxis) {
  for (const char* preset : {"deepseek_v2_lite", "deepseek_v3"}) {
    for (const ParameterDescriptor& parameter : model_parameters(preset_spec(preset))) {
      for (const Shard& shard : parameter.shards) {
        ASSERT_LT(shard.axis, static_cast<int>(parameter.shape.size())) << parameter.name;
        std::int64_t covered = 0;
        for (const std::int64_t segment : shard.segments) covered += segment;
        if (!shard.segments.empty()) {
          EXPECT_EQ(covered, parameter.shape[static_cast<std::size_t>(shard.axis)]) << parameter.name;
        }
      }
      ASSERT_FALSE(parameter.hugging_face.empty()) << parameter.name;
      std::int64_t row = 0;
      for (const HuggingFaceSlice& slice : parameter.hugging_face) {
        EXPECT_EQ(slice.begin, row) << parameter.name;
        row = slice.end;
      }
      const std::size_t row_axis = parameter.component == Component::kExperts ? 1 : 0;
      EXPECT_EQ(row, parameter.shape[row_axis]) << parameter.name;
    }
  }
}

TEST(ParametersTest, VectorsAndBuffersDoNotDecay) {
  for (const ParameterDescriptor& parameter : model_parameters(preset_spec("deepseek_v3"))) {
    EXPECT_EQ(parameter.decay == Decay::kNo, parameter.shape.size() == 1) << parameter.name;
    const bool is_bias = parameter.name.find("expert_bias") != std::string::npos;
    EXPECT_EQ(parameter.trained == Trained::kNo, is_bias) << parameter.name;
  }
}

}  // namespace
}  // namespace primus::model
