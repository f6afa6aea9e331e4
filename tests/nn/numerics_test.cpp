// Options of the numbers' way through the model (norms, residuals, dropout, scales, bounds, units that flatten out,
// alternating halves): loss and every gradient against autograd, recomputation bit for bit, held against declared
// bytes, cuts into micro-batches, evaluation, and wide residual streams.
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include "model/pass_peaks.hpp"
#include "nn/reference.hpp"
#include "nn/rig.hpp"
#include "nn/rope_tables.hpp"

namespace primus {
namespace {

using at::Tensor;
using namespace primus::test;

model::ModelSpec numerics_spec(std::uint64_t seed) {
  model::ModelSpec spec = random_mlp_spec(seed);
  spec.num_mtp_layers = static_cast<std::int64_t>(seed % 3);
  randomise_numerics(spec, seed);
  return spec;
}

class NumericsTest : public ::testing::TestWithParam<int> {
 public:
  static void SetUpTestSuite() {
    ops::install_allocator();
    ops::set_fresh_memory(ops::FreshMemory::kPoisoned);
  }
  std::uint64_t seed() const { return static_cast<std::uint64_t>(GetParam()) + 2600; }
};

/// How far the gradients move when each weight is rounded to fp32 once more: what the model makes of one rounding.
double sensitivity(const nn::ParameterStore& store, const Data& data, const model::ModelSpec& spec) {
  const auto gradients = [&](double size) {
    at::manual_seed(1);
    ReferenceParameters p = reference_parameters(store);
    for (auto& [name, leaf] : p) {
      leaf = leaf.detach().mul(at::randn_like(leaf.detach()).mul_(size).add_(1.0)).requires_grad_(true);
    }
    reference_model(data.ids_BS, data.labels_BS, data.mask_BS, spec, p).total(spec, data.num_tokens()).backward();
    return p;
  };
  const ReferenceParameters exact = gradients(0.0);
  double largest = 0.0;
  for (const auto& [name, leaf] : gradients(3e-8)) {
    const Tensor& expected = exact.at(name).grad();
    if (expected.defined() && leaf.grad().defined()) largest = std::max(largest, relative_error(leaf.grad(), expected));
  }
  return largest;
}

TEST_P(NumericsTest, LossAndEveryGradientMatchAutograd) {
  std::mt19937_64 generator(seed());
  const model::ModelSpec spec = numerics_spec(seed());
  const model::BatchShape batch = random_batch(seed());
  const Data data = random_data(spec, batch, generator);
  data.mask_BS.flatten().slice(0, 0, 1).fill_(1);  // without any token all gradients are rounding noise
  for (const auto fusion : {model::LossFusion::kFused, model::LossFusion::kUnfused}) {
    for (const bool in_fp64 : {true, false}) {
      Rig rig(spec, in_fp64 ? model::float64_policy() : model::NumericPolicy{}, fusion, batch);
      const engine::StepResult result = rig.step(data, batch.num_sequences);
      const ReferenceParameters p = reference_parameters(rig.store);
      const ReferenceLoss expected = reference_model(data.ids_BS, data.labels_BS, data.mask_BS, spec, p);
      expected.total(spec, data.num_tokens()).backward();
      const double loss = expected.loss_sum.item<double>() / data.num_tokens();
      EXPECT_LE(std::abs(result.loss - loss), (in_fp64 ? 1e-12 : 1e-6) * std::abs(loss));
      std::string worst;
      // Each of some dozen operations rounds once.
      const double bound = in_fp64 ? 1e-9 : std::max(1e-5, 12.0 * sensitivity(rig.store, data, spec));
      EXPECT_LE(worst_gradient_error(rig.store, p, &worst), bound) << worst;
    }
  }
}

TEST_P(NumericsTest, RecomputationChangesNoBitAndHoldsWhatIsDeclared) {
  std::mt19937_64 generator(seed());
  const model::ModelSpec spec = numerics_spec(seed());
  const model::BatchShape batch = random_batch(seed());
  const Data data = random_data(spec, batch, generator);
  model::RecomputeSpec whole;
  whole.layers.assign(static_cast<std::size_t>(spec.num_layers() + spec.num_mtp_layers),
                      model::LayerRecompute::kAllButInput);
  const model::RecomputeSpec modules{.layers = {},
                                     .modules = {model::RecomputeModule::kCoreAttention, model::RecomputeModule::kMoe}};
  const auto settings = [&](const model::RecomputeSpec& recompute, DType type) {
    engine::StepSettings step;
    step.policy.parameters = step.policy.activations = type;
    if (type != DType::kFloat32) step.policy.residual = step.policy.logits = DType::kFloat32;
    step.micro_batch = batch;
    step.clip_grad = 0.0;
    step.recompute = recompute;
    return step;
  };
  for (const DType type : {DType::kFloat32, DType::kBFloat16}) {
    Rig plain(spec, settings({}, type), {});
    plain.step(data, batch.num_sequences, 1e-2);
    for (const model::RecomputeSpec& recompute : {whole, modules}) {
      Rig rig(spec, settings(recompute, type), {});
      rig.step(data, batch.num_sequences, 1e-2);
      for (std::size_t i = 0; i < plain.store.all().size(); ++i) {
        EXPECT_TRUE(at::equal(rig.store.all()[i]->weight, plain.store.all()[i]->weight))
            << plain.store.all()[i]->descriptor.name;
      }
      const engine::StepSettings step_settings = settings(recompute, type);
      model::SavedDeclaration declaration =
          model::model_saved(spec, step_settings.policy, batch, step_settings.loss_fusion);
      model::mark_recomputed(spec, recompute, declaration);
      std::vector<nn::MicroBatchInput> input = rig.cut(data, batch.num_sequences);
      nn::add_depths(input, batch, spec.num_mtp_layers, spec.mtp_loss_scale);
      const nn::StepContext step{.batch = batch, .rope = nn::rope_tables(spec.rope, batch.seq_length, at::kFloat)};
      nn::Saved saved(declaration);
      const ops::MemoryReport before = ops::memory_report();
      ops::reset_peak();
      rig.model.forward(input[0], saved, step);
      expect_held_as_declared(before, ops::memory_report(), declaration);
      ops::reset_peak();
      rig.model.backward(input[0], saved, step);
      EXPECT_EQ(ops::memory_report().total_bytes, before.total_bytes) << "backward leaves nothing behind";
      EXPECT_EQ(ops::memory_report().saved_peak_bytes - before.saved_bytes(),
                model::pass_peaks({.spec = spec,
                                   .policy = step_settings.policy,
                                   .batch = batch,
                                   .fusion = step_settings.loss_fusion,
                                   .content = model::whole_model(spec)},
                                  declaration)
                    .backward.saved);
    }
  }
}

TEST_P(NumericsTest, CutsIntoMicroBatchesAndDeferredWeightGradientsAgree) {
  std::mt19937_64 generator(seed());
  model::ModelSpec spec = numerics_spec(seed());
  model::RouterLosses& losses = spec.moe->router.losses;
  losses.aux = losses.global_aux = 0.0;  // defined per micro-batch
  const model::BatchShape all{.num_sequences = 4, .seq_length = 7};
  const Data data = random_data(spec, all, generator);
  Rig one(spec, model::float64_policy(), model::LossFusion::kUnfused, all);
  one.step(data, 4);
  for (const std::int64_t sequences : {1, 2}) {
    Rig many(spec, model::float64_policy(), model::LossFusion::kFused, {.num_sequences = sequences, .seq_length = 7});
    many.step(data, sequences);
    EXPECT_LE(worst_difference(many.store, one.store), 1e-11) << sequences;
  }
  using schedule::ActionKind;
  Rig apart(spec, model::float64_policy(), model::LossFusion::kUnfused, all);
  apart.step_with(data, 4,
                  {{ActionKind::kForward, {0}, {}},
                   {ActionKind::kBackward, {0}, {}},
                   {ActionKind::kWeightGrad, {0}, {}},
                   {ActionKind::kReduceGradients, {}, {}},
                   {ActionKind::kOptimizerStep, {}, {}}});
  EXPECT_LE(worst_difference(apart.store, one.store), 1e-13);
}

TEST_P(NumericsTest, EvaluationDropsNothing) {
  std::mt19937_64 generator(seed());
  model::ModelSpec spec = numerics_spec(seed());
  const model::BatchShape batch = random_batch(seed());
  const Data data = random_data(spec, batch, generator);
  Rig rig(spec, model::float64_policy(), model::LossFusion::kFused, batch);
  spec.dropout = {};
  Rig whole(spec, model::float64_policy(), model::LossFusion::kFused, batch);
  EXPECT_EQ(rig.runner.evaluate(rig.cut(data, batch.num_sequences)[0]),
            whole.runner.evaluate(whole.cut(data, batch.num_sequences)[0]));
}

INSTANTIATE_TEST_SUITE_P(Seeds, NumericsTest, ::testing::Range(0, 24));

/// A bf16 model of many layers: the wide stream loses less than the narrow one, against fp32 with the same weights.
TEST(WideResidualTest, LiesNearerToFp32) {
  ops::install_allocator();
  std::mt19937_64 generator(5);
  model::ModelSpec spec = random_spec(11);
  spec.layers.assign(24, model::LayerKind::kDense);
  spec.moe.reset();
  const model::BatchShape batch{.num_sequences = 2, .seq_length = 16};
  const Data data = random_data(spec, batch, generator);
  const auto loss_of = [&](const model::NumericPolicy& policy) {
    Rig rig(spec, policy, model::LossFusion::kFused, batch);
    return rig.step(data, 2).loss;
  };
  model::NumericPolicy narrow;
  narrow.parameters = narrow.activations = DType::kBFloat16;
  model::NumericPolicy wide = narrow;
  wide.residual = DType::kFloat32;
  const double exact = loss_of({});
  EXPECT_LT(std::abs(loss_of(wide) - exact), std::abs(loss_of(narrow) - exact));
}

}  // namespace
}  // namespace primus
