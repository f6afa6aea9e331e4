// Whole steps on a GPU beside the same steps on the CPU: loss, every gradient, weights after several updates.
#include <gtest/gtest.h>

#include "engine/cuda_rig.hpp"
#include "ops/adamw/adamw.hpp"
#include "ops/allocator.hpp"

namespace primus {
namespace {

using namespace primus::test;

/// The gradients of a model on the GPU, as a store's on the CPU.
double worst_gradient_difference(const nn::ParameterStore& gpu, const nn::ParameterStore& cpu) {
  double largest_norm = 0.0;
  for (const auto& parameter : cpu.all()) {
    if (parameter->main_grad.defined())
      largest_norm = std::max(largest_norm, parameter->main_grad.norm().item<double>());
  }
  double worst = 0.0;
  for (std::size_t i = 0; i < cpu.all().size(); ++i) {
    const at::Tensor& expected = cpu.all()[i]->main_grad;
    if (!expected.defined()) continue;
    const double error = at::norm(to64(gpu.all()[i]->main_grad) - to64(expected)).item<double>();
    // Relative to its own size, or, for gradients that are all but zero, to a thousandth of the largest.
    worst = std::max(worst, error / std::max(expected.norm().item<double>(), 1e-3 * largest_norm));
  }
  return worst;
}

class CudaStep : public CudaTestWithParam<int> {
 protected:
  std::uint64_t seed() const { return static_cast<std::uint64_t>(GetParam()) + 700; }
};

TEST_P(CudaStep, Fp32StepsEqualTheCpus) {
  std::mt19937_64 generator(seed());
  const model::ModelSpec spec = random_spec(seed());
  const model::BatchShape batch = random_batch(seed());
  for (const auto fusion : {model::LossFusion::kFused, model::LossFusion::kUnfused}) {
    Rig cpu(spec, {}, fusion, batch);
    Rig gpu(spec, {}, fusion, batch, at::kCUDA);
    for (int step = 0; step < 3; ++step) {
      const Data data = random_data(spec, batch, generator);
      const engine::StepResult expected = cpu.step(data, batch.num_sequences, 1e-3);
      const engine::StepResult result = gpu.step(data, batch.num_sequences, 1e-3);
      EXPECT_NEAR(result.loss, expected.loss, 1e-5 * std::abs(expected.loss)) << step;
      EXPECT_NEAR(result.grad_norm, expected.grad_norm, 1e-3 * expected.grad_norm) << step;
      EXPECT_NEAR(result.load_balancing_loss, expected.load_balancing_loss, 1e-4);
      ASSERT_EQ(result.expert_loads.size(), expected.expert_loads.size());
      // Later steps start from weights that differ by rounding, and a top-k choice may fall the other way.
      if (step == 0) {
        EXPECT_LE(worst_gradient_difference(gpu.store, cpu.store), 1e-4);
      }
    }
  }
}

/// As in DeepSeek-V3: scores of their own for each expert, groups, biases that follow the load.
TEST_P(CudaStep, ScoresBiasesAndGroupsEqualTheCpus) {
  std::mt19937_64 generator(seed());
  model::ModelSpec spec = random_spec(seed());
  model::RouterSpec& router = spec.moe->router;
  router.num_experts = 8;
  router.top_k = 2;
  router.score_function = seed() % 4 == 3 ? model::ScoreFunction::kSqrtSoftplus : model::ScoreFunction::kSigmoid;
  router.num_groups = 4;
  router.group_top_k = 2;
  router.expert_bias = model::RouterSpec::ExpertBias::kOn;
  router.expert_bias_rate = 0.05;
  router.losses = {.seq_aux = 0.5, .z = 0.01};
  const model::BatchShape batch = random_batch(seed());
  Rig cpu(spec, {}, model::LossFusion::kFused, batch);
  Rig gpu(spec, {}, model::LossFusion::kFused, batch, at::kCUDA);
  for (int step = 0; step < 2; ++step) {
    const Data data = random_data(spec, batch, generator);
    const engine::StepResult expected = cpu.step(data, batch.num_sequences, 1e-4);
    const engine::StepResult result = gpu.step(data, batch.num_sequences, 1e-4);
    EXPECT_NEAR(result.loss, expected.loss, 1e-5 * std::abs(expected.loss)) << step;
    EXPECT_NEAR(result.z_loss, expected.z_loss, 1e-5 * std::abs(expected.z_loss)) << step;
    if (step == 0) {
      EXPECT_LE(worst_gradient_difference(gpu.store, cpu.store), 1e-4);
    }
    for (std::size_t i = 0; i < cpu.store.all().size(); ++i) {
      const nn::Parameter& parameter = *cpu.store.all()[i];
      if (parameter.descriptor.name.find("expert_bias") == std::string::npos) continue;
      EXPECT_GT(parameter.weight.abs().sum().item<double>(), 0.0);
      EXPECT_TRUE(at::equal(gpu.store.all()[i]->weight.cpu(), parameter.weight)) << parameter.descriptor.name;
    }
  }
}

TEST_P(CudaStep, Fp32StepsRepeatThemselves) {
  std::mt19937_64 generator(seed());
  const model::ModelSpec spec = random_spec(seed());
  const model::BatchShape batch = random_batch(seed());
  const Data data = random_data(spec, batch, generator);
  Rig first(spec, {}, model::LossFusion::kFused, batch, at::kCUDA);
  Rig second(spec, {}, model::LossFusion::kFused, batch, at::kCUDA);
  EXPECT_EQ(first.step(data, batch.num_sequences, 1e-3).loss, second.step(data, batch.num_sequences, 1e-3).loss);
  for (std::size_t i = 0; i < first.store.all().size(); ++i) {
    const nn::Parameter& parameter = *first.store.all()[i];
    EXPECT_TRUE(at::equal(second.store.all()[i]->weight, parameter.weight)) << parameter.descriptor.name;
  }
}

TEST_P(CudaStep, BFloat16StepsAreNearTheCpus) {
  std::mt19937_64 generator(seed());
  const model::ModelSpec spec = aligned_spec(seed());
  const model::BatchShape batch{.num_sequences = 2, .seq_length = 128};
  model::NumericPolicy policy;
  policy.parameters = policy.activations = DType::kBFloat16;
  const Data data = random_data(spec, batch, generator);
  Rig cpu(spec, policy, model::LossFusion::kFused, batch);
  Rig gpu(spec, policy, model::LossFusion::kFused, batch, at::kCUDA);
  Rig again(spec, policy, model::LossFusion::kFused, batch, at::kCUDA);
  const engine::StepResult expected = cpu.step(data, batch.num_sequences);
  const engine::StepResult result = gpu.step(data, batch.num_sequences);
  EXPECT_NEAR(result.loss, expected.loss, 2e-3 * std::abs(expected.loss));
  EXPECT_LE(worst_gradient_difference(gpu.store, cpu.store), 5e-2);
  // Forward repeats itself; cuDNN's attention backward adds in no fixed order unless it is asked to.
  EXPECT_EQ(again.step(data, batch.num_sequences).loss, result.loss);
}

TEST_P(CudaStep, SlowerKernelsGiveTheSameStepButForRounding) {
  const model::ModelSpec spec = aligned_spec(seed());
  const model::BatchShape batch{.num_sequences = 2, .seq_length = 128};
  model::NumericPolicy policy;
  policy.parameters = policy.activations = DType::kBFloat16;
  std::mt19937_64 generator(seed());
  const Data data = random_data(spec, batch, generator);
  using Families = ops::KernelFamilies;
  Rig fast(spec, model::gpu_policy(policy), model::LossFusion::kFused, batch, at::kCUDA);
  const double expected = fast.step(data, batch.num_sequences).loss;
  for (const Families families :
       {Families{.experts = Families::Experts::kOneByOne}, Families{.attention = Families::Attention::kPlain},
        Families{Families::Experts::kOneByOne, Families::Attention::kPlain}}) {
    const WithKernels kernels(families);
    Rig slow(spec, model::gpu_policy(policy), model::LossFusion::kFused, batch, at::kCUDA);
    EXPECT_NEAR(slow.step(data, batch.num_sequences).loss, expected, 1e-3 * std::abs(expected));
    EXPECT_LE(worst_gradient_difference(slow.store, fast.store), 5e-2);
  }
}

TEST_P(CudaStep, BFloat16StepsRepeatThemselvesWhenAsked) {
  const SameBits same_bits;
  std::mt19937_64 generator(seed());
  const model::ModelSpec spec = aligned_spec(seed());
  const model::BatchShape batch{.num_sequences = 2, .seq_length = 640};
  model::NumericPolicy policy;
  policy.parameters = policy.activations = DType::kBFloat16;
  const Data data = random_data(spec, batch, generator);
  Rig first(spec, policy, model::LossFusion::kFused, batch, at::kCUDA);
  Rig second(spec, policy, model::LossFusion::kFused, batch, at::kCUDA);
  for (int step = 0; step < 3; ++step) {
    EXPECT_EQ(first.step(data, batch.num_sequences, 1e-3).loss, second.step(data, batch.num_sequences, 1e-3).loss);
  }
  for (std::size_t i = 0; i < first.store.all().size(); ++i) {
    const nn::Parameter& parameter = *first.store.all()[i];
    EXPECT_TRUE(at::equal(second.store.all()[i]->weight, parameter.weight)) << parameter.descriptor.name;
  }
}

TEST_P(CudaStep, WhatIsNotFiniteIsNamedAndMovesNothing) {
  std::mt19937_64 generator(seed());
  const model::ModelSpec spec = random_spec(seed());
  const model::BatchShape batch{.num_sequences = 1, .seq_length = 7};
  Rig gpu(spec, {}, model::LossFusion::kFused, batch, at::kCUDA);
  nn::Parameter& poisoned_weight = *gpu.store.all()[1];
  poisoned_weight.weight.view({-1})[0].fill_(std::numeric_limits<double>::quiet_NaN());
  const at::Tensor before = gpu.store.all().back()->weight.clone();
  Data data = random_data(spec, batch, generator);
  data.mask_BS.fill_(1.0);
  const engine::StepResult result = gpu.step(data, 1, 1e-2);
  EXPECT_EQ(result.outcome, engine::StepOutcome::kSkippedNonFinite);
  EXPECT_NE(result.nonfinite.find(poisoned_weight.descriptor.name), std::string::npos) << result.nonfinite;
  EXPECT_TRUE(at::equal(before, gpu.store.all().back()->weight));
}

TEST_P(CudaStep, MastersInHalvesEqualWholeOnes) {
  const SameBits same_bits;
  std::mt19937_64 generator(seed());
  const model::ModelSpec spec = aligned_spec(seed());
  const model::BatchShape batch{.num_sequences = 2, .seq_length = 128};
  model::NumericPolicy policy;
  policy.parameters = policy.activations = DType::kBFloat16;
  Rig whole(spec, policy, model::LossFusion::kFused, batch, at::kCUDA);
  Rig halves(spec, model::gpu_policy(policy), model::LossFusion::kFused, batch, at::kCUDA);
  Data data = random_data(spec, batch, generator);
  EXPECT_EQ(whole.step(data, batch.num_sequences, 1e-3).loss, halves.step(data, batch.num_sequences, 1e-3).loss);
  const std::vector<engine::StateTensor> expected = whole.optimizer.state_tensors();
  for (const engine::StateTensor& state : halves.optimizer.state_tensors()) {
    const auto same = std::find_if(expected.begin(), expected.end(), [&](const engine::StateTensor& other) {
      return other.parameter == state.parameter && other.part == state.part;
    });
    ASSERT_NE(same, expected.end());
    const at::Tensor value =
        state.low_bits.defined() ? ops::join_halves(state.tensor.cpu(), state.low_bits.cpu()) : state.tensor.cpu();
    EXPECT_TRUE(at::equal(value, same->tensor.cpu())) << state.parameter;
  }
  // From here on ties, rounded the other way, make a difference.
  data = random_data(spec, batch, generator);
  const double loss = whole.step(data, batch.num_sequences, 1e-3).loss;
  EXPECT_NEAR(halves.step(data, batch.num_sequences, 1e-3).loss, loss, 1e-3 * loss);
}

/// Decision 18: gradients of a step of one micro-batch appear in its backward, those of several stay. Changing between
/// them (a batch that ramps up) leaves nothing of the step before.
TEST_P(CudaStep, GradientsOfOneAndOfSeveralMicroBatchesEqualTheCpus) {
  std::mt19937_64 generator(seed());
  const model::ModelSpec spec = random_spec(seed());
  const model::BatchShape batch{.num_sequences = 1, .seq_length = random_batch(seed()).seq_length};
  const model::BatchShape three{.num_sequences = 3, .seq_length = batch.seq_length};
  Rig cpu(spec, {}, model::LossFusion::kFused, batch);
  Rig gpu(spec, {}, model::LossFusion::kFused, batch, at::kCUDA);
  for (const auto& parameter : gpu.store.all()) EXPECT_FALSE(parameter->main_grad.defined());
  for (const model::BatchShape& of_step : {batch, three, three, batch}) {
    const Data data = random_data(spec, of_step, generator);
    const engine::StepResult expected = cpu.step(data, 1);
    EXPECT_NEAR(gpu.step(data, 1).loss, expected.loss, 1e-5 * std::abs(expected.loss));
    EXPECT_LE(worst_gradient_difference(gpu.store, cpu.store), 1e-4);
  }
}

/// Squares that are added up as gradients are written, and those of a pass of their own, are of the gradients that the
/// optimizer sees.
TEST_P(CudaStep, TheNormIsThatOfTheGradients) {
  std::mt19937_64 generator(seed());
  const model::ModelSpec spec = aligned_spec(seed());
  const model::BatchShape batch{.num_sequences = 1, .seq_length = 128};
  for (const DType type : {DType::kFloat32, DType::kBFloat16}) {
    model::NumericPolicy policy;
    policy.parameters = policy.activations = type;
    Rig rig(spec, policy, model::LossFusion::kFused, batch, at::kCUDA);
    for (const std::int64_t sequences : {1, 2, 1}) {
      const Data data = random_data(spec, {.num_sequences = sequences, .seq_length = batch.seq_length}, generator);
      const double norm = rig.step(data, 1).grad_norm;
      double squares = 0.0;
      int num_squared = 0;
      for (const auto& parameter : rig.store.all()) {
        if (!parameter->is_trained()) continue;
        squares += to64(parameter->main_grad).square().sum().item<double>();
        num_squared += parameter->state == nn::GradientSum::kSquared ? 1 : 0;
      }
      EXPECT_NEAR(norm, std::sqrt(squares), 1e-6 * norm) << sequences;
      EXPECT_EQ(num_squared > 0, sequences == 1);
    }
  }
}

/// Recorded or not, a step gives the same bits: recording and warming up change nothing (D7), and what changes from
/// step to step (data, masks, rates, the number of micro-batches) reaches a recording.
TEST_P(CudaStep, RecordedStepsEqualLaunchedOnes) {
  const SameBits same_bits;
  std::mt19937_64 generator(seed());
  model::ModelSpec spec = aligned_spec(seed());
  spec.moe->router.expert_bias = model::RouterSpec::ExpertBias::kOn;
  spec.moe->router.score_function = model::ScoreFunction::kSigmoid;
  spec.moe->router.balance = model::RouterSpec::Balance::kLearnt;
  const model::BatchShape batch{.num_sequences = 1, .seq_length = 128};
  model::NumericPolicy policy;
  policy.parameters = policy.activations = DType::kBFloat16;
  engine::StepSettings settings = recorded_settings(model::gpu_policy(policy), batch);
  Rig recorded(spec, settings, model::OptimizerSpec{}, at::kCUDA);
  settings.launch = engine::Launch::kOneByOne;
  Rig launched(spec, settings, model::OptimizerSpec{}, at::kCUDA);
  int step = 0;
  for (const std::int64_t sequences : {1, 1, 1, 1, 3, 3, 3, 3, 1, 3, 1}) {
    const Data data = random_data(spec, {.num_sequences = sequences, .seq_length = batch.seq_length}, generator);
    const double rate = 1e-3 / ++step;
    const engine::StepResult expected = launched.step(data, 1, rate);
    const engine::StepResult result = recorded.step(data, 1, rate);
    EXPECT_EQ(result.loss, expected.loss) << step;
    EXPECT_EQ(result.grad_norm, expected.grad_norm) << step;
    ASSERT_EQ(result.expert_loads.size(), expected.expert_loads.size());
    for (std::size_t i = 0; i < result.expert_loads.size(); ++i) {
      EXPECT_EQ(result.expert_loads[i].num_tokens, expected.expert_loads[i].num_tokens) << step;
    }
    for (std::size_t i = 0; i < recorded.store.all().size(); ++i) {
      const nn::Parameter& parameter = *recorded.store.all()[i];
      ASSERT_TRUE(at::equal(launched.store.all()[i]->weight, parameter.weight)) << step << parameter.descriptor.name;
    }
  }
}

/// Random logits depend on the step, so such a step is launched, whatever was asked for.
TEST_P(CudaStep, RandomLogitsAreDrawnAnewInEachStep) {
  const SameBits same_bits;
  std::mt19937_64 generator(seed());
  model::ModelSpec spec = aligned_spec(seed());
  spec.moe->router.balance = model::RouterSpec::Balance::kRandom;
  if (GetParam() % 2 == 1) spec.moe->router.forced_imbalance = -2.0;
  const model::BatchShape batch{.num_sequences = 1, .seq_length = 128};
  model::NumericPolicy policy;
  policy.parameters = policy.activations = DType::kBFloat16;
  engine::StepSettings settings = recorded_settings(model::gpu_policy(policy), batch);
  Rig recorded(spec, settings, model::OptimizerSpec{}, at::kCUDA);
  settings.launch = engine::Launch::kOneByOne;
  Rig launched(spec, settings, model::OptimizerSpec{}, at::kCUDA);
  Rig cpu(spec, {.policy = policy, .micro_batch = batch, .clip_grad = 1.0, .recompute = {}, .loss_scale = {}},
          model::OptimizerSpec{});
  for (int step = 0; step < 5; ++step) {
    const Data data = random_data(spec, batch, generator);
    std::vector<std::vector<std::int64_t>> loads;
    for (Rig* rig : {&recorded, &launched, &cpu}) {
      rig->first_sample = step;
      const engine::StepResult result = rig->step(data, 1);
      for (const engine::ExpertLoad& load : result.expert_loads) loads.push_back(load.num_tokens);
    }
    const std::size_t layers = loads.size() / 3;
    ASSERT_GT(layers, 0U);
    for (std::size_t i = 0; i < 2 * layers; ++i) EXPECT_EQ(loads[i], loads[i + layers]) << step;
  }
}

/// Giving the device a step waits for nothing, launched or recorded; its result is there when it is asked for later.
TEST_P(CudaStep, NoStepWaitsForTheDevice) {
  std::mt19937_64 generator(seed());
  const model::ModelSpec spec = aligned_spec(seed());
  const model::BatchShape batch{.num_sequences = 2, .seq_length = 128};
  model::NumericPolicy policy;
  policy.parameters = policy.activations = DType::kBFloat16;
  for (const engine::Launch launch : {engine::Launch::kOneByOne, engine::Launch::kRecorded}) {
    engine::StepSettings settings = recorded_settings(model::gpu_policy(policy), batch);
    settings.launch = launch;
    Rig rig(spec, settings, model::OptimizerSpec{}, at::kCUDA);
    const Data data = random_data(spec, batch, generator);
    for (int step = 0; step < 4; ++step) rig.step(data, batch.num_sequences, 1e-3);
    const std::vector<nn::MicroBatchInput> micro_batches = rig.cut(data, batch.num_sequences);
    const auto actions = schedule::build({.num_micro_batches = 1}).actions({0});
    const engine::StepInput input{.micro_batches = micro_batches,
                                  .num_tokens = data.num_tokens(),
                                  .rates = {.learning_rate = 1e-3, .weight_decay = 0.1, .end_learning_rate = {}}};
    ops::set_host_waits(at::kCUDA, ops::HostWaits::kRefused);
    EXPECT_ANY_THROW(static_cast<void>(rig.store.all()[0]->weight.cpu())) << "the check itself works";
    EXPECT_NO_THROW(rig.runner.submit(actions, input));
    EXPECT_NO_THROW(rig.runner.submit(actions, input));
    const double first = rig.runner.collect().loss;
    EXPECT_NO_THROW(rig.runner.submit(actions, input));
    const double second = rig.runner.collect().loss;
    const double third = rig.runner.collect().loss;
    ops::set_host_waits(at::kCUDA, ops::HostWaits::kAllowed);
    EXPECT_GT(first, second);  // the same data again and again
    EXPECT_GT(second, third);
  }
}

/// A step that is not finite is told one step later; the step that was begun meanwhile moves nothing either.
TEST_P(CudaStep, NothingFollowsAStepThatIsNotFinite) {
  std::mt19937_64 generator(seed());
  const model::ModelSpec spec = aligned_spec(seed());
  const model::BatchShape batch{.num_sequences = 1, .seq_length = 128};
  model::NumericPolicy policy;
  policy.parameters = policy.activations = DType::kBFloat16;
  for (const engine::AfterNonFinite after : {engine::AfterNonFinite::kHalt, engine::AfterNonFinite::kGoOn}) {
    engine::StepSettings settings = recorded_settings(model::gpu_policy(policy), batch);
    settings.after_nonfinite = after;
    Rig rig(spec, settings, model::OptimizerSpec{}, at::kCUDA);
    const Data data = random_data(spec, batch, generator);
    for (int step = 0; step < 4; ++step) rig.step(data, 1, 1e-3);
    const at::Tensor before = rig.store.all().front()->weight.clone();
    std::vector<nn::MicroBatchInput> broken = rig.cut(data, 1);
    broken[0].loss.inverse_num_tokens = std::numeric_limits<double>::quiet_NaN();
    const std::vector<nn::MicroBatchInput> whole = rig.cut(data, 1);
    const auto actions = schedule::build({.num_micro_batches = 1}).actions({0});
    const engine::StepRates rates{.learning_rate = 1e-3, .weight_decay = 0.1, .end_learning_rate = {}};
    rig.runner.submit(actions, {.micro_batches = broken, .num_tokens = data.num_tokens(), .rates = rates});
    rig.runner.submit(actions, {.micro_batches = whole, .num_tokens = data.num_tokens(), .rates = rates});
    EXPECT_EQ(rig.runner.collect().outcome, engine::StepOutcome::kSkippedNonFinite);
    const bool goes_on = after == engine::AfterNonFinite::kGoOn;
    EXPECT_EQ(rig.runner.collect().outcome,
              goes_on ? engine::StepOutcome::kUpdated : engine::StepOutcome::kSkippedNonFinite);
    EXPECT_EQ(at::equal(before, rig.store.all().front()->weight), !goes_on);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, CudaStep, ::testing::Range(0, 8));

}  // namespace
}  // namespace primus
