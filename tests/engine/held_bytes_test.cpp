// Declared bytes are held bytes, category by category, over forty random runs: parameters, main gradients, optimizer,
// saved activations by kind, the saved tensors' peak; and the same counts fail when a part holds one tensor more.
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include "model/pass_peaks.hpp"
#include "nn/rope_tables.hpp"
#include "ops/allocator.hpp"
#include "random_configuration.hpp"
#include "rig.hpp"

namespace primus {
namespace {

using namespace primus::test;
using model::OptimizerKind;

/// One micro-batch with its depths.
std::vector<nn::MicroBatchInput> input_of(const Rig& rig, const Configuration& c, std::mt19937_64& generator) {
  std::vector<nn::MicroBatchInput> input =
      rig.cut(random_data(c.spec, c.step.micro_batch, generator), c.step.micro_batch.num_sequences);
  nn::add_depths(input, c.step.micro_batch, c.spec.num_mtp_layers, c.spec.mtp_loss_scale);
  return input;
}

class HeldBytes : public ::testing::TestWithParam<int> {
 public:
  static void SetUpTestSuite() {
    ops::install_allocator();
    ops::set_fresh_memory(ops::FreshMemory::kPoisoned);
    at::set_num_threads(1);  // models of this size gain nothing from more
  }
  std::uint64_t seed() const { return static_cast<std::uint64_t>(GetParam()) + 1700; }
};

TEST_P(HeldBytes, OfParametersGradientsAndOptimizer) {
  const Configuration c = random_configuration(seed());
  const ops::MemoryReport before = ops::memory_report();
  const Rig rig(c.spec, c.step, c.optimizer);
  const ops::MemoryReport after = ops::memory_report();
  const auto held = [&](ops::MemoryTag tag) { return after.held(tag) - before.held(tag); };
  const model::ResidentBytes declared =
      model::resident_bytes(model::training_parameters(c.spec), c.optimizer, c.step.policy);
  EXPECT_EQ(held(ops::MemoryTag::kParameters), declared.parameters);
  EXPECT_EQ(held(ops::MemoryTag::kMainGradients), declared.main_gradients);
  EXPECT_EQ(held(ops::MemoryTag::kOptimizer), declared.optimizer + engine::Optimizer::kGateBytes);
  EXPECT_EQ(after.saved_bytes(), before.saved_bytes());
}

TEST_P(HeldBytes, OfSavedTensorsByKindAndAtTheirPeak) {
  std::mt19937_64 generator(seed());
  const Configuration c = random_configuration(seed());
  Rig rig(c.spec, c.step, c.optimizer);
  model::SavedDeclaration declaration =
      model::model_saved(c.spec, c.step.policy, c.step.micro_batch, c.step.loss_fusion);
  model::mark_recomputed(c.spec, c.step.recompute, declaration);
  const std::vector<nn::MicroBatchInput> input = input_of(rig, c, generator);
  const nn::StepContext step{.batch = c.step.micro_batch,
                             .rope = nn::rope_tables(c.spec.rope, c.step.micro_batch.seq_length, at::kFloat)};
  const model::MicroBatchPeaks peaks = model::pass_peaks({.spec = c.spec,
                                                          .policy = c.step.policy,
                                                          .batch = c.step.micro_batch,
                                                          .fusion = c.step.loss_fusion,
                                                          .content = model::whole_model(c.spec)},
                                                         declaration);
  nn::Saved saved(declaration);
  const ops::MemoryReport before = ops::memory_report();
  ops::reset_peak();
  rig.model.forward(input[0], saved, step);
  const ops::MemoryReport after = ops::memory_report();
  expect_held_as_declared(before, after, declaration);
  EXPECT_EQ(after.saved_peak_bytes - before.saved_bytes(), peaks.forward.saved);
  ops::reset_peak();
  rig.model.backward(input[0], saved, step);
  const ops::MemoryReport done = ops::memory_report();
  EXPECT_EQ(done.saved_peak_bytes - before.saved_bytes(), peaks.backward.saved);
  EXPECT_EQ(done.total_bytes, before.total_bytes) << "backward leaves nothing behind";
}

/// Whatever the step does, its peak lies within what the categories' own peaks add up to, and nothing stays.
TEST_P(HeldBytes, AfterAWholeStepOnlyWhatIsResidentIsLeft) {
  std::mt19937_64 generator(seed());
  const Configuration c = random_configuration(seed());
  Rig rig(c.spec, c.step, c.optimizer);
  const Data data = random_data(c.spec, c.step.micro_batch, generator);
  const ops::MemoryReport before = ops::memory_report();
  ops::reset_peak();
  rig.step(data, c.step.micro_batch.num_sequences, 1e-3);
  const ops::MemoryReport after = ops::memory_report();
  EXPECT_EQ(after.total_bytes, before.total_bytes);
  const std::int64_t resident = before.total_bytes - before.held(ops::MemoryTag::kWorkspace);
  EXPECT_LE(after.peak_bytes,
            resident + after.saved_peak_bytes + after.workspace_peak_bytes + after.scratch_peak_bytes);
  EXPECT_GE(after.peak_bytes, before.total_bytes + after.saved_peak_bytes - before.saved_bytes());
}

INSTANTIATE_TEST_SUITE_P(Configurations, HeldBytes, ::testing::Range(0, 40));

/// The mutations that must be caught: a declaration that lacks one tensor of each kind, one at a time.
TEST(HeldBytesMutation, OneTensorLessDeclaredIsSeenInItsCategory) {
  ops::install_allocator();
  std::mt19937_64 generator(3);
  Configuration c = random_configuration(1702);
  c.step.recompute = {};
  Rig rig(c.spec, c.step, c.optimizer);
  const std::vector<nn::MicroBatchInput> input = input_of(rig, c, generator);
  const nn::StepContext step{.batch = c.step.micro_batch,
                             .rope = nn::rope_tables(c.spec.rope, c.step.micro_batch.seq_length, at::kFloat)};
  const model::SavedDeclaration declaration =
      model::model_saved(c.spec, c.step.policy, c.step.micro_batch, c.step.loss_fusion);
  nn::Saved saved(declaration);
  const ops::MemoryReport before = ops::memory_report();
  rig.model.forward(input[0], saved, step);
  const ops::MemoryReport after = ops::memory_report();
  for (std::size_t part = 0; part < declaration.children.size(); ++part) {
    for (std::size_t slot = 0; slot < declaration.children[part].tensors.size(); ++slot) {
      model::SavedDeclaration mutated = declaration;
      model::SavedTensor& tensor = mutated.children[part].tensors[slot];
      if (tensor.num_elements() == 0) continue;
      const ops::MemoryTag tag = ops::saved_tag(tensor.category);
      const int category = static_cast<int>(tensor.category);
      tensor.shape = {0};
      std::int64_t declared[model::kNumSavedCategories] = {};
      mutated.add_by_category(declared);
      EXPECT_NE(after.held(tag) - before.held(tag), declared[category]) << part << " " << slot;
    }
  }
}

TEST(HeldBytesMutation, AnOptimizerThatHoldsAMomentMoreIsSeen) {
  ops::install_allocator();
  const Configuration c = random_configuration(1703);
  model::OptimizerSpec adam;
  model::OptimizerSpec sgd;
  sgd.kind = OptimizerKind::kSgd;
  const ops::MemoryReport before = ops::memory_report();
  const Rig rig(c.spec, c.step, adam);
  const std::int64_t held =
      ops::memory_report().held(ops::MemoryTag::kOptimizer) - before.held(ops::MemoryTag::kOptimizer);
  EXPECT_GT(held, model::resident_bytes(model::training_parameters(c.spec), sgd, c.step.policy).optimizer +
                      engine::Optimizer::kGateBytes);
}

}  // namespace
}  // namespace primus
