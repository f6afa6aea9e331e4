// The optimizer over whole models: which parameters decay, what a master copy is for, steps that are not taken.
#include "engine/optimizer.hpp"

#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <limits>

#include "ops/muon/muon.hpp"
#include "specs.hpp"
#include "support/tensors.hpp"

namespace primus::engine {
namespace {

model::OptimizerSpec adam() {
  model::OptimizerSpec spec;
  spec.beta2 = 0.95;
  return spec;
}

struct Rig {
  Rig(std::uint64_t seed, const model::NumericPolicy& policy)
      : parameters(model::model_parameters(test::random_spec(seed)), policy, seed),
        optimizer(parameters, policy, adam()) {}

  std::vector<at::Tensor> weights() const {
    std::vector<at::Tensor> copies;
    for (const auto& parameter : parameters.all()) copies.push_back(parameter->weight.clone());
    return copies;
  }

  nn::ParameterStore parameters;
  Optimizer optimizer;
};

// The textbook form, on tensors in fp64.
struct Textbook {
  at::Tensor weight, m, v;
  void step(const at::Tensor& grad, double decay, int t, double lr) {
    m = 0.9 * m + 0.1 * grad;
    v = 0.95 * v + 0.05 * grad * grad;
    const at::Tensor m_hat = m / (1.0 - std::pow(0.9, t));
    const at::Tensor v_hat = v / (1.0 - std::pow(0.95, t));
    weight = weight - lr * (decay * weight + m_hat / (v_hat.sqrt() + 1e-8));
  }
};

at::Tensor scalar(double value) {
  return at::full({1}, value, at::kDouble);
}

TEST(Optimizer, EveryParameterOfAModelMovesAsInTheTextbook) {
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    Rig rig(seed, model::float64_policy());
    std::mt19937_64 generator(seed);
    std::vector<Textbook> expected;
    for (const at::Tensor& weight : rig.weights())
      expected.push_back({weight, at::zeros_like(weight), at::zeros_like(weight)});
    rig.optimizer.set_rates({.learning_rate = 1e-2, .weight_decay = 0.1, .end_learning_rate = {}});
    for (int t = 1; t <= 3; ++t) {
      for (std::size_t i = 0; i < expected.size(); ++i) {
        const nn::Parameter& parameter = *rig.parameters.all()[i];
        if (!parameter.main_grad.defined()) continue;
        parameter.main_grad.copy_(test::random_normal(parameter.weight.sizes().vec(), at::kDouble, generator));
        // Megatron's rule: vectors (norms, biases) do not decay.
        const double decay = parameter.weight.dim() == 1 ? 0.0 : 0.1;
        expected[i].step(parameter.main_grad / (2.0 + 1e-6), decay, t, 1e-2);
      }
      // A norm of 2, clipped to 1: the coefficient is 1 / (2 + 1e-6).
      rig.optimizer.step(scalar(0.0), scalar(4.0), 1.0);
    }
    EXPECT_EQ(rig.optimizer.num_steps(), 3);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const nn::Parameter& parameter = *rig.parameters.all()[i];
      EXPECT_LT(test::relative_error(parameter.weight, expected[i].weight), 1e-12) << parameter.descriptor.name;
    }
  }
}

TEST(Optimizer, AMasterCopyKeepsStepsThatBFloat16Cannot) {
  model::NumericPolicy policy;
  policy.parameters = policy.activations = DType::kBFloat16;
  Rig rig(2, policy);
  for (const auto& parameter : rig.parameters.all()) {
    if (parameter->main_grad.defined()) parameter->main_grad.fill_(1.0);
  }
  nn::Parameter& output = rig.parameters.get("decoder.layers.0.mlp.linear_fc1.weight");
  output.weight.fill_(1.0);
  Optimizer optimizer(rig.parameters, policy, {});
  // A step of 1e-4 is less than half a bf16 step at 1: the weight stays until the master has gone far enough.
  optimizer.set_rates({.learning_rate = 1e-4, .weight_decay = 0.0, .end_learning_rate = {}});
  optimizer.step(scalar(0.0), scalar(1.0), 0.0);
  EXPECT_TRUE(at::equal(output.weight, at::ones_like(output.weight)));
  for (int i = 0; i < 99; ++i) optimizer.step(scalar(0.0), scalar(1.0), 0.0);
  EXPECT_NEAR(output.weight.to(at::kDouble).mean().item<double>(), 0.99, 2e-3);
}

