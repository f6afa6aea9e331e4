// Several residual streams, of random sizes and beside every option of layers, against fp64 autograd (reference.hpp),
// as a layer and in a model; what they declare to hold; micro-batches of one global batch; training in bf16.
#include "nn/hyper_connection.hpp"

#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include "nn/attention_specs.hpp"
#include "nn/mixer_specs.hpp"
#include "nn/model_run.hpp"

namespace primus {
namespace {

using at::Tensor;
using namespace primus::test;

class HyperConnectionTest : public ::testing::TestWithParam<int> {
 public:
  static void SetUpTestSuite() {
    ops::install_allocator();
    ops::set_fresh_memory(ops::FreshMemory::kPoisoned);
  }
  std::uint64_t seed() const { return static_cast<std::uint64_t>(GetParam()) + 2100; }
  model::ModelSpec spec() const {
    model::ModelSpec spec = random_mlp_spec(seed());
    if (seed() % 3 == 1) randomise_numerics(spec, seed());
    if (seed() % 4 == 2) randomise_mixers(spec, seed());
    if (seed() % 4 == 3) add_indexer(spec, seed());
    spec.mtp_variant = {};
    add_streams(spec, seed());
    return spec;
  }
  PackedDocuments packed(model::BatchShape batch) const {
    std::mt19937_64 generator(seed() + 77);
    return packed_documents(static_cast<int>(seed() % 3), batch, generator);
  }
};

TEST_P(HyperConnectionTest, ForwardAndGradientsMatchAutograd) {
  std::mt19937_64 generator(seed() + 1000);
  const model::BatchShape batch = random_batch(seed());
  expect_layer_matches_autograd(spec(), 0, batch, packed(batch), generator);
}

TEST_P(HyperConnectionTest, DeferredWeightGradientsAreTheSameBits) {
  std::mt19937_64 generator(seed() + 2000);
  const model::BatchShape batch = random_batch(seed());
  expect_deferred_gradients_equal(spec(), batch, packed(batch), generator);
}

TEST_P(HyperConnectionTest, ModelMatchesAutogradAndHoldsWhatItDeclares) {
  std::mt19937_64 generator(seed() + 3000);
  const model::BatchShape batch = random_batch(seed());
  expect_model_matches_autograd(spec(), batch, packed(batch), generator);
}

TEST_P(HyperConnectionTest, MicroBatchesOfOneGlobalBatchAgree) {
  std::mt19937_64 generator(seed() + 4000);
  expect_micro_batches_agree(spec(), random_batch(seed()).seq_length, generator);
}

TEST_P(HyperConnectionTest, EvaluationHasTheLossOfTrainingAndKeepsNothing) {
  std::mt19937_64 generator(seed() + 5000);
  model::ModelSpec spec = this->spec();
  spec.dropout = {};
  const model::BatchShape batch = random_batch(seed());
  const Data data = random_data(spec, batch, generator);
  Rig rig(spec, model::float64_policy(), model::LossFusion::kUnfused, batch);
  const double trained = rig.step(data, batch.num_sequences).loss;
  const std::int64_t held = ops::memory_report().total_bytes;
  const double loss = rig.runner.evaluate(rig.cut(data, batch.num_sequences)[0]) / data.num_tokens();
  EXPECT_LE(std::abs(loss - trained), 1e-12 * std::abs(trained));
  EXPECT_EQ(ops::memory_report().total_bytes, held);
}

INSTANTIATE_TEST_SUITE_P(Seeds, HyperConnectionTest, ::testing::Range(0, 24));

/// Where nothing but the write weights differs from a plain residual stream, the model is the plain one: equal streams,
/// which a doubly stochastic exchange leaves, read with weights that add up to one and written with one.
TEST(HyperConnectionFixedTest, StreamsThatStayEqualAreThePlainModel) {
  ops::install_allocator();
  std::mt19937_64 generator(1);
  model::ModelSpec plain = random_spec(2111);
  model::ModelSpec spec = plain;
  spec.hyper = model::HyperSpec{.num_streams = 4, .sinkhorn_iterations = 200, .epsilon = 1e-14};
  const model::BatchShape batch{.num_sequences = 2, .seq_length = 9};
  const Data data = random_data(spec, batch, generator);
  Rig one(plain, model::float64_policy(), model::LossFusion::kFused, batch);
  Rig many(spec, model::float64_policy(), model::LossFusion::kFused, batch);
  for (const auto& parameter : many.store.all()) {
    const std::string& name = parameter->descriptor.name;
    if (name.ends_with("hyper_connection.scale") || name.ends_with("hyper_head.scale")) parameter->weight.zero_();
    // sigmoid(-ln 3) = 1/4, 2·sigmoid(0) = 1.
    if (name.ends_with("hyper_connection.bias")) parameter->weight.narrow(0, 0, 4).fill_(-std::log(3.0));
    if (name.ends_with("hyper_head.bias")) parameter->weight.fill_(-std::log(3.0));
  }
  const double expected = one.step(data, 2).loss;
  EXPECT_LE(std::abs(many.step(data, 2).loss - expected), 1e-12 * expected);
  for (const auto& parameter : one.store.all()) {
    if (!parameter->main_grad.defined()) continue;
    EXPECT_LE(relative_error(many.store.get(parameter->descriptor.name).main_grad, parameter->main_grad), 1e-9)
        << parameter->descriptor.name;
  }
}

TEST(HyperConnectionFixedTest, BFloat16FollowsFloat32AndLearns) {
  ops::install_allocator();
  std::mt19937_64 generator(3);
  model::ModelSpec spec = random_spec(2112);
  spec.init_std = 0.05;
  spec.output_weight = model::OutputWeight::kOwn;
  spec.hyper = model::HyperSpec{.num_streams = 4};
  const model::BatchShape batch{.num_sequences = 2, .seq_length = 16};
  const Data data = random_data(spec, batch, generator);
  model::NumericPolicy bf16;
  bf16.parameters = bf16.activations = DType::kBFloat16;
  Rig wide(spec, {}, model::LossFusion::kFused, batch);
  Rig narrow(spec, bf16, model::LossFusion::kFused, batch);
  const Tensor weight = wide.store.get("decoder.layers.1.mlp_hyper_connection.weight").weight.clone();
  double first = 0.0;
  for (int step = 0; step < 20; ++step) {
    const double a = wide.step(data, 2, 1e-2).loss;
    const double b = narrow.step(data, 2, 1e-2).loss;
    if (step == 0) first = a;
    EXPECT_NEAR(a, b, 0.05 * first) << "step " << step;
  }
  EXPECT_LT(wide.step(data, 2, 0.0).loss, 0.8 * first);
  EXPECT_FALSE(at::equal(weight, wide.store.get("decoder.layers.1.mlp_hyper_connection.weight").weight));
}

}  // namespace
}  // namespace primus
