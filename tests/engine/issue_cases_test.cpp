// Faults found in the field that no other test of a part shows (docs/numerics.md lists all of them).
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include "ops/allocator.hpp"
#include "ops/gemm/gemm.hpp"
#include "rig.hpp"

namespace primus {
namespace {

using namespace primus::test;

/// Memory that grows with the imbalance, or from step to step: 500 steps in which one expert is preferred more and
/// more.
TEST(IssueCase36And68, MemoryDoesNotFollowTheImbalanceOrTheSteps) {
  ops::install_allocator();
  at::set_num_threads(1);
  model::ModelSpec spec = random_spec(2);
  spec.layers = {model::LayerKind::kMoe};
  model::RouterSpec& router = spec.moe->router;
  router = {};
  router.num_experts = 8;
  router.top_k = 2;
  router.score_function = model::ScoreFunction::kSigmoid;
  router.expert_bias = model::RouterSpec::ExpertBias::kOn;
  const model::BatchShape batch{.num_sequences = 2, .seq_length = 16};
  Rig rig(spec, {}, model::LossFusion::kFused, batch);
  std::mt19937_64 generator(1);
  const Data data = random_data(spec, batch, generator);
  nn::Parameter& bias = rig.store.get("decoder.layers.0.mlp.router.expert_bias");
  engine::StepResult first;
  engine::StepResult last;
  std::int64_t reserved_bytes = 0;
  std::int64_t held_bytes = 0;
  for (int step = 1; step <= 500; ++step) {
    last = rig.step(data, 2, 1e-4);
    if (step == 1) first = last;
    bias.weight.narrow(0, 0, 1).add_(0.01);
    if (step == 3) reserved_bytes = ops::memory_report().reserved_bytes;
    if (step == 3) held_bytes = ops::memory_report().total_bytes;
  }
  EXPECT_EQ(ops::memory_report().total_bytes, held_bytes);
  EXPECT_LE(ops::memory_report().reserved_bytes, reserved_bytes);
  EXPECT_GT(last.expert_loads.at(0).max_over_mean, first.expert_loads.at(0).max_over_mean);
  EXPECT_NEAR(last.expert_loads.at(0).max_over_mean, 4.0, 1e-9) << "every token goes to the preferred expert";
}

/// Imbalance that nobody sees: each step tells the loads' entropy and, with a capacity, the choices that were dropped;
/// evaluation and recomputation count nothing.
TEST(IssueCase86, EntropyAndDroppedChoicesAreThoseOfTheLoads) {
  model::ModelSpec spec = random_spec(4);
  spec.layers = {model::LayerKind::kMoe};
  spec.moe->router = {};
  spec.moe->router.num_experts = 6;
  spec.moe->router.top_k = 2;
  const model::BatchShape batch{.num_sequences = 1, .seq_length = 24};
  std::mt19937_64 generator(2);
  for (const double factor : {0.0, 0.5, 0.9, 6.0}) {
    if (factor > 0.0) spec.moe->router.capacity = model::ExpertCapacity{.factor = factor};
    for (const bool is_remade : {false, true}) {
      engine::StepSettings settings{.micro_batch = batch, .recompute = {}, .loss_scale = {}};
      if (is_remade) settings.recompute.layers = {model::LayerRecompute::kAllButInput};
      Rig rig(spec, settings, {});
      for (const std::int64_t sequences : {1, 3}) {
        const Data data = random_data(spec, {.num_sequences = sequences, .seq_length = batch.seq_length}, generator);
        for (const nn::MicroBatchInput& input : rig.cut(data, 1)) rig.runner.evaluate(input);
        const engine::ExpertLoad load = rig.step(data, 1).expert_loads.at(0);
        double entropy = 0.0;
        std::int64_t beyond = 0;
        for (const std::int64_t tokens : load.num_tokens) {
          const double share = static_cast<double>(tokens) / static_cast<double>(load.num_choices());
          if (tokens > 0) entropy -= share * std::log(share) / std::log(6.0);
          beyond += std::max<std::int64_t>(tokens - static_cast<std::int64_t>(std::ceil(8.0 * factor)), 0);
        }
        EXPECT_EQ(load.num_choices(), sequences * 48);
        EXPECT_NEAR(load.entropy, entropy, 1e-12);
        EXPECT_LT(load.entropy, 1.0);
        ASSERT_EQ(load.num_dropped.has_value(), factor > 0.0);
        if (factor == 0.0) continue;
        // Of one micro-batch the loads say it; of several, each has a capacity of its own, and more is dropped.
        if (sequences == 1) {
          EXPECT_EQ(*load.num_dropped, beyond) << factor;
        }
        EXPECT_GE(*load.num_dropped, beyond - 2 * 6 * static_cast<std::int64_t>(std::ceil(8.0 * factor))) << factor;
        EXPECT_EQ(*load.num_dropped == 0, factor == 6.0);
      }
    }
  }
}

/// A router in low precision flips experts: with bf16 inputs and fp32 logits the choice is that of fp64.
TEST(IssueCase82, LogitsInFp32ChooseTheExpertsOfFp64) {
  std::mt19937_64 generator(3);
  const std::int64_t tokens = 20000;
  const Tensor x = random_normal({tokens, 96}, at::kBFloat16, generator);
  const Tensor w = random_normal({64, 96}, at::kBFloat16, generator, 0.02);
  Tensor logits = at::empty({tokens, 64}, at::kFloat);
  ops::linear_forward(x, w, logits);
  const Tensor exact = x.to(at::kDouble).mm(w.to(at::kDouble).t());
  const auto chosen = [](const Tensor& values) { return std::get<0>(std::get<1>(values.topk(6, -1)).sort(-1)); };
  const double share = chosen(logits).eq(chosen(exact)).all(-1).to(at::kDouble).mean().item<double>();
  EXPECT_GE(share, 0.999);
}

}  // namespace
}  // namespace primus
