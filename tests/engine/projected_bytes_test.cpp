// What the projection says is what a training step holds: parameters, gradients, optimizer, every kind of activation,
// and their peak over the step, for forty random runs.
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include "nn/rope_tables.hpp"
#include "ops/allocator.hpp"
#include "projection/memory.hpp"
#include "random_configuration.hpp"

namespace primus {
namespace {

using namespace primus::test;
using projection::Category;

/// One process, `num_micro_batches` in a step.
projection::MemoryInputs inputs_of(const Configuration& c, int num_micro_batches) {
  return {.spec = c.spec,
          .policy = c.step.policy,
          .optimizer = c.optimizer,
          .recompute = c.step.recompute,
          .loss_fusion = c.step.loss_fusion,
          .micro_batch = c.step.micro_batch,
          .sharding = {},
          .grid = layout::RankGrid({}),
          .stages = layout::StageLayout(config::balanced_layout(c.spec.num_layers(), c.spec.num_mtp_layers, 1), 1,
                                        layout::StagePlacement::kRoundRobin),
          .schedule = {.num_micro_batches = num_micro_batches},
          .scratch = {}};
}

class ProjectedBytes : public ::testing::TestWithParam<int> {
 public:
  static void SetUpTestSuite() {
    ops::install_allocator();
    ops::set_fresh_memory(ops::FreshMemory::kPoisoned);
    at::set_num_threads(1);  // models of this size gain nothing from more
  }

 protected:
  std::uint64_t seed() const { return static_cast<std::uint64_t>(GetParam()) + 5200; }
};

TEST_P(ProjectedBytes, AreHeldByCategoryAndAtTheStepsPeak) {
  std::mt19937_64 generator(seed());
  const Configuration c = random_configuration(seed());
  constexpr int kMicroBatches = 2;
  const projection::RankMemory projected = projection::project_memory(inputs_of(c, kMicroBatches)).ranks.front();

  const ops::MemoryReport empty = ops::memory_report();
  Rig rig(c.spec, c.step, c.optimizer);
  const ops::MemoryReport resident = ops::memory_report();
  const auto held = [&](ops::MemoryTag tag) { return resident.held(tag) - empty.held(tag); };
  EXPECT_EQ(held(ops::MemoryTag::kParameters), projected.bytes(Category::kParameters));
  EXPECT_EQ(held(ops::MemoryTag::kMainGradients), projected.bytes(Category::kGradients));
  EXPECT_EQ(held(ops::MemoryTag::kOptimizer), projected.bytes(Category::kOptimizer) + engine::Optimizer::kGateBytes);

  const model::BatchShape batch{c.step.micro_batch.num_sequences * kMicroBatches, c.step.micro_batch.seq_length};
  const Data data = random_data(c.spec, batch, generator);
  ops::reset_peak();
  rig.step(data, c.step.micro_batch.num_sequences, 1e-3);
  const ops::MemoryReport after = ops::memory_report();
  EXPECT_EQ(after.saved_peak_bytes - resident.saved_bytes(),
            projected.bytes(Category::kActivations) + projected.bytes(Category::kRemade));
}

/// The kinds of activations, as forward leaves them.
TEST_P(ProjectedBytes, AreHeldByKindOfActivation) {
  std::mt19937_64 generator(seed());
  const Configuration c = random_configuration(seed());
  const projection::RankMemory projected = projection::project_memory(inputs_of(c, 1)).ranks.front();
  ASSERT_EQ(projected.chunks.size(), 1U);
  Rig rig(c.spec, c.step, c.optimizer);
  std::vector<nn::MicroBatchInput> input =
      rig.cut(random_data(c.spec, c.step.micro_batch, generator), c.step.micro_batch.num_sequences);
  nn::add_depths(input, c.step.micro_batch, c.spec.num_mtp_layers, c.spec.mtp_loss_scale);
  model::SavedDeclaration declaration =
      model::model_saved(c.spec, c.step.policy, c.step.micro_batch, c.step.loss_fusion);
  model::mark_recomputed(c.spec, c.step.recompute, declaration);
  nn::Saved saved(declaration);
  const ops::MemoryReport before = ops::memory_report();
  rig.model.forward(
      input[0], saved,
      {.batch = c.step.micro_batch, .rope = nn::rope_tables(c.spec.rope, c.step.micro_batch.seq_length, at::kFloat)});
  const ops::MemoryReport after = ops::memory_report();
  for (int i = 0; i < model::kNumSavedCategories; ++i) {
    const auto category = static_cast<model::SavedCategory>(i);
    const ops::MemoryTag tag = ops::saved_tag(category);
    EXPECT_EQ(after.held(tag) - before.held(tag), projected.chunks[0].saved[static_cast<std::size_t>(i)])
        << model::name(category);
  }
}

INSTANTIATE_TEST_SUITE_P(Runs, ProjectedBytes, ::testing::Range(0, 40));

/// The working set, with what a CPU's ops take for themselves. pass_bytes_test.cpp shows the parts, to the byte; here
/// the step's own tensors (its micro-batch, sums) come on top, and products that the router's counts decide are a
/// bound.
TEST(ProjectedWorkingSet, IsOfTheSizeThatAStepNeeds) {
  ops::install_allocator();
  for (const std::int64_t top_k : {1, 2, 4, 8}) {
    Configuration c = random_configuration(1702);
    c.step.recompute = {};
    c.step.policy = {};
    c.step.loss_fusion = model::LossFusion::kUnfused;
    c.optimizer = {};
    c.spec.num_mtp_layers = 0;
    c.spec.hidden_size = 256;
    c.spec.layers = {model::LayerKind::kMoe, model::LayerKind::kMoe};
    c.spec.attention = model::GqaSpec{.num_heads = 8, .num_query_groups = 4, .head_dim = 32};
    c.spec.rope = {.type = model::RopeType::kRope, .rotary_dim = 32};
    c.spec.moe = model::MoeSpec{};
    c.spec.moe->router.num_experts = 8;
    c.spec.moe->router.top_k = top_k;
    c.spec.moe->ffn_hidden_size = 192;
    c.step.micro_batch = {.num_sequences = 2, .seq_length = 512};
    const projection::RankMemory projected = projection::project_memory(inputs_of(c, 1)).ranks.front();
    std::mt19937_64 generator(9);
    Rig rig(c.spec, c.step, c.optimizer);
    const Data data = random_data(c.spec, c.step.micro_batch, generator);
    const ops::MemoryReport before = ops::memory_report();
    ops::reset_peak();
    rig.step(data, c.step.micro_batch.num_sequences, 1e-3);
    const ops::MemoryReport after = ops::memory_report();
    const std::int64_t needed =
        after.workspace_peak_bytes - before.held(ops::MemoryTag::kWorkspace) + after.scratch_peak_bytes;
    const std::int64_t declared = projected.bytes(Category::kDispatch) + projected.bytes(Category::kWorkingSet);
    EXPECT_LE(needed, 1.02 * static_cast<double>(declared)) << top_k;
    EXPECT_GE(needed, 0.9 * static_cast<double>(declared)) << top_k;
  }
}

}  // namespace
}  // namespace primus
