// Updates on stored state against their formulas in fp64, and against the fused AdamW bit for bit where all is fp32.
#include "ops/update/update.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/sign.h>
#include <gtest/gtest.h>

#include "support/tensors.hpp"

namespace primus {
namespace {

using at::Tensor;
using namespace primus::test;
using ops::UpdateRule;

constexpr ops::AdamWOptions kOptions{.beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8};

ops::UpdateGate gate_at(std::int64_t step, double rate, double decay, double scale) {
  ops::UpdateGate gate = ops::make_update_gate(at::kCPU);
  gate.rates_2[0].fill_(rate);
  gate.rates_2[1].fill_(decay);
  gate.grad_scale_1.fill_(scale);
  gate.num_steps_1.fill_(step);
  gate.proceed_1.fill_(1);
  return gate;
}

ops::UpdateState state_of(const Tensor& weight, DType moments, UpdateRule rule) {
  ops::UpdateState state;
  state.first_moment = ops::make_state(weight, moments);
  if (rule == UpdateRule::kAdamW) state.second_moment = ops::make_state(weight, moments);
  state.key = 99;
  return state;
}

struct Textbook {
  Tensor w, m, v;
  void step(UpdateRule rule, const Tensor& grad, int t, double rate, double decay) {
    if (rule == UpdateRule::kSgd) {
      m = 0.9 * m + grad + decay * w;
      w = w - rate * m;
    } else if (rule == UpdateRule::kLion) {
      w = w - rate * (at::sign(0.9 * m + 0.1 * grad) + decay * w);
      m = 0.95 * m + 0.05 * grad;
    } else {
      m = 0.9 * m + 0.1 * grad;
      v = 0.95 * v + 0.05 * grad * grad;
      w = w - rate * (decay * w + m / (1.0 - std::pow(0.9, t)) / ((v / (1.0 - std::pow(0.95, t))).sqrt() + 1e-8));
    }
  }
};

TEST(UpdateTest, RulesFollowTheirFormulas) {
  for (const UpdateRule rule : {UpdateRule::kAdamW, UpdateRule::kSgd, UpdateRule::kLion}) {
    for (const auto& [type, dtype] : {std::pair{DType::kFloat64, at::kDouble}, {DType::kFloat32, at::kFloat}}) {
      std::mt19937_64 generator(4);
      Tensor weight = random_normal({5000}, dtype, generator);
      ops::UpdateState state = state_of(weight, type, rule);
      Textbook expected{weight.to(at::kDouble).clone(), at::zeros({5000}, at::kDouble), at::zeros({5000}, at::kDouble)};
      for (int t = 1; t <= 5; ++t) {
        const Tensor grad = random_normal({5000}, dtype, generator);
        ops::stored_update(rule, kOptions, gate_at(t, 0.01, 0.1, 0.5), ops::Decays::kYes, grad, state, weight);
        expected.step(rule, grad.to(at::kDouble) * 0.5, t, 0.01, 0.1);
      }
      EXPECT_LE(relative_error(weight, expected.w), dtype == at::kDouble ? 1e-13 : 1e-6) << static_cast<int>(rule);
    }
  }
}

TEST(UpdateTest, EqualsTheFusedOpWhereAllIsFp32) {
  std::mt19937_64 generator(5);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    Tensor weight = random_normal({3001}, dtype, generator);
    Tensor fused_weight = weight.clone();
    Tensor fused_master = dtype == at::kFloat ? fused_weight : fused_weight.to(at::kFloat);
    Tensor m = at::zeros({3001}, at::kFloat);
    Tensor v = at::zeros({3001}, at::kFloat);
    ops::UpdateState state = state_of(weight, DType::kFloat32, UpdateRule::kAdamW);
    if (dtype != at::kFloat) {
      state.master = ops::make_state(weight, DType::kFloat32);
      state.master.values.copy_(weight);
    }
    for (int t = 1; t <= 4; ++t) {
      const Tensor grad = random_normal({3001}, at::kFloat, generator);
      const ops::UpdateGate gate = gate_at(t, 0.01, 0.1, 0.5);
      ops::stored_update(UpdateRule::kAdamW, kOptions, gate, ops::Decays::kYes, grad, state, weight);
      ops::adamw_step(kOptions, gate, ops::Decays::kYes, grad, fused_master, m, v, fused_weight);
    }
    EXPECT_TRUE(at::equal(weight, fused_weight));
    EXPECT_TRUE(at::equal(state.second_moment.values, v));
  }
}

TEST(UpdateTest, ClosedGateMovesNothing) {
  std::mt19937_64 generator(6);
  Tensor weight = random_normal({300}, at::kFloat, generator);
  const Tensor before = weight.clone();
  ops::UpdateState state = state_of(weight, DType::kFloat8, UpdateRule::kLion);
  ops::UpdateGate gate = gate_at(1, 0.1, 0.1, 1.0);
  gate.proceed_1.fill_(0);
  ops::stored_update(UpdateRule::kLion, kOptions, gate, ops::Decays::kYes, at::ones({300}, at::kFloat), state, weight);
  EXPECT_TRUE(at::equal(weight, before));
  EXPECT_TRUE(state.first_moment.values.eq(0).all().item<bool>());
}

/// A quadratic bowl: every type of state still finds its bottom.
TEST(UpdateTest, NarrowStateStillDescends) {
  for (const DType type : {DType::kFloat32, DType::kBFloat16, DType::kFloat16, DType::kFloat8}) {
    std::mt19937_64 generator(7);
    const Tensor target = random_normal({1000}, at::kFloat, generator);
    Tensor weight = at::zeros({1000}, at::kFloat);
    ops::UpdateState state = state_of(weight, type, UpdateRule::kAdamW);
    if (type == DType::kFloat16 || type == DType::kFloat8) state.second_moment.form = ops::StateForm::kRoot;
    for (int t = 1; t <= 400; ++t) {
      ops::stored_update(UpdateRule::kAdamW, kOptions, gate_at(t, 0.02 * (1.0 - t / 401.0), 0.0, 1.0), ops::Decays::kNo,
                         weight - target, state, weight);
    }
    EXPECT_LT(relative_error(weight, target), 0.02) << name(type);
  }
}

}  // namespace
}  // namespace primus
