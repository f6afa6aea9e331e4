// What mixes tokens other than attention, of random sizes, against fp64 autograd (reference.hpp), as a layer and in a
// model; what it declares to hold; packed documents against the documents alone; micro-batches of one global batch.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <gtest/gtest.h>

#include "nn/attention_specs.hpp"
#include "nn/mixer_specs.hpp"
#include "nn/model_run.hpp"

namespace primus {
namespace {

using at::Tensor;
using namespace primus::test;

constexpr int kSeedsOfAKind = 14;

class MixerTest : public ::testing::TestWithParam<int> {
 public:
  static void SetUpTestSuite() {
    ops::install_allocator();
    ops::set_fresh_memory(ops::FreshMemory::kPoisoned);
  }
  std::uint64_t seed() const { return static_cast<std::uint64_t>(GetParam()); }
  model::MixerKind kind() const { return kBuiltMixers[static_cast<std::size_t>(GetParam()) / kSeedsOfAKind]; }
  model::ModelSpec spec() const { return mixer_spec(seed(), kind()); }
  PackedDocuments packed(model::BatchShape batch) const {
    std::mt19937_64 generator(seed() + 77);
    return packed_documents(static_cast<int>(seed() % 3), batch, generator);
  }
};

TEST_P(MixerTest, ForwardAndGradientsMatchAutograd) {
  std::mt19937_64 generator(seed() + 1000);
  const model::BatchShape batch = random_batch(seed());
  expect_layer_matches_autograd(spec(), 0, batch, packed(batch), generator);
}

TEST_P(MixerTest, DeferredWeightGradientsAreTheSameBits) {
  std::mt19937_64 generator(seed() + 2000);
  const model::BatchShape batch = random_batch(seed());
  expect_deferred_gradients_equal(spec(), batch, packed(batch), generator);
}

TEST_P(MixerTest, ModelMatchesAutogradAndHoldsWhatItDeclares) {
  std::mt19937_64 generator(seed() + 3000);
  const model::BatchShape batch = random_batch(seed());
  expect_model_matches_autograd(spec(), batch, packed(batch), generator);
}

TEST_P(MixerTest, MicroBatchesOfOneGlobalBatchAgree) {
  std::mt19937_64 generator(seed() + 4000);
  expect_micro_batches_agree(spec(), random_batch(seed()).seq_length, generator);
}

TEST_P(MixerTest, BFloat16IsFloat32Rounded) {
  std::mt19937_64 generator(seed() + 5000);
  model::ModelSpec spec = this->spec();
  spec.layers = {model::LayerKind::kDense};  // a choice of experts would turn rounding into another function
  spec.mixers = {kind()};
  spec.init_std = 0.1;
  // A key of unit length and few elements has little room to turn: its gradient is what is left of larger numbers.
  std::int64_t& key_size = spec.kimi_delta.heads.key_head_dim;
  key_size = std::max<std::int64_t>(key_size, 4);
  const model::BatchShape batch = random_batch(seed());
  const Data data = random_data(spec, batch, generator);
  model::NumericPolicy narrow;
  narrow.parameters = narrow.activations = DType::kBFloat16;
  Rig exact(spec, {}, model::LossFusion::kFused, batch);
  Rig rounded(spec, narrow, model::LossFusion::kFused, batch);
  // The same weights: rounding them alone moves the gradients of small contexts, which a norm makes large, by percents.
  for (const auto& parameter : exact.store.all()) parameter->weight.copy_(parameter->weight.to(at::kBFloat16));
  const double loss = exact.step(data, batch.num_sequences).loss;
  EXPECT_LE(std::abs(rounded.step(data, batch.num_sequences).loss - loss), 0.02 * std::abs(loss));
  double largest = 0.0;
  for (const auto& parameter : exact.store.all()) {
    largest = std::max(largest, parameter->main_grad.norm().item<double>());
  }
  for (std::size_t i = 0; i < exact.store.all().size(); ++i) {
    const Tensor& expected = exact.store.all()[i]->main_grad;
    const double error = rounded.store.all()[i]->main_grad.sub(expected).norm().item<double>();
    EXPECT_LE(error, 0.05 * std::max(expected.norm().item<double>(), 0.1 * largest))
        << exact.store.all()[i]->descriptor.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, MixerTest, ::testing::Range(0, kSeedsOfAKind* static_cast<int>(kBuiltMixers.size())));

TEST(MixerFixedTest, GradientsMatchFiniteDifferences) {
  ops::install_allocator();
  for (const model::MixerKind kind : kBuiltMixers) {
    model::ModelSpec spec = mixer_spec(5, kind);
    const model::BatchShape batch{.num_sequences = 1, .seq_length = 7};
    std::mt19937_64 generator(6);
    const PackedDocuments documents = packed_documents(2, batch, generator);
    const Tensor x = random_normal({7, spec.hidden_size}, at::kDouble, generator);
    const Tensor dy = random_normal({7, spec.hidden_size}, at::kDouble, generator);
    const auto run = [&](const Tensor& point) {
      return run_layer(spec, 0, batch, documents, at::kDouble, nn::WeightGradTiming::kWithBackward, point, dy);
    };
    const auto loss = [&](const Tensor& point) { return (run(point).y_TH * dy).sum().item<double>(); };
    EXPECT_LE(relative_error(run(x).dx_TH, finite_difference(loss, x)), 1e-6) << static_cast<int>(kind);
  }
}

// A model that reads documents packed side by side has the loss and the gradients of one that reads them alone.
TEST(MixerFixedTest, PackedDocumentsAreTheDocumentsAlone) {
  ops::install_allocator();
  for (const model::MixerKind kind : kBuiltMixers) {
    model::ModelSpec spec = mixer_spec(9, kind);
    spec.moe->router.losses = {};
    std::mt19937_64 generator(10);
    const model::BatchShape whole{.num_sequences = 1, .seq_length = 18};
    const Data data = random_data(spec, whole, generator);
    const schedule::Schedule one = schedule::build({.num_micro_batches = 1});
    Rig packed(spec, model::float64_policy(), model::LossFusion::kFused, whole);
    std::vector<nn::MicroBatchInput> input = packed.cut(data, 1);
    input[0].positions_T = at::arange(18, at::kLong).remainder(6);
    input[0].first_key_BS = at::arange(18, at::kInt).sub(at::arange(18, at::kInt).remainder(6)).view({1, 18});
    const double loss =
        packed.runner.run(one.actions({0}), {.micro_batches = input, .num_tokens = data.num_tokens()}).loss;
    const Data apart{data.ids_BS.view({3, 6}), data.labels_BS.view({3, 6}), data.mask_BS.view({3, 6})};
    Rig alone(spec, model::float64_policy(), model::LossFusion::kFused, {.num_sequences = 3, .seq_length = 6});
    const double expected = alone.step(apart, 3).loss;
    EXPECT_LE(std::abs(loss - expected), 1e-13 * std::abs(expected)) << static_cast<int>(kind);
    EXPECT_LE(worst_difference(packed.store, alone.store), 1e-12) << static_cast<int>(kind);
  }
}

}  // namespace
}  // namespace primus
