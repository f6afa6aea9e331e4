// Recomputation: the same bits with and without, counters counted once, and held bytes equal to the declared ones while
// forward has run and at the peak of backward.
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include "model/pass_peaks.hpp"
#include "nn/mixer_specs.hpp"
#include "nn/rig.hpp"
#include "nn/rope_tables.hpp"
#include "ops/allocator.hpp"

namespace primus {
namespace {

using at::Tensor;
using model::LayerRecompute;
using model::RecomputeModule;
using namespace primus::test;

constexpr RecomputeModule kModules[] = {RecomputeModule::kCoreAttention, RecomputeModule::kMlaUpProjection,
                                        RecomputeModule::kMoeActivation, RecomputeModule::kLayerNorm,
                                        RecomputeModule::kMlp,           RecomputeModule::kMoe,
                                        RecomputeModule::kSharedExperts};

/// Four layers of both kinds, half of the time with other mixers than attention, and none to two prediction depths.
model::ModelSpec deep_spec(std::uint64_t seed) {
  model::ModelSpec spec = random_spec(seed);
  using enum model::LayerKind;
  spec.layers = {kDense, kMoe, kMoe, seed % 2 == 0 ? kDense : kMoe};
  spec.num_mtp_layers = static_cast<std::int64_t>(seed % 3);
  if (seed % 5 < 2) {
    randomise_mixers(spec, seed);
  } else if (seed % 4 != 0) {
    add_indexer(spec, seed);
  }
  if (seed % 7 < 3) add_streams(spec, seed);
  return spec;
}

struct Case {
  std::string name;
  model::RecomputeSpec recompute;
};

/// Groups of n layers, and every depth alone: what recompute_method uniform says.
model::RecomputeSpec uniform(const model::ModelSpec& spec, int n) {
  model::RecomputeSpec recompute;
  for (int layer = 0; layer < spec.num_layers(); ++layer) {
    recompute.layers.push_back(layer % n == 0 ? LayerRecompute::kAllButInput : LayerRecompute::kAll);
  }
  recompute.layers.resize(static_cast<std::size_t>(spec.num_layers() + spec.num_mtp_layers),
                          LayerRecompute::kAllButInput);
  return recompute;
}

std::vector<Case> cases(const model::ModelSpec& spec, std::mt19937_64& generator) {
  std::vector<Case> all = {{"none", {}}};
  for (const int n : {1, 2, 3, 4}) all.push_back({fmt::format("uniform {}", n), uniform(spec, n)});
  for (const RecomputeModule module : kModules) {
    all.push_back({std::string(model::name(module)), {.layers = {}, .modules = {module}}});
  }
  model::RecomputeSpec every{.layers = {}, .modules = {std::begin(kModules), std::end(kModules)}};
  all.push_back({"all modules", every});
  for (int i = 0; i < 4; ++i) {
    model::RecomputeSpec mixed;
    for (std::int64_t layer = 0; layer < spec.num_layers() + spec.num_mtp_layers; ++layer) {
      mixed.layers.push_back(generator() % 2 == 0 ? LayerRecompute::kAllButInput : LayerRecompute::kNone);
    }
    for (const RecomputeModule module : kModules) {
      if (generator() % 2 == 0) mixed.modules.push_back(module);
    }
    all.push_back({fmt::format("mixture {}", i), mixed});
  }
  return all;
}

engine::StepSettings settings(const Case& c, model::LossFusion fusion, model::BatchShape batch) {
  return {.policy = {}, .loss_fusion = fusion, .micro_batch = batch, .clip_grad = 0.0, .recompute = c.recompute};
}

class RecomputeTest : public ::testing::TestWithParam<int> {
 public:
  static void SetUpTestSuite() {
    ops::install_allocator();
    ops::set_fresh_memory(ops::FreshMemory::kPoisoned);
  }
  std::uint64_t seed() const { return static_cast<std::uint64_t>(GetParam()) + 900; }
};

TEST_P(RecomputeTest, GradientsLossesAndCountersAreTheSameBits) {
  std::mt19937_64 generator(seed());
  const model::ModelSpec spec = deep_spec(seed());
  const model::BatchShape batch = random_batch(seed());
  const Data data =
      random_data(spec, {.num_sequences = 2 * batch.num_sequences, .seq_length = batch.seq_length}, generator);
  const auto fusion = seed() % 2 == 0 ? model::LossFusion::kFused : model::LossFusion::kUnfused;
  const std::vector<Case> all = cases(spec, generator);
  Rig plain(spec, settings(all[0], fusion, batch), {});
  const engine::StepResult expected = plain.step(data, batch.num_sequences, 1e-2);
  const engine::StepResult next = plain.step(data, batch.num_sequences, 1e-2);
  for (std::size_t i = 1; i < all.size(); ++i) {
    SCOPED_TRACE(all[i].name);
    Rig rig(spec, settings(all[i], fusion, batch), {});
    for (const engine::StepResult* want : {&expected, &next}) {
      const engine::StepResult result = rig.step(data, batch.num_sequences, 1e-2);
      EXPECT_EQ(result.loss, want->loss);
      EXPECT_EQ(result.mtp_losses, want->mtp_losses);
      EXPECT_EQ(result.grad_norm, want->grad_norm);
      EXPECT_EQ(result.load_balancing_loss, want->load_balancing_loss);
    }
    for (std::size_t p = 0; p < plain.store.all().size(); ++p) {
      const nn::Parameter& parameter = *plain.store.all()[p];
      EXPECT_TRUE(at::equal(rig.store.all()[p]->weight, parameter.weight)) << parameter.descriptor.name;
      if (!parameter.main_grad.defined()) continue;
      EXPECT_TRUE(at::equal(rig.store.all()[p]->main_grad, parameter.main_grad)) << parameter.descriptor.name;
    }
    const auto routed = rig.model.routed_layers();
    for (std::size_t layer = 0; layer < routed.size(); ++layer) {
      EXPECT_TRUE(at::equal(routed[layer].moe->metrics().tokens_per_expert_E,
                            plain.model.routed_layers()[layer].moe->metrics().tokens_per_expert_E));
    }
  }
}

TEST_P(RecomputeTest, DeferredWeightGradientsAreTheSameBits) {
  std::mt19937_64 generator(seed());
  model::ModelSpec spec = deep_spec(seed());
  spec.output_weight = model::OutputWeight::kOwn;  // tied: the sums into one gradient would change places
  const model::BatchShape batch = random_batch(seed());
  const Data data = random_data(spec, batch, generator);
  for (const Case& c : cases(spec, generator)) {
    SCOPED_TRACE(c.name);
    Rig together(spec, settings(c, model::LossFusion::kUnfused, batch), {});
    together.step(data, batch.num_sequences);
    Rig apart(spec, settings(c, model::LossFusion::kUnfused, batch), {});
    using schedule::ActionKind;
    apart.step_with(data, batch.num_sequences,
                    {{ActionKind::kForward, {0}, {}},
                     {ActionKind::kBackward, {0}, {}},
                     {ActionKind::kWeightGrad, {0}, {}},
                     {ActionKind::kReduceGradients, {}, {}},
                     {ActionKind::kOptimizerStep, {}, {}}});
    EXPECT_EQ(worst_difference(apart.store, together.store), 0.0);
  }
}

TEST_P(RecomputeTest, HeldBytesAreTheDeclaredOnesAfterForwardAndAtThePeak) {
  std::mt19937_64 generator(seed());
  const model::ModelSpec spec = deep_spec(seed());
  const model::BatchShape batch = random_batch(seed());
  const Data data = random_data(spec, batch, generator);
  for (const auto fusion : {model::LossFusion::kFused, model::LossFusion::kUnfused}) {
    for (const Case& c : cases(spec, generator)) {
      SCOPED_TRACE(c.name);
      Rig rig(spec, settings(c, fusion, batch), {});
      model::SavedDeclaration declaration = model::model_saved(spec, {}, batch, fusion);
      model::mark_recomputed(spec, c.recompute, declaration);
      std::vector<nn::MicroBatchInput> micro_batches = rig.cut(data, batch.num_sequences);
      nn::add_depths(micro_batches, batch, spec.num_mtp_layers, spec.mtp_loss_scale);
      const nn::StepContext step{.batch = batch, .rope = nn::rope_tables(spec.rope, batch.seq_length, at::kFloat)};
      const model::NumericPolicy policy;
      const model::MicroBatchPeaks peaks = model::pass_peaks(
          {.spec = spec, .policy = policy, .batch = batch, .fusion = fusion, .content = model::whole_model(spec)},
          declaration);
      nn::Saved saved(declaration);
      const ops::MemoryReport before = ops::memory_report();
      ops::reset_peak();
      rig.model.forward(micro_batches[0], saved, step);
      const ops::MemoryReport after = ops::memory_report();
      expect_held_as_declared(before, after, declaration);
      EXPECT_EQ(after.saved_peak_bytes - before.saved_bytes(), peaks.forward.saved);
      ops::reset_peak();
      rig.model.backward(micro_batches[0], saved, step);
      const ops::MemoryReport done = ops::memory_report();
      EXPECT_EQ(done.total_bytes, before.total_bytes) << "backward leaves nothing behind";
      EXPECT_EQ(done.saved_peak_bytes - before.saved_bytes(), peaks.backward.saved);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, RecomputeTest, ::testing::Range(0, 12));

/// The bound can fail: a layer that is not told to drop something holds more than is declared.
TEST(RecomputeFixedTest, ATensorThatIsNotDroppedIsSeen) {
  ops::install_allocator();
  std::mt19937_64 generator(7);
  const model::ModelSpec spec = deep_spec(903);
  const model::BatchShape batch{.num_sequences = 1, .seq_length = 6};
  Rig rig(spec, {}, model::LossFusion::kFused, batch);
  std::vector<nn::MicroBatchInput> micro_batches = rig.cut(random_data(spec, batch, generator), 1);
  nn::add_depths(micro_batches, batch, spec.num_mtp_layers, spec.mtp_loss_scale);
  const nn::StepContext step{.batch = batch, .rope = nn::rope_tables(spec.rope, 6, at::kFloat)};
  model::SavedDeclaration declaration = model::model_saved(spec, {}, batch, model::LossFusion::kFused);
  nn::Saved saved(declaration);  // told nothing
  model::mark_recomputed(spec, {.layers = {}, .modules = {RecomputeModule::kCoreAttention}}, declaration);
  const std::int64_t before = ops::memory_report().total_bytes;
  rig.model.forward(micro_batches[0], saved, step);
  EXPECT_GT(ops::memory_report().total_bytes - before, declaration.size_bytes());
}

}  // namespace
}  // namespace primus
