// What a step may do besides: rates scaled by width, adaptive Muon, weights clipped by their logits, a second
// computation of a step that looks wrong, prediction depths that leave the decoder alone.
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include "engine/matrix_rules.hpp"
#include "ops/allocator.hpp"
#include "rig.hpp"

namespace primus {
namespace {

using namespace primus::test;
using model::OptimizerKind;

Tensor scalar(double value) {
  return at::full({1}, value, at::kDouble);
}

/// After one step of Adam from zero moments every element has moved by the rate, whatever its gradient.
TEST(WidthScalingTest, MatricesMoveAFractionAndTheRestTheWholeOfTheRate) {
  for (const bool has_end_rate : {false, true}) {
    model::OptimizerSpec optimizer_spec;
    optimizer_spec.width = 4.0;
    optimizer_spec.epsilon = 1e-30;
    nn::ParameterStore store(model::model_parameters(random_spec(9)), model::float64_policy(), 9);
    engine::Optimizer optimizer(store, model::float64_policy(), optimizer_spec);
    std::mt19937_64 generator(2);
    std::vector<Tensor> before;
    for (const auto& parameter : store.all()) {
      before.push_back(parameter->weight.clone());
      if (!parameter->main_grad.defined()) continue;
      parameter->main_grad.copy_(random_normal(parameter->weight.sizes().vec(), at::kDouble, generator));
    }
    optimizer.set_rates({.learning_rate = 1e-3,
                         .weight_decay = 0.0,
                         .end_learning_rate = has_end_rate ? std::optional(7e-3) : std::nullopt});
    optimizer.step(scalar(0.0), scalar(1.0), 0.0);
    for (std::size_t i = 0; i < before.size(); ++i) {
      const nn::Parameter& parameter = *store.all()[i];
      if (!parameter.main_grad.defined()) continue;
      const bool is_end = parameter.descriptor.component == model::Component::kEmbedding ||
                          parameter.descriptor.component == model::Component::kOutput;
      const bool is_scaled =
          parameter.weight.dim() >= 2 && parameter.descriptor.component != model::Component::kEmbedding;
      const double rate = is_end && has_end_rate ? 7e-3 : is_scaled ? 2.5e-4 : 1e-3;
      const Tensor moved = (parameter.weight - before[i]).abs();
      EXPECT_LE(relative_error(moved, at::full_like(moved, rate)), 1e-9) << parameter.descriptor.name;
    }
  }
}

TEST(WidthScalingTest, SgdScalesWhatIsNoMatrixAndMuonNothingOfItsOwn) {
  model::OptimizerSpec spec;
  spec.width = 4.0;
  for (const model::ParameterDescriptor& parameter : model::model_parameters(random_spec(9))) {
    const bool is_wide = parameter.shape.size() >= 2 && parameter.component != model::Component::kEmbedding;
    spec.kind = OptimizerKind::kSgd;
    EXPECT_EQ(spec.rate_factor(parameter), is_wide ? 1.0 : 4.0) << parameter.name;
    EXPECT_EQ(spec.epsilon_factor(parameter), 1.0);
    spec.kind = OptimizerKind::kMuon;
    const bool is_output = parameter.component == model::Component::kOutput;
    EXPECT_EQ(spec.rate_factor(parameter), is_wide && is_output ? 0.25 : 1.0) << parameter.name;
    EXPECT_EQ(spec.epsilon_factor(parameter), 1.0);
  }
}

TEST(AdaptiveMuonTest, DividesTheDirectionByTheRootOfItsMeanSquare) {
  std::mt19937_64 generator(3);
  const model::MuonSpec muon;
  Tensor second = at::zeros({4, 6}, at::kDouble);
  Tensor mean = at::zeros({4, 6}, at::kDouble);
  for (int step = 0; step < 3; ++step) {
    const Tensor direction = random_normal({4, 6}, at::kDouble, generator);
    mean = 0.95 * mean + 0.05 * direction.pow(2);
    const Tensor result = engine::adaptive_muon_direction(muon, direction, second);
    EXPECT_LE(relative_error(result, direction / (mean.sqrt() + 1e-8)), 1e-12);
  }
}

class StepVariants : public ::testing::TestWithParam<int> {
 public:
  static void SetUpTestSuite() { ops::install_allocator(); }
  std::uint64_t seed() const { return static_cast<std::uint64_t>(GetParam()) + 3100; }
};

/// At rate 0 nothing but the clip moves the weights. After it, no logit of the first layer passes the threshold, so
/// that a second step leaves that layer alone; heads that were below it are untouched at once.
TEST_P(StepVariants, ClippedQueriesAndKeysReachTheThreshold) {
  model::ModelSpec spec = random_spec(seed());
  constexpr double kThreshold = 0.3;
  const model::BatchShape batch{.num_sequences = 2, .seq_length = 9};
  std::mt19937_64 generator(seed());
  const Data data = random_data(spec, batch, generator);
  spec.qk_clip = model::QkClip{.threshold = kThreshold, .alpha = 0.4};
  for (const DType type : {DType::kFloat64, DType::kBFloat16}) {
    model::NumericPolicy policy = model::float64_policy();
    if (type == DType::kBFloat16) {
      policy = {};
      policy.parameters = policy.activations = type;
    }
    Rig rig(spec, policy, model::LossFusion::kFused, batch);
    const auto of_first_layer = [&] {
      std::vector<Tensor> weights;
      for (nn::Parameter* parameter : rig.store.of_layer(0)) weights.push_back(parameter->weight.to(at::kDouble));
      return weights;
    };
    const std::vector<Tensor> before = of_first_layer();
    rig.step(data, 2);
    const std::vector<Tensor> clipped = of_first_layer();
    rig.step(data, 2);
    const std::vector<Tensor> again = of_first_layer();
    for (std::size_t i = 0; i < before.size(); ++i) {
      EXPECT_LE(relative_error(again[i], clipped[i]), type == DType::kFloat64 ? 1e-12 : 1e-2);
      const double largest_change = (clipped[i] - before[i]).abs().max().item<double>();
      const bool may_change = rig.store.of_layer(0)[i]->descriptor.name.find("linear_q") != std::string::npos ||
                              rig.store.of_layer(0)[i]->descriptor.name.find("linear_kv_up") != std::string::npos;
      if (!may_change) {
        EXPECT_EQ(largest_change, 0.0) << rig.store.of_layer(0)[i]->descriptor.name;
      }
    }
  }
  spec.qk_clip->threshold = 1e6;
  Rig rig(spec, model::float64_policy(), model::LossFusion::kFused, batch);
  std::vector<Tensor> before;
  for (const auto& parameter : rig.store.all()) before.push_back(parameter->weight.clone());
  rig.step(data, 2);
  for (std::size_t i = 0; i < before.size(); ++i) EXPECT_TRUE(at::equal(rig.store.all()[i]->weight, before[i]));
}

/// A decoder trains as if its detached depths were not there.
TEST_P(StepVariants, DetachedDepthsLeaveTheDecoderAlone) {
  model::ModelSpec spec = random_spec(seed());
  const model::BatchShape batch{.num_sequences = 2, .seq_length = 9};
  std::mt19937_64 generator(seed());
  const Data data = random_data(spec, batch, generator);
  Rig alone(spec, model::float64_policy(), model::LossFusion::kFused, batch);
  spec.num_mtp_layers = 2;
  spec.mtp_variant.detached = model::Part::kPresent;
  Rig with(spec, model::float64_policy(), model::LossFusion::kUnfused, batch);
  for (int step = 0; step < 3; ++step) {
    alone.step(data, 2, 1e-2);
    with.step(data, 2, 1e-2);
  }
  for (const auto& parameter : alone.store.all()) {
    EXPECT_LE(relative_error(with.store.get(parameter->descriptor.name).weight, parameter->weight), 1e-10)
        << parameter->descriptor.name;
  }
  EXPECT_GT(with.store.get("mtp.layers.1.eh_proj.weight").main_grad.norm().item<double>(), 0.0);
}

INSTANTIATE_TEST_SUITE_P(Seeds, StepVariants, ::testing::Range(0, 6));

/// A rig whose every step is injected with an error, and what its steps found.
engine::StepResult injected_step(engine::RerunMode mode, engine::InjectedError error, std::int64_t rate) {
  const model::ModelSpec spec = random_spec(4);
  const model::BatchShape batch{.num_sequences = 2, .seq_length = 5};
  std::mt19937_64 generator(8);
  const Data data = random_data(spec, batch, generator);
  engine::StepSettings settings;
  settings.micro_batch = batch;
  settings.rerun = {.mode = mode, .injection_rate = rate, .injection = error, .seed = 1};
  Rig rig(spec, settings, {});
  return rig.step(data, 2, 1e-3);
}

TEST(RerunTest, FindsWhatWasInjectedAndTrainsOnTheSoundResult) {
  using enum engine::InjectedError;
  using Kind = engine::RerunVerdict::Kind;
  const engine::StepResult plain = injected_step(engine::RerunMode::kDisabled, kTransientError, 1);
  EXPECT_FALSE(plain.rerun.has_value());
  // Validating, a machine that gives other bits ends the run; reporting, the second, sound result is trained on.
  try {
    injected_step(engine::RerunMode::kValidate, kTransientError, 1);
    ADD_FAILURE() << "two results that differ were passed over";
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("this machine computes wrongly"), std::string::npos) << error.what();
  }
  for (const auto& [mode, error, kind] : {std::tuple{engine::RerunMode::kReport, kTransientError, Kind::kDifferent},
                                          {engine::RerunMode::kValidate, kPersistentError, Kind::kSame},
                                          {engine::RerunMode::kValidate, kCorrectResult, Kind::kSame}}) {
    const engine::StepResult result = injected_step(mode, error, 1);
    ASSERT_TRUE(result.rerun.has_value());
    EXPECT_EQ(result.rerun->kind, kind);
    EXPECT_EQ(result.loss, plain.loss);
    EXPECT_EQ(result.grad_norm, plain.grad_norm);
  }
  EXPECT_FALSE(injected_step(engine::RerunMode::kValidate, kTransientError, 0).rerun.has_value());
  const engine::StepResult reported = injected_step(engine::RerunMode::kReport, kTransientError, 0);
  ASSERT_TRUE(reported.rerun.has_value());
  EXPECT_EQ(reported.rerun->kind, Kind::kSame) << "a step gives the same bits";
  EXPECT_EQ(reported.rerun->loss_difference, 0.0);
}

}  // namespace
}  // namespace primus
