// Attention with every option and pair of options against fp64 autograd (reference.hpp), as a layer and in a model;
// what it declares to hold; packed documents against the documents alone.
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <set>

#include "nn/attention_specs.hpp"
#include "nn/model_run.hpp"
#include "ops/allocator.hpp"

namespace primus {
namespace {

using at::Tensor;
using namespace primus::test;

constexpr int kNumSeeds = 90;

class AttentionLayerTest : public ::testing::TestWithParam<int> {
 public:
  static void SetUpTestSuite() {
    ops::install_allocator();
    ops::set_fresh_memory(ops::FreshMemory::kPoisoned);
  }
  std::uint64_t seed() const { return static_cast<std::uint64_t>(GetParam()); }
  AttentionChoices choices() const { return attention_choices(seed()); }
  model::ModelSpec spec() const { return attention_spec(seed(), choices()); }
  PackedDocuments packed(model::BatchShape batch) const {
    std::mt19937_64 generator(seed() + 77);
    return packed_documents(choices()[kDocuments].taken, batch, generator);
  }
};

TEST_P(AttentionLayerTest, ForwardAndGradientsMatchAutograd) {
  std::mt19937_64 generator(seed() + 1000);
  const model::BatchShape batch = random_batch(seed());
  for (const int layer : {0, 1}) expect_layer_matches_autograd(spec(), layer, batch, packed(batch), generator);
}

TEST_P(AttentionLayerTest, DeferredWeightGradientsAreTheSameBits) {
  std::mt19937_64 generator(seed() + 2000);
  const model::BatchShape batch = random_batch(seed());
  expect_deferred_gradients_equal(spec(), batch, packed(batch), generator);
}

TEST_P(AttentionLayerTest, ModelMatchesAutogradAndHoldsWhatItDeclares) {
  std::mt19937_64 generator(seed() + 3000);
  const model::BatchShape batch = random_batch(seed());
  expect_model_matches_autograd(spec(), batch, packed(batch), generator);
}

INSTANTIATE_TEST_SUITE_P(Seeds, AttentionLayerTest, ::testing::Range(0, kNumSeeds));

// The seeds above meet every pair of values of any two choices.
TEST(AttentionCoverTest, EveryPairOfOptionsIsMet) {
  for (std::size_t a = 0; a < kNumChoices; ++a) {
    for (std::size_t b = 0; b < a; ++b) {
      std::set<std::pair<int, int>> met;
      AttentionChoices choices;
      for (int seed = 0; seed < kNumSeeds; ++seed) {
        choices = attention_choices(static_cast<std::uint64_t>(seed));
        met.insert({choices[a].taken, choices[b].taken});
      }
      EXPECT_EQ(met.size(), static_cast<std::size_t>(choices[a].options * choices[b].options)) << a << " " << b;
    }
  }
}

TEST(AttentionFixedTest, EverythingAtOnceMatchesFiniteDifferences) {
  ops::install_allocator();
  for (const int kind : {1, 3}) {
    AttentionChoices choices{};
    choices[kKind].taken = kind;
    for (const AttentionChoice choice : {kNorms, kQkvBias, kLinearBias, kGate, kWindow, kSoftcap, kRotated}) {
      choices[choice].taken = 1;
    }
    choices[kSink].taken = 2;
    choices[kRope].taken = 3;
    choices[kDocuments].taken = 2;
    model::ModelSpec spec = attention_spec(5, choices);
    spec.moe->router.losses = {};  // its gradient is injected, no part of the output
    const model::BatchShape batch{.num_sequences = 1, .seq_length = 7};
    std::mt19937_64 generator(6);
    const PackedDocuments documents = packed_documents(2, batch, generator);
    const Tensor x = random_normal({7, spec.hidden_size}, at::kDouble, generator);
    const Tensor dy = random_normal({7, spec.hidden_size}, at::kDouble, generator);
    const auto run = [&](const Tensor& point) {
      return run_layer(spec, 0, batch, documents, at::kDouble, nn::WeightGradTiming::kWithBackward, point, dy);
    };
    const auto loss = [&](const Tensor& point) { return (run(point).y_TH * dy).sum().item<double>(); };
    EXPECT_LE(relative_error(run(x).dx_TH, finite_difference(loss, x)), 1e-6) << kind;
  }
}

// A model that reads documents packed side by side, positions beginning anew, has the loss and the gradients of one
// that reads them one after another.
TEST(AttentionFixedTest, PackedDocumentsAreTheDocumentsAlone) {
  ops::install_allocator();
  for (const int kind : {1, 3}) {
    AttentionChoices choices{};
    choices[kKind].taken = kind;
    choices[kNorms].taken = 1;
    choices[kRope].taken = 1;
    model::ModelSpec spec = attention_spec(9, choices);
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
    EXPECT_LE(std::abs(loss - expected), 1e-13 * std::abs(expected)) << kind;
    EXPECT_LE(worst_difference(packed.store, alone.store), 1e-12) << kind;
  }
}

}  // namespace
}  // namespace primus
