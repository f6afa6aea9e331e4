// The whole model and the step runner: loss and every gradient against autograd, independence of how a global batch is
// cut up, fused against unfused loss, what is held against what is declared, and states that must not change.
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include "engine/step_runner.hpp"
#include "nn/reference.hpp"
#include "nn/rig.hpp"
#include "nn/rope_tables.hpp"
#include "nn/specs.hpp"
#include "ops/allocator.hpp"

namespace primus {
namespace {

using at::Tensor;
using namespace primus::test;

class ModelTest : public ::testing::TestWithParam<int> {
 public:
  static void SetUpTestSuite() {
    ops::install_allocator();
    ops::set_fresh_memory(ops::FreshMemory::kPoisoned);
  }
  std::uint64_t seed() const { return static_cast<std::uint64_t>(GetParam()) + 300; }
};

TEST_P(ModelTest, LossAndEveryGradientMatchAutograd) {
  std::mt19937_64 generator(seed());
  const model::ModelSpec spec = random_mlp_spec(seed());
  const model::BatchShape batch = random_batch(seed());
  const Data data = random_data(spec, batch, generator);
  for (const auto fusion : {model::LossFusion::kFused, model::LossFusion::kUnfused}) {
    for (const bool in_fp64 : {true, false}) {
      const model::NumericPolicy policy = in_fp64 ? model::float64_policy() : model::NumericPolicy{};
      Rig rig(spec, policy, fusion, batch);
      const engine::StepResult result = rig.step(data, batch.num_sequences);
      const ReferenceParameters p = reference_parameters(rig.store);
      const ReferenceLoss expected = reference_model(data.ids_BS, data.labels_BS, data.mask_BS, spec, p);
      (expected.loss_sum / data.num_tokens() + expected.aux_loss).backward();
      const double loss = expected.loss_sum.item<double>() / data.num_tokens();
      EXPECT_LE(std::abs(result.loss - loss), (in_fp64 ? 1e-12 : 1e-6) * std::abs(loss));
      std::string worst;
      EXPECT_LE(worst_gradient_error(rig.store, p, &worst), in_fp64 ? 1e-9 : 1e-5) << worst;
    }
  }
}

TEST_P(ModelTest, FusedAndUnfusedLossAgree) {
  std::mt19937_64 generator(seed());
  const model::ModelSpec spec = random_mlp_spec(seed());
  const model::BatchShape batch = random_batch(seed());
  const Data data = random_data(spec, batch, generator);
  for (const bool in_fp64 : {true, false}) {
    const model::NumericPolicy policy = in_fp64 ? model::float64_policy() : model::NumericPolicy{};
    Rig fused(spec, policy, model::LossFusion::kFused, batch);
    Rig unfused(spec, policy, model::LossFusion::kUnfused, batch);
    const double a = fused.step(data, batch.num_sequences).loss;
    const double b = unfused.step(data, batch.num_sequences).loss;
    EXPECT_LE(std::abs(a - b), 1e-6 * std::abs(b));
    EXPECT_LE(worst_difference(fused.store, unfused.store), in_fp64 ? 1e-12 : 1e-5);
  }
}

TEST_P(ModelTest, OneAndFourMicroBatchesAgree) {
  std::mt19937_64 generator(seed());
  model::ModelSpec spec = random_mlp_spec(seed());
  // The plain and the global loss are defined per micro-batch (decision 12).
  model::RouterLosses& losses = spec.moe->router.losses;
  losses.seq_aux += std::exchange(losses.aux, 0.0);
  losses.global_aux = 0.0;
  const model::BatchShape all{.num_sequences = 4, .seq_length = random_batch(seed()).seq_length};
  const Data data = random_data(spec, all, generator);
  for (const bool in_fp64 : {true, false}) {
    const model::NumericPolicy policy = in_fp64 ? model::float64_policy() : model::NumericPolicy{};
    Rig one(spec, policy, model::LossFusion::kFused, all);
    const engine::StepResult expected = one.step(data, 4);
    for (const std::int64_t sequences : {1, 2}) {
      Rig many(spec, policy, model::LossFusion::kFused, {.num_sequences = sequences, .seq_length = all.seq_length});
      const engine::StepResult result = many.step(data, sequences);
      EXPECT_LE(std::abs(result.loss - expected.loss), 1e-6 * std::abs(expected.loss));
      EXPECT_NEAR(result.load_balancing_loss, expected.load_balancing_loss, 1e-5);
      EXPECT_LE(worst_difference(many.store, one.store), in_fp64 ? 1e-12 : 1e-5) << sequences;
    }
  }
}

TEST_P(ModelTest, HeldBytesAreTheDeclaredOnes) {
  std::mt19937_64 generator(seed());
  const model::ModelSpec spec = random_mlp_spec(seed());
  const model::BatchShape batch = random_batch(seed());
  for (const auto fusion : {model::LossFusion::kFused, model::LossFusion::kUnfused}) {
    const model::NumericPolicy policy;
    Rig rig(spec, policy, fusion, batch);
    const Data data = random_data(spec, batch, generator);
    const std::vector<nn::MicroBatchInput> micro_batches = rig.cut(data, batch.num_sequences);
    const model::SavedDeclaration declaration = model::model_saved(spec, policy, batch, fusion);
    nn::StepContext step{.batch = batch, .rope = nn::rope_tables(spec.rope, batch.seq_length, at::kFloat)};
    nn::Saved saved(declaration);
    const ops::MemoryReport before = ops::memory_report();
    rig.model.forward(micro_batches[0], saved, step);
    const ops::MemoryReport after = ops::memory_report();
    expect_held_as_declared(before, after, declaration);
    rig.model.backward(micro_batches[0], saved, step);
    EXPECT_EQ(ops::memory_report().total_bytes, before.total_bytes) << "backward leaves nothing behind";
  }
}

TEST_P(ModelTest, EvaluationChangesNothing) {
  std::mt19937_64 generator(seed());
  const model::ModelSpec spec = random_mlp_spec(seed());
  const model::BatchShape batch = random_batch(seed());
  const Data data = random_data(spec, batch, generator);
  Rig rig(spec, {}, model::LossFusion::kFused, batch);
  const engine::StepResult trained = rig.step(data, batch.num_sequences);
  std::vector<Tensor> before;
  for (const auto& parameter : rig.store.all()) {
    before.push_back(parameter->weight.clone());
    if (parameter->main_grad.defined()) before.push_back(parameter->main_grad.clone());
  }
  const Tensor counts = rig.model.layers()[1].moe()->metrics().tokens_per_expert_E.clone();
  const std::int64_t held = ops::memory_report().total_bytes;
  const double loss = rig.runner.evaluate(rig.cut(data, batch.num_sequences)[0]) / data.num_tokens();
  EXPECT_LE(std::abs(loss - trained.loss), 1e-6 * std::abs(trained.loss));
  EXPECT_EQ(ops::memory_report().total_bytes, held);
  EXPECT_TRUE(at::equal(counts, rig.model.layers()[1].moe()->metrics().tokens_per_expert_E));
  std::size_t i = 0;
  for (const auto& parameter : rig.store.all()) {
    EXPECT_TRUE(at::equal(parameter->weight, before[i++]));
    if (parameter->main_grad.defined()) {
      EXPECT_TRUE(at::equal(parameter->main_grad, before[i++]));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, ModelTest, ::testing::Range(0, 15));

TEST(ModelFixedTest, StepRunsWeightGradActionsToTheSameBits) {
  ops::install_allocator();
  std::mt19937_64 generator(1);
  model::ModelSpec spec = random_spec(301);
  spec.output_weight = model::OutputWeight::kOwn;  // tied: the two sums into one gradient would change places
  const model::BatchShape batch{.num_sequences = 1, .seq_length = 7};
  const Data data = random_data(spec, {.num_sequences = 2, .seq_length = 7}, generator);
  Rig together(spec, {}, model::LossFusion::kUnfused, batch);
  Rig apart(spec, {}, model::LossFusion::kUnfused, batch);
  together.step(data, 1);
  const std::vector<nn::MicroBatchInput> micro_batches = apart.cut(data, 1);
  using schedule::ActionKind;
  const std::vector<schedule::Action> actions = {
      {ActionKind::kForward, {0}, {}},        {ActionKind::kForward, {1}, {}},     {ActionKind::kBackward, {0}, {}},
      {ActionKind::kBackward, {1}, {}},       {ActionKind::kWeightGrad, {0}, {}},  {ActionKind::kWeightGrad, {1}, {}},
      {ActionKind::kReduceGradients, {}, {}}, {ActionKind::kOptimizerStep, {}, {}}};
  apart.runner.run(actions, {.micro_batches = micro_batches, .num_tokens = data.num_tokens()});
  EXPECT_EQ(worst_difference(apart.store, together.store), 0.0);
}

TEST(ModelFixedTest, NonFiniteGradientIsNamedAndLeavesTheWeights) {
  ops::install_allocator();
  std::mt19937_64 generator(2);
  const model::ModelSpec spec = random_spec(302);
  const model::BatchShape batch{.num_sequences = 2, .seq_length = 5};
  const Data data = random_data(spec, batch, generator);
  Rig rig(spec, {}, model::LossFusion::kFused, batch);
  rig.store.get("decoder.layers.1.pre_mlp_layernorm.weight").weight.fill_(std::numeric_limits<float>::infinity());
  const Tensor before = rig.store.get("embedding.word_embeddings.weight").weight.clone();
  const engine::StepResult diverged = rig.step(data, 2, 0.1);  // NaN logits: the router names the token
  EXPECT_EQ(diverged.outcome, engine::StepOutcome::kSkippedNonFinite);
  EXPECT_NE(diverged.nonfinite.find("router: token 0"), std::string::npos) << diverged.nonfinite;
  EXPECT_NE(diverged.nonfinite.find("decoder.layers.1.pre_mlp_layernorm.weight"), std::string::npos);
  rig.store.get("decoder.layers.1.pre_mlp_layernorm.weight").weight.fill_(1.0);
  rig.store.get("decoder.final_layernorm.weight").weight.fill_(3e38);
  const engine::StepResult result = rig.step(data, 2, 0.1);
  EXPECT_EQ(result.outcome, engine::StepOutcome::kSkippedNonFinite);
  EXPECT_NE(result.nonfinite.find("first parameter"), std::string::npos) << result.nonfinite;
  EXPECT_NE(result.nonfinite.find(".weight"), std::string::npos) << result.nonfinite;
  EXPECT_EQ(rig.optimizer.num_steps(), 0);
  EXPECT_TRUE(at::equal(before, rig.store.get("embedding.word_embeddings.weight").weight));
}

model::ModelSpec biased_spec() {
  model::ModelSpec spec = random_spec(304);
  model::RouterSpec& router = spec.moe->router;
  router.num_experts = 6;
  router.top_k = 2;
  router.score_function = model::ScoreFunction::kSigmoid;
  router.expert_bias = model::RouterSpec::ExpertBias::kOn;
  router.expert_bias_rate = 0.25;
  router.losses = {.seq_aux = 0.1, .z = 0.01};
  router.input_jitter = 0.2;
  return spec;
}

/// Jitter and expert biases do not see how a global batch is cut (decision 12): the bias moves once a step, by the
/// counts of all its micro-batches.
TEST(ModelFixedTest, ExpertBiasAndJitterDoNotDependOnTheMicroBatch) {
  ops::install_allocator();
  const model::ModelSpec spec = biased_spec();
  const Data data = [&] {
    std::mt19937_64 generator(4);
    return random_data(spec, {.num_sequences = 4, .seq_length = 9}, generator);
  }();
  const char* name = "decoder.layers.1.mlp.router.expert_bias";
  Rig one(spec, model::float64_policy(), model::LossFusion::kFused, {.num_sequences = 4, .seq_length = 9});
  const engine::StepResult expected = one.step(data, 4, 0.1);
  const Tensor moved = one.store.get(name).weight;
  EXPECT_EQ(moved.abs().max().item<double>(), 0.25);
  for (const std::int64_t sequences : {1, 2}) {
    Rig many(spec, model::float64_policy(), model::LossFusion::kFused, {.num_sequences = sequences, .seq_length = 9});
    const engine::StepResult result = many.step(data, sequences, 0.1);
    EXPECT_LE(std::abs(result.loss - expected.loss), 1e-12 * expected.loss);
    EXPECT_NEAR(result.z_loss, expected.z_loss, 1e-10);
    EXPECT_LE(worst_difference(many.store, one.store), 1e-10);
    EXPECT_TRUE(at::equal(many.store.get(name).weight, moved));
  }
}

TEST(ModelFixedTest, ExpertBiasStandsStillInEvaluationAndInASkippedStep) {
  ops::install_allocator();
  std::mt19937_64 generator(5);
  const model::ModelSpec spec = biased_spec();
  const model::BatchShape batch{.num_sequences = 2, .seq_length = 7};
  const Data data = random_data(spec, batch, generator);
  Rig rig(spec, {}, model::LossFusion::kFused, batch);
  Tensor bias = rig.store.get("decoder.layers.1.mlp.router.expert_bias").weight;
  rig.step(data, 2);
  const Tensor moved = bias.clone();
  rig.runner.evaluate(rig.cut(data, 2)[0]);
  EXPECT_TRUE(at::equal(bias, moved));
  rig.store.get("decoder.final_layernorm.weight").weight.fill_(3e38);
  EXPECT_EQ(rig.step(data, 2).outcome, engine::StepOutcome::kSkippedNonFinite);
  EXPECT_TRUE(at::equal(bias, moved));
}

/// bf16 storage: the same model trained in bf16 and in fp32 stays close over some steps, and its master weights are
/// fp32.
TEST(ModelFixedTest, BFloat16FollowsFloat32) {
  ops::install_allocator();
  std::mt19937_64 generator(3);
  model::ModelSpec spec = random_spec(303);
  spec.init_std = 0.05;
  spec.output_weight = model::OutputWeight::kOwn;
  const model::BatchShape batch{.num_sequences = 2, .seq_length = 16};
  const Data data = random_data(spec, batch, generator);
  model::NumericPolicy bf16;
  bf16.parameters = bf16.activations = DType::kBFloat16;
  Rig wide(spec, {}, model::LossFusion::kFused, batch);
  Rig narrow(spec, bf16, model::LossFusion::kFused, batch);
  double first = 0.0;
  for (int step = 0; step < 20; ++step) {
    const double a = wide.step(data, 2, 1e-2).loss;
    const double b = narrow.step(data, 2, 1e-2).loss;
    if (step == 0) first = a;
    EXPECT_NEAR(a, b, 0.05 * first) << "step " << step;
  }
  EXPECT_LT(wide.step(data, 2, 0.0).loss, 0.8 * first);
  EXPECT_EQ(narrow.store.get("output_layer.weight").weight.scalar_type(), at::kBFloat16);
}

}  // namespace
}  // namespace primus
