#include "nn/parameter.hpp"

#include <gtest/gtest.h>

#include "base/philox.hpp"
#include "nn/specs.hpp"
#include "support/tensors.hpp"

namespace primus {
namespace {

TEST(ParameterTest, ValuesDependOnSeedNameAndIndexOnly) {
  const model::ModelSpec spec = test::random_spec(3);
  nn::ParameterStore one(model::model_parameters(spec), {}, 17);
  at::set_num_threads(1);
  // Another order of construction, another number of threads.
  std::vector<model::ParameterDescriptor> reversed = model::model_parameters(spec);
  std::reverse(reversed.begin(), reversed.end());
  nn::ParameterStore two(reversed, {}, 17);
  at::set_num_threads(2);
  nn::ParameterStore other(model::model_parameters(spec), {}, 18);
  for (const auto& parameter : one.all()) {
    const at::Tensor& weight = parameter->weight;
    EXPECT_TRUE(at::equal(weight, two.get(parameter->descriptor.name).weight));
    if (parameter->descriptor.init.kind == model::InitKind::kNormal) {
      EXPECT_FALSE(at::equal(weight, other.get(parameter->descriptor.name).weight));
      const Philox generator(17, parameter->descriptor.name);
      EXPECT_EQ(weight.flatten()[weight.numel() - 1].item<float>(),
                static_cast<float>(parameter->descriptor.init.std *
                                   generator.normal(static_cast<std::uint64_t>(weight.numel() - 1))));
    }
  }
}

TEST(ParameterTest, StandardDeviationsAreMegatrons) {
  model::ModelSpec spec = test::random_spec(4);
  spec.hidden_size = 256;
  spec.dense_ffn_hidden_size = 512;
  spec.init_std = 0.02;
  nn::ParameterStore store(model::model_parameters(spec), {}, 1);
  const auto std_of = [&](const char* name) { return store.get(name).weight.to(at::kDouble).std().item<double>(); };
  EXPECT_NEAR(std_of("decoder.layers.0.mlp.linear_fc1.weight"), 0.02, 0.0003);
  EXPECT_NEAR(std_of("decoder.layers.0.mlp.linear_fc2.weight"), 0.02 / std::sqrt(2.0 * 2.0), 0.0002);
  EXPECT_EQ(store.get("decoder.final_layernorm.weight").weight.min().item<float>(), 1.0F);
}

// Log-uniform between the ends: a mean of ln(1e-3) and ln(0.1), a spread of a twelfth of their distance squared.
TEST(ParameterTest, StepBiasesHaveSoftplusesBetweenTheEnds) {
  const model::ParameterDescriptor descriptor{
      .name = "dt_bias", .shape = {20'000}, .init = {.kind = model::InitKind::kStepBias, .low = 1e-3, .high = 0.1}};
  at::Tensor bias = at::empty({20'000}, at::kDouble);
  nn::initialise(descriptor, 3, bias);
  const at::Tensor logs = bias.exp().log1p().log();
  EXPECT_GE(logs.min().item<double>(), std::log(1e-3) - 1e-9);
  EXPECT_LE(logs.max().item<double>(), std::log(0.1) + 1e-9);
  EXPECT_NEAR(logs.mean().item<double>(), std::log(1e-2), 0.03);
  EXPECT_NEAR(logs.std().item<double>(), std::log(100.0) / std::sqrt(12.0), 0.02);
}

TEST(ParameterTest, NamesAreUniqueAndUnknownOnesAreRefused) {
  const model::ModelSpec spec = test::random_spec(5);
  nn::ParameterStore store(model::model_parameters(spec), {}, 1);
  EXPECT_THROW(store.get("decoder.layers.9.mlp.linear_fc1.weight"), InternalError);
  std::vector<model::ParameterDescriptor> twice = model::embedding_parameters(spec);
  twice.push_back(twice.front());
  EXPECT_THROW(nn::ParameterStore(twice, {}, 1), InternalError);
}

}  // namespace
}  // namespace primus
