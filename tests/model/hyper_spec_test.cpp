// Several residual streams: what keys make of them, their parameters, what is kept, FLOPs. Numbers by hand.
#include <gtest/gtest.h>

#include "model/flops.hpp"
#include "model/parameters.hpp"
#include "model/preset_spec.hpp"
#include "model/saved_tensors.hpp"

namespace primus::model {
namespace {

using test::preset_spec;

// V2-Lite: 27 layers, hidden 2048.
constexpr std::int64_t kLayers = 27, kHidden = 2048;

ModelSpec four_streams(std::vector<std::string> more = {}) {
  std::vector<std::string> words = {"--hc_mult", "4", "--hc_use_sinkhorn", "true"};
  words.insert(words.end(), more.begin(), more.end());
  return preset_spec("deepseek_v2_lite", words);
}

std::int64_t count_of(const ModelSpec& spec) {
  return count_parameters(spec).by_component[static_cast<int>(Component::kHyperConnections)];
}

TEST(HyperSpecTest, OneStreamIsAPlainModel) {
  const ModelSpec spec = preset_spec("deepseek_v2_lite");
  EXPECT_FALSE(spec.hyper.has_value());
  EXPECT_EQ(spec.residual_width(), kHidden);
  EXPECT_EQ(count_of(spec), 0);
}

TEST(HyperSpecTest, KeysOfDeepSeek) {
  const ModelSpec spec = four_streams({"--hc_sinkhorn_iters", "7", "--hc_eps", "1e-4"});
  ASSERT_TRUE(spec.hyper.has_value());
  EXPECT_EQ(spec.residual_width(), 4 * kHidden);
  EXPECT_EQ(spec.hyper->sinkhorn_iterations, 7);
  EXPECT_EQ(spec.hyper->epsilon, 1e-4);
  EXPECT_EQ(spec.hyper->norm_epsilon, spec.norm_epsilon);
  EXPECT_EQ(spec.hyper->form, HyperSpec::Form::kDeepSeek);
  EXPECT_EQ(preset_spec("deepseek_v2_lite", {"--hc_mult", "2"}).hyper->sinkhorn_iterations, 0);
  const ModelSpec released = preset_spec("deepseek_v4_flash");
  EXPECT_EQ(released.hyper->num_streams, 4);
  EXPECT_EQ(released.hyper->sinkhorn_iterations, 20);
}

TEST(HyperSpecTest, KeysOfMegatron) {
  const ModelSpec spec = preset_spec("deepseek_v2_lite", {"--enable_mhc_connections", "true"});
  EXPECT_EQ(spec.hyper->num_streams, 4);
  EXPECT_EQ(spec.hyper->sinkhorn_iterations, 20);
  EXPECT_EQ(spec.hyper->form, HyperSpec::Form::kMegatron);
  EXPECT_EQ(count_of(spec), kLayers * 2 * (24 * 4 * kHidden + 24 + 3));
  for (const ParameterDescriptor& parameter : layer_parameters(spec, 3)) {
    if (!parameter.name.ends_with("hyper_connection.scale")) continue;
    EXPECT_EQ(parameter.init.kind, InitKind::kConstant);
    EXPECT_EQ(parameter.init.value, 0.01);
  }
}

TEST(HyperSpecTest, Parameters) {
  const ModelSpec spec = four_streams();
  EXPECT_EQ(count_of(spec), kLayers * 2 * (24 * 4 * kHidden + 24 + 3) + 4 * 4 * kHidden + 4 + 1);
  std::vector<std::string> theirs;
  for (const ParameterDescriptor& parameter :
       training_parameters(four_streams({"--mtp_num_layers", "1", "--mtp_use_separate_hc_head", "true"}))) {
    if (parameter.component != Component::kHyperConnections) continue;
    EXPECT_EQ(parameter.tensor_gradient, TensorGradient::kPartial) << parameter.name;
    EXPECT_EQ(parameter.decay == Decay::kYes, parameter.name.ends_with(".weight")) << parameter.name;
    if (parameter.layer < 1 || parameter.layer >= kLayers) theirs.push_back(parameter.hugging_face.at(0).name);
  }
  EXPECT_EQ(theirs,
            (std::vector<std::string>{
                "model.layers.0.attn_hc.fn", "model.layers.0.attn_hc.base", "model.layers.0.attn_hc.scale",
                "model.layers.0.ffn_hc.fn", "model.layers.0.ffn_hc.base", "model.layers.0.ffn_hc.scale",
                "model.hc_head.hc_fn", "model.hc_head.hc_base", "model.hc_head.hc_scale", "model.layers.27.attn_hc.fn",
                "model.layers.27.attn_hc.base", "model.layers.27.attn_hc.scale", "model.layers.27.ffn_hc.fn",
                "model.layers.27.ffn_hc.base", "model.layers.27.ffn_hc.scale", "model.layers.27.hc_head.hc_fn",
                "model.layers.27.hc_head.hc_base", "model.layers.27.hc_head.hc_scale"}));
}

TEST(HyperSpecTest, AHalfKeepsItsStreamsTheirProductsAndItsOutput) {
  const NumericPolicy bf16{.parameters = DType::kBFloat16, .activations = DType::kBFloat16};
  const BatchShape batch{.num_sequences = 1, .seq_length = 100};
  const auto residual = [&](const SavedDeclaration& declared) {
    std::int64_t bytes = 0;
    for (const SavedTensor& tensor : declared.tensors) {
      if (tensor.category == SavedCategory::kResidual) bytes += tensor.size_bytes();
    }
    return bytes;
  };
  EXPECT_EQ(residual(layer_saved(preset_spec("deepseek_v2_lite"), bf16, batch, 0)), 2 * 100 * kHidden * 2);
  EXPECT_EQ(residual(layer_saved(four_streams(), bf16, batch, 0)), 2 * 100 * (5 * kHidden * 2 + 24 * 4));
  EXPECT_EQ(residual(output_saved(four_streams(), bf16, batch, LossFusion::kFused)), 100 * (4 * kHidden * 2 + 4 * 4));
}

TEST(HyperSpecTest, Flops) {
  const FlopsPerToken plain = flops_per_token(preset_spec("deepseek_v2_lite"));
  const FlopsPerToken streams = flops_per_token(four_streams());
  // The products; reading, writing and mixing; and the head's.
  EXPECT_EQ(streams.hyper_connections, 2 * kLayers * 2 * (4 * kHidden * 24 + kHidden * (4 + 4 + 16)));
  EXPECT_EQ(streams.output - plain.output, 2 * (4 * kHidden * 4 + 4 * kHidden));
  EXPECT_EQ(streams.forward() - plain.forward(), streams.hyper_connections + streams.output - plain.output);
}

}  // namespace
}  // namespace primus::model