/// Each expert's matrix and each of queries, keys and values is orthogonalised alone; what is no matrix moves by Adam.
TEST(Optimizer, MuonMovesMatricesByTheirOwnDirections) {
  model::ModelSpec model_spec = test::random_spec(1);
  model_spec.attention = model::GqaSpec{.num_heads = 4, .num_query_groups = 2, .head_dim = 6};
  model::OptimizerSpec spec = adam();
  spec.kind = model::OptimizerKind::kMuon;
  spec.muon.coefficients = model::MuonCoefficients::kSimple;
  spec.muon.num_steps = 3;
  spec.muon.extra_scale = 0.2;
  const std::vector<ops::NewtonSchulzStep> steps(3, {3.4445, -4.7750, 2.0315});
  for (const auto nesterov : {model::MuonSpec::Nesterov::kOff, model::MuonSpec::Nesterov::kOn}) {
    spec.muon.nesterov = nesterov;
    const model::NumericPolicy policy = model::float64_policy();
    nn::ParameterStore parameters(model::model_parameters(model_spec), policy, 1);
    Optimizer optimizer(parameters, policy, spec);
    std::mt19937_64 generator(1);
    for (const auto& parameter : parameters.all()) {
      if (!parameter->main_grad.defined()) continue;
      parameter->main_grad.copy_(test::random_normal(parameter->weight.sizes().vec(), at::kDouble, generator));
    }
    nn::Parameter& experts = parameters.get("decoder.layers.1.mlp.experts.linear_fc1.weight");
    nn::Parameter& qkv = parameters.get("decoder.layers.0.self_attention.linear_qkv.weight");
    nn::Parameter& embedding = parameters.get("embedding.word_embeddings.weight");
    const at::Tensor experts_before = experts.weight.clone();
    const at::Tensor qkv_before = qkv.weight.clone();
    Textbook adam_embedding{embedding.weight.clone(), at::zeros_like(embedding.weight),
                            at::zeros_like(embedding.weight)};
    optimizer.set_rates({.learning_rate = 0.02, .weight_decay = 0.1, .end_learning_rate = {}});
    optimizer.step(scalar(0.0), scalar(1.0), 0.0);
    // The first momentum is 5 % of the gradient: its scale does not matter to the direction.
    const auto moved = [&](const at::Tensor& before, const at::Tensor& gradient) {
      const double factor = 0.2 * std::sqrt(static_cast<double>(std::max(before.size(0), before.size(1))));
      return before - 0.02 * (0.1 * before + factor * ops::newton_schulz(gradient, steps));
    };
    for (std::int64_t e = 0; e < experts_before.size(0); ++e) {
      EXPECT_LT(test::relative_error(experts.weight[e], moved(experts_before[e], experts.main_grad[e])), 1e-12) << e;
    }
    for (const auto& [first, rows] : {std::pair<std::int64_t, std::int64_t>{0, 24}, {24, 12}, {36, 12}}) {
      EXPECT_LT(test::relative_error(qkv.weight.narrow(0, first, rows),
                                     moved(qkv_before.narrow(0, first, rows), qkv.main_grad.narrow(0, first, rows))),
                1e-12)
          << first;
    }
    adam_embedding.step(embedding.main_grad, 0.1, 1, 0.02);
    EXPECT_LT(test::relative_error(embedding.weight, adam_embedding.weight), 1e-12);
  }
}

TEST(Optimizer, EmbeddingAndOutputMayHaveARateOfTheirOwn) {
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    Rig rig(seed, model::float64_policy());
    const std::vector<at::Tensor> before = rig.weights();
    for (const auto& parameter : rig.parameters.all()) {
      if (parameter->main_grad.defined()) parameter->main_grad.fill_(1.0);
    }
    rig.optimizer.set_rates({.learning_rate = 0.01, .weight_decay = 0.0, .end_learning_rate = 0.003});
    rig.optimizer.step(scalar(0.0), scalar(1.0), 0.0);
    for (std::size_t i = 0; i < before.size(); ++i) {
      const nn::Parameter& parameter = *rig.parameters.all()[i];
      if (!parameter.main_grad.defined()) continue;
      const std::string& name = parameter.descriptor.name;
      const bool is_end = name == "embedding.word_embeddings.weight" || name == "output_layer.weight";
      // Adam's first step is the rate itself, whatever the gradient.
      const double step = (before[i] - parameter.weight).abs().max().item<double>();
      EXPECT_NEAR(step, is_end ? 0.003 : 0.01, 1e-9) << name;
    }
  }
}

TEST(Optimizer, WhatIsNotFiniteMovesNothingAndCountsNothing) {
  Rig rig(4, model::float64_policy());
  rig.optimizer.set_rates({.learning_rate = 1e-2, .weight_decay = 0.1, .end_learning_rate = {}});
  for (const auto& parameter : rig.parameters.all()) {
    if (parameter->main_grad.defined()) parameter->main_grad.fill_(1.0);
  }
  const std::vector<at::Tensor> before = rig.weights();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double infinity = std::numeric_limits<double>::infinity();
  for (const auto& [loss, squares] : {std::pair{nan, 1.0}, {infinity, 1.0}, {0.0, nan}, {0.0, infinity}}) {
    rig.optimizer.step(scalar(loss), scalar(squares), 1.0);
    EXPECT_EQ(rig.optimizer.num_steps(), 0);
  }
  const std::vector<at::Tensor> after = rig.weights();
  for (std::size_t i = 0; i < before.size(); ++i) EXPECT_TRUE(at::equal(before[i], after[i]));
  rig.optimizer.step(scalar(0.0), scalar(1.0), 1.0);
  EXPECT_EQ(rig.optimizer.num_steps(), 1);
  EXPECT_FALSE(at::equal(before[0], rig.weights()[0]));
}

}  // namespace
}  // namespace primus::engine
