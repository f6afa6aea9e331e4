// Sparse attention in whole models: choices that layers share, its loss, cuts into micro-batches, evaluation, bf16.
// Layers alone, with every other option of attention beside it, are in attention_test; recomputation in recompute_test.
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include "nn/model_run.hpp"
#include "nn/rope_tables.hpp"
#include "ops/allocator.hpp"

namespace primus {
namespace {

using at::Tensor;
using namespace primus::test;

/// Latent attention with an indexer in four layers, and a prediction depth in every other model.
model::ModelSpec sparse_spec(std::uint64_t seed) {
  model::ModelSpec spec = random_spec(seed);
  while (!std::holds_alternative<model::MlaSpec>(spec.attention)) spec = random_spec(seed += 1000);
  using enum model::LayerKind;
  spec.layers = {kDense, kMoe, kDense, kMoe};
  add_indexer(spec, seed);
  spec.num_mtp_layers = static_cast<std::int64_t>(seed % 2);
  return spec;
}

model::IndexerSpec& indexer_of(model::ModelSpec& spec) {
  return *std::get<model::MlaSpec>(spec.attention).indexer;
}

class SparseAttentionTest : public ::testing::TestWithParam<int> {
 public:
  static void SetUpTestSuite() {
    ops::install_allocator();
    ops::set_fresh_memory(ops::FreshMemory::kPoisoned);
  }
  std::uint64_t seed() const { return static_cast<std::uint64_t>(GetParam()) + 40; }
};

TEST_P(SparseAttentionTest, LossesAndEveryGradientMatchAutograd) {
  std::mt19937_64 generator(seed());
  expect_step_matches_autograd(sparse_spec(seed()), random_batch(seed()), generator);
}

// The loss that the step tells is the reference's, without its coefficient: of a model whose router adds none.
TEST_P(SparseAttentionTest, TellsTheMeanLossOfItsIndexers) {
  std::mt19937_64 generator(seed());
  model::ModelSpec spec = sparse_spec(seed());
  spec.moe->router.losses = {};
  spec.num_mtp_layers = 0;
  const model::BatchShape batch = random_batch(seed());
  const Data data = random_data(spec, batch, generator);
  for (const double coefficient : {0.0, 0.4}) {
    indexer_of(spec).loss_coefficient = coefficient;
    Rig rig(spec, model::float64_policy(), model::LossFusion::kFused, batch);
    const engine::StepResult result = rig.step(data, batch.num_sequences);
    EXPECT_EQ(result.indexer_loss.has_value(), coefficient > 0.0);
    if (!result.indexer_loss) continue;
    const ReferenceLoss expected =
        reference_model(data.ids_BS, data.labels_BS, data.mask_BS, spec, reference_parameters(rig.store));
    int num_indexers = 0;
    for (int layer = 0; layer < spec.num_layers(); ++layer) num_indexers += spec.picks_keys(layer) ? 1 : 0;
    EXPECT_NEAR(*result.indexer_loss * coefficient * num_indexers, expected.aux_loss.item<double>(), 1e-12);
  }
}

TEST_P(SparseAttentionTest, MicroBatchesAgree) {
  std::mt19937_64 generator(seed());
  model::ModelSpec spec = sparse_spec(seed());
  spec.moe->router.losses = {};
  const model::BatchShape whole{.num_sequences = 4, .seq_length = random_batch(seed()).seq_length};
  const Data data = random_data(spec, whole, generator);
  Rig rig(spec, model::float64_policy(), model::LossFusion::kFused, whole);
  const engine::StepResult expected = rig.step(data, 4);
  for (const std::int64_t sequences : {1, 2}) {
    Rig cut(spec, model::float64_policy(), model::LossFusion::kFused,
            {.num_sequences = sequences, .seq_length = whole.seq_length});
    const engine::StepResult result = cut.step(data, sequences);
    EXPECT_NEAR(result.loss, expected.loss, 1e-12 * expected.loss);
    EXPECT_LE(worst_difference(cut.store, rig.store), 1e-9);
    if (!expected.indexer_loss) continue;
    EXPECT_NEAR(*result.indexer_loss, *expected.indexer_loss, 1e-12);
  }
}

// With room for every key the choice leaves nothing out: the dense model, to the bit.
TEST_P(SparseAttentionTest, WithRoomForEveryKeyItIsDenseAttention) {
  std::mt19937_64 generator(seed());
  model::ModelSpec spec = sparse_spec(seed());
  const model::BatchShape batch = random_batch(seed());
  const Data data = random_data(spec, batch, generator);
  indexer_of(spec).top_k = batch.seq_length;
  model::ModelSpec dense = spec;
  std::get<model::MlaSpec>(dense.attention).indexer.reset();
  Rig sparse_rig(spec, {}, model::LossFusion::kFused, batch);
  Rig dense_rig(dense, {}, model::LossFusion::kFused, batch);
  EXPECT_EQ(sparse_rig.step(data, batch.num_sequences).loss, dense_rig.step(data, batch.num_sequences).loss);
  for (const auto& parameter : dense_rig.store.all()) {
    if (!parameter->main_grad.defined()) continue;
    EXPECT_TRUE(at::equal(sparse_rig.store.get(parameter->descriptor.name).main_grad, parameter->main_grad))
        << parameter->descriptor.name;
  }
}

TEST_P(SparseAttentionTest, EvaluationIsTrainingsForwardAndKeepsNothing) {
  std::mt19937_64 generator(seed());
  expect_evaluation_is_trainings_forward(sparse_spec(seed()), random_batch(seed()), generator);
}

TEST_P(SparseAttentionTest, HoldsWhatItDeclares) {
  std::mt19937_64 generator(seed());
  const model::ModelSpec spec = sparse_spec(seed());
  const model::BatchShape batch = random_batch(seed());
  const Data data = random_data(spec, batch, generator);
  Rig rig(spec, {}, model::LossFusion::kFused, batch);
  std::vector<nn::MicroBatchInput> input = rig.cut(data, batch.num_sequences);
  nn::add_depths(input, batch, spec.num_mtp_layers, spec.mtp_loss_scale);
  const model::SavedDeclaration declaration = model::model_saved(spec, {}, batch, model::LossFusion::kFused);
  const nn::StepContext step{.batch = batch, .rope = nn::rope_tables(spec.rope, batch.seq_length, at::kFloat)};
  expect_passes_hold_what_is_declared(rig, input[0], step, declaration);
}

TEST_P(SparseAttentionTest, TrainsInBf16) {
  std::mt19937_64 generator(seed());
  const model::ModelSpec spec = sparse_spec(seed());
  const model::BatchShape batch{.num_sequences = 2, .seq_length = 9 + GetParam()};
  const Data data = random_data(spec, batch, generator);
  const model::NumericPolicy bf16{.parameters = DType::kBFloat16, .activations = DType::kBFloat16};
  Rig rig(spec, bf16, model::LossFusion::kFused, batch);
  Rig wide(spec, {}, model::LossFusion::kFused, batch);
  const double first = rig.step(data, batch.num_sequences, 1e-2).loss;
  EXPECT_NEAR(first, wide.step(data, batch.num_sequences).loss, 0.05 * first);
  double last = first;
  for (int i = 0; i < 10; ++i) last = rig.step(data, batch.num_sequences, 1e-2).loss;
  EXPECT_LT(last, first);
}

// Without a coefficient nothing teaches the indexer, and no gradient reaches it through the choice.
TEST_P(SparseAttentionTest, AnIndexerThatIsNotTaughtStandsStill) {
  std::mt19937_64 generator(seed());
  model::ModelSpec spec = sparse_spec(seed());
  indexer_of(spec).loss_coefficient = 0.0;
  const model::BatchShape batch = random_batch(seed());
  const Data data = random_data(spec, batch, generator);
  Rig rig(spec, {}, model::LossFusion::kFused, batch);
  rig.step(data, batch.num_sequences);
  int num_found = 0;
  for (const auto& parameter : rig.store.all()) {
    if (parameter->descriptor.name.find(".indexer.") == std::string::npos) continue;
    ++num_found;
    EXPECT_EQ(parameter->main_grad.abs().max().item<double>(), 0.0) << parameter->descriptor.name;
  }
  EXPECT_GT(num_found, 0);
}

INSTANTIATE_TEST_SUITE_P(Seeds, SparseAttentionTest, ::testing::Range(0, 12));

}  // namespace
}  // namespace primus
