// Recomputation as an experiment says it, and the bytes that it saves, by hand.
#include "model/recompute.hpp"

#include <gtest/gtest.h>

#include "model/pass_peaks.hpp"
#include "model/preset_spec.hpp"

namespace primus::model {
namespace {

using test::preset_experiment;
using enum LayerRecompute;

RecomputeSpec recompute_of(std::vector<std::string> overrides) {
  const config::Experiment experiment = preset_experiment("deepseek_v2_lite", std::move(overrides));
  return recompute_spec(experiment, build_model_spec(experiment));
}

constexpr BatchShape kBatch{.num_sequences = 1, .seq_length = 4096};
constexpr std::int64_t kTokens = 4096;

NumericPolicy bf16() {
  NumericPolicy policy;
  policy.parameters = policy.activations = DType::kBFloat16;
  return policy;
}

SavedDeclaration declared(const ModelSpec& spec, const RecomputeSpec& recompute) {
  SavedDeclaration model = model_saved(spec, bf16(), kBatch, LossFusion::kFused);
  mark_recomputed(spec, recompute, model);
  return model;
}

TEST(RecomputeSpecTest, NothingByDefault) {
  const RecomputeSpec recompute = recompute_of({});
  EXPECT_TRUE(recompute.layers.empty());
  EXPECT_TRUE(recompute.modules.empty());
}

TEST(RecomputeSpecTest, UniformKeepsTheFirstInputOfEachGroup) {
  const RecomputeSpec recompute =
      recompute_of({"--num_layers", "5", "--moe_layer_freq", "([0]*1+[1]*4)", "--recompute_granularity", "full",
                    "--recompute_method", "uniform", "--recompute_num_layers", "2"});
  EXPECT_EQ(recompute.layers, (std::vector{kAllButInput, kAll, kAllButInput, kAll, kAllButInput}));
}

TEST(RecomputeSpecTest, BlockTakesTheFirstLayersAndNoDepth) {
  const RecomputeSpec recompute =
      recompute_of({"--num_layers", "4", "--moe_layer_freq", "([0]*1+[1]*3)", "--mtp_num_layers", "1",
                    "--recompute_granularity", "full", "--recompute_method", "block", "--recompute_num_layers", "3"});
  EXPECT_EQ(recompute.layers, (std::vector{kAllButInput, kAllButInput, kAllButInput, kNone}));
  EXPECT_EQ(recompute.of(4), kNone);
  const RecomputeSpec more =
      recompute_of({"--num_layers", "4", "--moe_layer_freq", "([0]*1+[1]*3)", "--recompute_granularity", "full",
                    "--recompute_method", "block", "--recompute_num_layers", "4"});
  EXPECT_EQ(more.layers, std::vector(4, kAllButInput));
}

TEST(RecomputeSpecTest, NamedLayersReachTheDepths) {
  for (const char* text : {"1,4", "[1, 4]"}) {
    const RecomputeSpec recompute =
        recompute_of({"--num_layers", "4", "--moe_layer_freq", "([0]*1+[1]*3)", "--mtp_num_layers", "1",
                      "--recompute_granularity", "full", "--recompute_layer_ids", text});
    EXPECT_EQ(recompute.layers, (std::vector{kNone, kAllButInput, kNone, kNone, kAllButInput})) << text;
  }
}

TEST(RecomputeSpecTest, SelectiveMeansCoreAttentionUnlessItSaysMore) {
  EXPECT_EQ(recompute_of({"--recompute_granularity", "selective"}).modules,
            std::vector{RecomputeModule::kCoreAttention});
  EXPECT_EQ(
      recompute_of({"--recompute_granularity", "selective", "--recompute_modules", "[moe_act, mla_up_proj]"}).modules,
      (std::vector{RecomputeModule::kMoeActivation, RecomputeModule::kMlaUpProjection}));
  EXPECT_EQ(recompute_of({"--moe_layer_recompute", "True"}).modules, std::vector{RecomputeModule::kMoe});
}

TEST(RecomputeSpecTest, BytesByHand) {
  const ModelSpec spec = test::preset_spec("deepseek_v2_lite");  // 27 layers, the first dense
  const std::int64_t whole = declared(spec, {}).size_bytes();
  const auto saved = [&](RecomputeSpec recompute) { return whole - declared(spec, recompute).size_bytes(); };
  const auto module = [&](RecomputeModule m) { return saved({.layers = {}, .modules = {m}}); };
  // Context of 16 heads of 128 in bf16, and their log-sum-exp in fp32.
  EXPECT_EQ(module(RecomputeModule::kCoreAttention), 27 * kTokens * 16 * (2 * 128 + 4));
  EXPECT_EQ(module(RecomputeModule::kMlaUpProjection), 27 * kTokens * 16 * 2 * (192 + 192 + 128));
  EXPECT_EQ(module(RecomputeModule::kMlp), kTokens * 2 * 2 * 10944);
  EXPECT_EQ(module(RecomputeModule::kSharedExperts), 26 * kTokens * 2 * 2 * 2816);
  // The last: offsets, and the slopes of one sequence's balancing loss.
  EXPECT_EQ(module(RecomputeModule::kMoe),
            26 * (kTokens * (4 * (64 + 6 + 3 * 6) + 6 * 2 * 2 * 1408 + 2 * 2 * 2816) + 4 * 65 + 4 * 64));
  EXPECT_EQ(module(RecomputeModule::kLayerNorm), 0);
  EXPECT_EQ(module(RecomputeModule::kMoeActivation), 0);
  const RecomputeSpec each{.layers = std::vector(27, kAllButInput), .modules = {}};
  const std::int64_t output = output_saved(spec, bf16(), kBatch, LossFusion::kFused).size_bytes();
  EXPECT_EQ(declared(spec, each).size_bytes(), 27 * kTokens * 2048 * 2 + output);
}

TEST(RecomputeSpecTest, PeakIsOneLayerMoreThanWhatIsKept) {
  const ModelSpec spec = test::preset_spec("deepseek_v2_lite");
  const SavedDeclaration plain = declared(spec, {});
  const auto peaks = [&](const SavedDeclaration& stage) {
    const NumericPolicy policy = bf16();
    return pass_peaks(
        {.spec = spec, .policy = policy, .batch = kBatch, .fusion = LossFusion::kFused, .content = whole_model(spec)},
        stage);
  };
  EXPECT_EQ(peaks(plain).forward.saved, plain.size_bytes());
  EXPECT_EQ(peaks(plain).backward.saved, plain.size_bytes());
  const SavedDeclaration each = declared(spec, {.layers = std::vector(27, kAllButInput), .modules = {}});
  const std::int64_t layer = layer_saved(spec, bf16(), kBatch, 26).size_bytes();
  const std::int64_t inputs = 27 * kTokens * 2048 * 2;
  EXPECT_EQ(peaks(each).backward.saved, inputs + layer - kTokens * 2048 * 2);
}

}  // namespace
}  // namespace primus::model
