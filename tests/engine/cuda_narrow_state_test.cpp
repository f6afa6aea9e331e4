// Steps on a GPU with optimizer state and main gradients in few bits (decision 19), beside the CPU's.
#include <gtest/gtest.h>

#include "engine/cuda_rig.hpp"

namespace primus {
namespace {

using namespace primus::test;

struct NarrowCase {
  const char* name;
  DType gradients, master, first, second;
};
constexpr NarrowCase kCases[] = {
    {"all of decision 19", DType::kBFloat16, DType::kFloat32, DType::kFloat8, DType::kFloat8},
    {"bf16 moments", DType::kFloat32, DType::kFloat32, DType::kBFloat16, DType::kBFloat16},
    {"fp16 masters", DType::kBFloat16, DType::kFloat16, DType::kFloat16, DType::kFloat8},
    {"bf16 gradients alone", DType::kBFloat16, DType::kFloat32, DType::kFloat32, DType::kFloat32}};

constexpr NarrowCase kStateCases[] = {
    {"fp32", DType::kFloat32, DType::kFloat32, DType::kFloat32, DType::kFloat32}, kCases[0], kCases[1], kCases[2]};

model::NumericPolicy policy_of(const NarrowCase& c, DType weights) {
  model::NumericPolicy policy;
  policy.parameters = policy.activations = weights;
  policy.main_gradients = c.gradients;
  policy.master = weights == DType::kFloat32 ? DType::kFloat32 : c.master;
  policy.first_moment = c.first;
  policy.second_moment = c.second;
  return policy;
}

model::OptimizerSpec optimizer_of(model::OptimizerKind kind) {
  model::OptimizerSpec spec;
  spec.kind = kind;
  return spec;
}

class CudaNarrowState : public CudaTestWithParam<int> {
 protected:
  std::uint64_t seed() const { return static_cast<std::uint64_t>(GetParam()) + 900; }
};

TEST_P(CudaNarrowState, Fp32WeightsMoveAsOnTheCpu) {
  const model::ModelSpec spec = random_spec(seed());
  const model::BatchShape batch = random_batch(seed());
  for (const NarrowCase& c : kCases) {
    std::mt19937_64 generator(seed());
    Rig cpu(spec, policy_of(c, DType::kFloat32), model::LossFusion::kFused, batch);
    Rig gpu(spec, policy_of(c, DType::kFloat32), model::LossFusion::kFused, batch, at::kCUDA);
    for (int step = 0; step < 3; ++step) {
      const Data data = random_data(spec, batch, generator);
      const double expected = cpu.step(data, batch.num_sequences, 1e-3).loss;
      EXPECT_NEAR(gpu.step(data, batch.num_sequences, 1e-3).loss, expected, 1e-4 * std::abs(expected))
          << c.name << step;
    }
  }
}

TEST_P(CudaNarrowState, BFloat16WeightsStayNearTheCpus) {
  const model::ModelSpec spec = aligned_spec(seed());
  const model::BatchShape batch{.num_sequences = 2, .seq_length = 128};
  for (const NarrowCase& c : kCases) {
    std::mt19937_64 generator(seed());
    const model::NumericPolicy policy = policy_of(c, DType::kBFloat16);
    Rig cpu(spec, policy, model::LossFusion::kFused, batch);
    Rig gpu(spec, model::gpu_policy(policy), model::LossFusion::kFused, batch, at::kCUDA);
    const Data data = random_data(spec, batch, generator);
    double first = 0.0, expected = 0.0, found = 0.0;
    for (int step = 0; step < 5; ++step) {
      expected = cpu.step(data, batch.num_sequences, 2e-3).loss;
      found = gpu.step(data, batch.num_sequences, 2e-3).loss;
      if (step == 0) first = expected;
      EXPECT_NEAR(found, expected, 1e-2 * std::abs(expected)) << c.name << step;
    }
    EXPECT_LT(found, 0.95 * first) << c.name;
    for (const auto& parameter : gpu.store.all()) {
      if (!parameter->is_trained()) continue;
      EXPECT_EQ(parameter->gradient().scalar_type(), ops::to_aten(c.gradients)) << c.name;
      if (parameter->is_held_narrower()) {
        EXPECT_FALSE(parameter->main_grad.defined()) << c.name;
      }
    }
  }
}

TEST_P(CudaNarrowState, RecordedStepsEqualLaunchedOnes) {
  const SameBits same_bits;
  const model::ModelSpec spec = aligned_spec(seed());
  const model::BatchShape batch{.num_sequences = 1, .seq_length = 128};
  for (const model::OptimizerKind kind :
       {model::OptimizerKind::kAdam, model::OptimizerKind::kSgd, model::OptimizerKind::kLion}) {
    for (const NarrowCase& c : kCases) {
      std::mt19937_64 generator(seed());
      engine::StepSettings settings = recorded_settings(model::gpu_policy(policy_of(c, DType::kBFloat16)), batch);
      Rig recorded(spec, settings, optimizer_of(kind), at::kCUDA);
      settings.launch = engine::Launch::kOneByOne;
      Rig launched(spec, settings, optimizer_of(kind), at::kCUDA);
      for (const std::int64_t sequences : {1, 1, 1, 1, 3, 3, 3, 1}) {
        const Data data = random_data(spec, {.num_sequences = sequences, .seq_length = batch.seq_length}, generator);
        ASSERT_EQ(recorded.step(data, 1, 1e-3).loss, launched.step(data, 1, 1e-3).loss) << c.name;
      }
      for (std::size_t i = 0; i < recorded.store.all().size(); ++i) {
        const nn::Parameter& parameter = *recorded.store.all()[i];
        ASSERT_TRUE(at::equal(launched.store.all()[i]->weight, parameter.weight))
            << c.name << parameter.descriptor.name;
      }
    }
  }
}

/// The same numbers at another address: bits must not differ, launched or recorded, whatever is on the host.
TEST_P(CudaNarrowState, StateOnTheHostMovesWeightsToTheSameBits) {
  const SameBits same_bits;
  const model::ModelSpec spec = aligned_spec(seed());
  const model::BatchShape batch{.num_sequences = 1, .seq_length = 128};
  for (const model::OptimizerKind kind :
       {model::OptimizerKind::kAdam, model::OptimizerKind::kSgd, model::OptimizerKind::kLion}) {
    for (const DType weights : {DType::kBFloat16, DType::kFloat32}) {
      for (const NarrowCase& c : kStateCases) {
        for (const double fraction : {0.5, 1.0}) {
          std::mt19937_64 generator(seed());
          const engine::StepSettings settings = recorded_settings(model::gpu_policy(policy_of(c, weights)), batch);
          Rig on_device(spec, settings, optimizer_of(kind), at::kCUDA);
          model::OptimizerSpec moved = optimizer_of(kind);
          moved.host_fraction = fraction;
          Rig on_host(spec, settings, moved, at::kCUDA);
          for (int step = 0; step < 5; ++step) {
            const Data data = random_data(spec, batch, generator);
            ASSERT_EQ(on_host.step(data, 1, 1e-3).loss, on_device.step(data, 1, 1e-3).loss) << c.name << fraction;
          }
          const std::vector<engine::StateTensor> expected = on_device.optimizer.state_tensors();
          const std::vector<engine::StateTensor> found = on_host.optimizer.state_tensors();
          ASSERT_EQ(found.size(), expected.size());
          std::size_t num_on_host = 0;
          for (std::size_t i = 0; i < found.size(); ++i) {
            ASSERT_TRUE(at::equal(found[i].tensor.cpu().view({-1}), expected[i].tensor.cpu().view({-1})))
                << c.name << found[i].parameter;
            if (found[i].low_bits.defined()) {
              ASSERT_TRUE(at::equal(found[i].low_bits.cpu(), expected[i].low_bits.cpu())) << found[i].parameter;
            }
            num_on_host += found[i].tensor.is_cpu() ? 1 : 0;
          }
          EXPECT_GT(num_on_host, 0U);
          EXPECT_EQ(num_on_host < found.size(), fraction < 1.0 || found.front().low_bits.defined()) << c.name;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, CudaNarrowState, ::testing::Range(0, 2));

}  // namespace
}  // namespace primus
