// Every layer against fp64 autograd (reference.hpp), over random sizes and options, fresh memory poisoned.
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include "nn/gqa_attention.hpp"
#include "nn/mla_attention.hpp"
#include "nn/reference.hpp"
#include "nn/rope_tables.hpp"
#include "nn/specs.hpp"
#include "nn/transformer_layer.hpp"
#include "ops/allocator.hpp"

namespace primus {
namespace {

using at::Tensor;
using namespace primus::test;

model::NumericPolicy policy_of(at::ScalarType dtype) {
  return dtype == at::kDouble ? model::float64_policy() : model::NumericPolicy{};
}

nn::StepContext context(const model::ModelSpec& spec, model::BatchShape batch, at::ScalarType dtype,
                        nn::WeightGradTiming timing) {
  return {.mode = nn::Mode::kTraining,
          .weight_grad = timing,
          .batch = batch,
          .rope = nn::rope_tables(spec.rope, batch.seq_length, dtype),
          .aux_scale = 0.5,
          .groups = comm::Groups::single()};
}

/// One layer run forward and backward on random input.
struct LayerRun {
  Tensor y_TH, dx_TH;
  std::unique_ptr<nn::ParameterStore> store;
};

LayerRun run_layer(const model::ModelSpec& spec, int layer, model::BatchShape batch, at::ScalarType dtype,
                   nn::WeightGradTiming timing, const Tensor& x_TH, const Tensor& dy_TH) {
  const model::NumericPolicy policy = policy_of(dtype);
  LayerRun run;
  run.store = std::make_unique<nn::ParameterStore>(model::layer_parameters(spec, layer), policy, 99);
  nn::TransformerLayer transformer(spec, policy, layer, *run.store);
  nn::Saved saved(model::layer_saved(spec, policy, batch, layer));
  const nn::StepContext step = context(spec, batch, dtype, timing);
  saved.allocate(model::LayerSlot::kInput).copy_(x_TH);
  run.y_TH = poisoned({batch.num_tokens(), spec.hidden_size}, dtype);
  transformer.forward(saved, step, run.y_TH);
  run.dx_TH = transformer.backward(dy_TH.clone(), saved, step);
  if (timing == nn::WeightGradTiming::kDeferred) transformer.weight_grad(saved);
  return run;
}

class LayersTest : public ::testing::TestWithParam<int> {
 public:
  static void SetUpTestSuite() {
    ops::install_allocator();
    ops::set_fresh_memory(ops::FreshMemory::kPoisoned);
  }
};

TEST_P(LayersTest, ForwardAndGradientsMatchAutograd) {
  const auto seed = static_cast<std::uint64_t>(GetParam());
  std::mt19937_64 generator(seed + 1000);
  const model::ModelSpec spec = random_mlp_spec(seed);
  const model::BatchShape batch = random_batch(seed);
  for (const int layer : {0, 1}) {
    for (const at::ScalarType dtype : {at::kDouble, at::kFloat}) {
      const Tensor x = random_normal({batch.num_tokens(), spec.hidden_size}, dtype, generator);
      const Tensor dy = random_normal({batch.num_tokens(), spec.hidden_size}, dtype, generator);
      const LayerRun run = run_layer(spec, layer, batch, dtype, nn::WeightGradTiming::kWithBackward, x, dy);

      const ReferenceParameters p = reference_parameters(*run.store);
      const Tensor x64 = leaf64(x);
      Tensor aux = at::zeros({}, at::kDouble);
      const Tensor y64 =
          reference_layer(x64.view({batch.num_sequences, batch.seq_length, spec.hidden_size}), spec, layer, p, &aux);
      ((y64.view(dy.sizes()) * dy.to(at::kDouble)).sum() + aux * 0.5).backward();

      EXPECT_LE(relative_error(run.y_TH, y64.view(dy.sizes())), tolerance(dtype)) << "layer " << layer;
      EXPECT_LE(relative_error(run.dx_TH, x64.grad()), tolerance(dtype)) << "layer " << layer;
      std::string worst;
      EXPECT_LE(worst_gradient_error(*run.store, p, &worst), tolerance(dtype)) << worst;
    }
  }
}

TEST_P(LayersTest, DeferredWeightGradientsAreTheSameBits) {
  const auto seed = static_cast<std::uint64_t>(GetParam());
  std::mt19937_64 generator(seed + 2000);
  const model::ModelSpec spec = random_mlp_spec(seed);
  const model::BatchShape batch = random_batch(seed);
  for (const int layer : {0, 1}) {
    const Tensor x = random_normal({batch.num_tokens(), spec.hidden_size}, at::kFloat, generator);
    const Tensor dy = random_normal({batch.num_tokens(), spec.hidden_size}, at::kFloat, generator);
    const LayerRun now = run_layer(spec, layer, batch, at::kFloat, nn::WeightGradTiming::kWithBackward, x, dy);
    const LayerRun later = run_layer(spec, layer, batch, at::kFloat, nn::WeightGradTiming::kDeferred, x, dy);
    EXPECT_TRUE(at::equal(now.dx_TH, later.dx_TH));
    for (std::size_t i = 0; i < now.store->all().size(); ++i) {
      const nn::Parameter& parameter = *now.store->all()[i];
      if (!parameter.main_grad.defined()) continue;
      EXPECT_TRUE(at::equal(parameter.main_grad, later.store->all()[i]->main_grad)) << parameter.descriptor.name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, LayersTest, ::testing::Range(0, 40));

TEST(LayersFixedTest, InputGradientMatchesFiniteDifferences) {
  ops::install_allocator();
  for (const std::uint64_t seed : {1U, 2U, 3U, 4U}) {
    std::mt19937_64 generator(seed);
    const model::ModelSpec spec = random_mlp_spec(seed);
    const model::BatchShape batch{.num_sequences = 1, .seq_length = 3};
    const Tensor x = random_normal({3, spec.hidden_size}, at::kDouble, generator);
    const Tensor dy = random_normal({3, spec.hidden_size}, at::kDouble, generator);
    // The auxiliary loss's gradient is injected and is no part of the output: left out here.
    model::ModelSpec plain = spec;
    plain.moe->router.losses = {};
    for (const int layer : {0, 1}) {
      const auto loss = [&](const Tensor& point) {
        const LayerRun run =
            run_layer(plain, layer, batch, at::kDouble, nn::WeightGradTiming::kWithBackward, point, dy);
        return (run.y_TH * dy).sum().item<double>();
      };
      const LayerRun run = run_layer(plain, layer, batch, at::kDouble, nn::WeightGradTiming::kWithBackward, x, dy);
      EXPECT_LE(relative_error(run.dx_TH, finite_difference(loss, x)), 1e-6) << "seed " << seed << " layer " << layer;
    }
  }
}

/// Routers that leave experts empty, or send every token to the same ones.
TEST(LayersFixedTest, AllTokensToOneExpert) {
  ops::install_allocator();
  ops::set_fresh_memory(ops::FreshMemory::kPoisoned);
  for (std::uint64_t seed = 50; seed < 60; ++seed) {
    model::ModelSpec spec = random_spec(seed);
    spec.moe->router.num_experts = 7;
    spec.moe->router.top_k = 1 + static_cast<std::int64_t>(seed % 3);
    spec.moe->router.softmax_order = model::SoftmaxOrder::kPre;
    const model::BatchShape batch{.num_sequences = 2, .seq_length = 9};
    std::mt19937_64 generator(seed);
    for (const at::ScalarType dtype : {at::kDouble, at::kFloat}) {
      const model::NumericPolicy policy = policy_of(dtype);
      nn::ParameterStore store(model::layer_parameters(spec, 1), policy, seed);
      Tensor x = random_normal({batch.num_tokens(), spec.hidden_size}, dtype, generator);
      x.select(1, 0).fill_(1.0);
      Tensor router = store.get("decoder.layers.1.mlp.router.weight").weight;
      router.mul_(0.01);
      router.select(1, 0).copy_(at::ones({7}, dtype).cumsum(0, dtype));  // expert 6 first, then 5, 4
      nn::Moe moe(spec, policy, 1, store);
      nn::Saved saved(model::moe_saved(spec, policy, batch, 1));
      const nn::StepContext step = context(spec, batch, dtype, nn::WeightGradTiming::kWithBackward);
      Tensor y = at::zeros({batch.num_tokens(), spec.hidden_size}, dtype);
      moe.forward(x, saved, step, y);
      const Tensor dy = random_normal({batch.num_tokens(), spec.hidden_size}, dtype, generator);
      Tensor dx = poisoned({batch.num_tokens(), spec.hidden_size}, dtype);
      moe.backward(dy, x, saved, step, dx);

      EXPECT_EQ(moe.metrics().tokens_per_expert_E[6].item<std::int64_t>(), batch.num_tokens());
      EXPECT_EQ(moe.metrics().tokens_per_expert_E[0].item<std::int64_t>(), 0);
      const ReferenceParameters p = reference_parameters(store);
      const Tensor x64 = leaf64(x);
      const ReferenceBlock block =
          reference_mlp(x64.view({batch.num_sequences, batch.seq_length, spec.hidden_size}), spec, 1, p);
      ((block.y_BSH.view(dy.sizes()) * dy.to(at::kDouble)).sum() + block.aux_loss * 0.5).backward();
      EXPECT_LE(relative_error(y, block.y_BSH.view(dy.sizes())), tolerance(dtype));
      EXPECT_LE(relative_error(dx, x64.grad()), tolerance(dtype));
      // The layer's other parameters take no part here.
      for (const auto& parameter : store.all()) {
        if (parameter->descriptor.name.find(".mlp.") == std::string::npos || !parameter->main_grad.defined()) continue;
        EXPECT_LE(relative_error(parameter->main_grad, p.at(parameter->descriptor.name).grad()), tolerance(dtype))
            << parameter->descriptor.name;
      }
    }
  }
}

}  // namespace
}  // namespace primus
