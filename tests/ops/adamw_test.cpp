#include "ops/adamw/adamw.hpp"

#include <ATen/ops/mul.h>
#include <ATen/ops/sqrt.h>
#include <ATen/ops/sum.h>
#include <gtest/gtest.h>

#include <bit>
#include <limits>

#include "support/tensors.hpp"

namespace primus {
namespace {

using at::Tensor;
using ops::AdamWOptions;
using ops::Decays;
using ops::UpdateGate;
using namespace primus::test;

constexpr AdamWOptions kOptions{.beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8};

/// What one step takes beside the options.
struct Step {
  double learning_rate = 0.0;
  double weight_decay = 0.0;
  double grad_scale = 1.0;
  std::int64_t number = 1;

  UpdateGate gate(int proceed = 1) const {
    UpdateGate gate = ops::make_update_gate(at::kCPU);
    gate.rates_2[0] = learning_rate;
    gate.rates_2[1] = weight_decay;
    gate.grad_scale_1.fill_(grad_scale);
    gate.num_steps_1.fill_(number);
    gate.proceed_1.fill_(proceed);
    return gate;
  }
};

/// The formula in whole-tensor fp64 operations.
struct ReferenceState {
  Tensor weight, m, v;

  explicit ReferenceState(const Tensor& initial)
      : weight(initial.to(at::kDouble).clone()), m(at::zeros_like(weight)), v(at::zeros_like(weight)) {}

  void step(const AdamWOptions& o, const Step& s, const Tensor& main_grad) {
    const Tensor g = main_grad.to(at::kDouble).mul(s.grad_scale);
    m = m.mul(o.beta1).add(g.mul(1.0 - o.beta1));
    v = v.mul(o.beta2).add(g.mul(g).mul(1.0 - o.beta2));
    const auto t = static_cast<double>(s.number);
    const Tensor m_hat = m.div(1.0 - std::pow(o.beta1, t));
    const Tensor v_hat = v.div(1.0 - std::pow(o.beta2, t));
    const Tensor direction = weight.mul(s.weight_decay).add(m_hat.div(v_hat.sqrt().add(o.epsilon)));
    weight = weight.sub(direction.mul(s.learning_rate));
  }
};

Step step_at(std::int64_t number) {
  return {.learning_rate = 0.01 / static_cast<double>(number),
          .weight_decay = 0.1,
          .grad_scale = number % 2 == 0 ? 0.5 : 1.0,
          .number = number};
}

class AdamWTest : public ::testing::TestWithParam<std::int64_t> {};

TEST_P(AdamWTest, MatchesTheFormulaOverManySteps) {
  const std::int64_t n = GetParam();
  std::mt19937_64 generator(51);
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
    const at::ScalarType statistics = ops::accumulator_type(dtype);
    Tensor master = random_normal({n}, statistics, generator, 0.02);
    // Weights of the accumulator's type are their own master.
    Tensor weight = dtype == statistics ? master : poisoned({n}, dtype);
    Tensor m = at::zeros({n}, statistics);
    Tensor v = at::zeros({n}, statistics);
    const Tensor start = master.clone();
    ReferenceState expected(master);
    for (std::int64_t step = 1; step <= 12; ++step) {
      Tensor grad = random_normal({n}, statistics, generator, step == 5 ? 1e-6 : 1e-2);
      if (n > 2) grad[1].zero_();
      const Tensor grad_before = grad.clone();
      ops::adamw_step(kOptions, step_at(step).gate(), Decays::kYes, grad, master, m, v, weight);
      expected.step(kOptions, step_at(step), grad);
      EXPECT_TRUE(at::equal(grad, grad_before));
      EXPECT_TRUE(at::equal(weight, master.to(dtype)));
    }
    EXPECT_LE(relative_error(master, expected.weight), tolerance(statistics) * 0.1);
    // What the steps changed, not only where the weights are.
    const Tensor expected_change = expected.weight.sub(start.to(at::kDouble));
    EXPECT_LE(relative_error(master.to(at::kDouble).sub(start), expected_change), tolerance(statistics));
    EXPECT_LE(relative_error(m, expected.m), tolerance(statistics));
    EXPECT_LE(relative_error(v, expected.v), tolerance(statistics));
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, AdamWTest, ::testing::Values(0, 1, 7, 33, 1000, 40001));

TEST(AdamWTest, FirstStepIsTheSignOfTheGradient) {
  Tensor weight = at::ones({2}, at::kDouble);
  Tensor grad = at::ones({2}, at::kDouble);
  grad[1] = -1e-3;
  Tensor m = at::zeros({2}, at::kDouble);
  Tensor v = at::zeros({2}, at::kDouble);
  ops::adamw_step({.epsilon = 0.0}, Step{.learning_rate = 0.25}.gate(), Decays::kYes, grad, weight, m, v, weight);
  EXPECT_NEAR(weight[0].item<double>(), 0.75, 1e-14);
  EXPECT_NEAR(weight[1].item<double>(), 1.25, 1e-14);
}

TEST(AdamWTest, DecayIsDecoupled) {
  Tensor weight = at::full({3}, 2.0, at::kDouble);
  const Tensor grad = at::zeros({3}, at::kDouble);
  Tensor m = at::zeros({3}, at::kDouble);
  Tensor v = at::zeros({3}, at::kDouble);
  const UpdateGate gate = Step{.learning_rate = 0.1, .weight_decay = 0.5}.gate();
  ops::adamw_step({}, gate, Decays::kNo, grad, weight, m, v, weight);
  EXPECT_EQ(weight[0].item<double>(), 2.0);
  ops::adamw_step({}, gate, Decays::kYes, grad, weight, m, v, weight);
  EXPECT_NEAR(weight[0].item<double>(), 2.0 - 0.1 * 0.5 * 2.0, 1e-15);
  EXPECT_EQ(m.abs().sum().item<double>(), 0.0);
}

TEST(AdamWTest, AClosedGateLeavesEverythingAsItIs) {
  std::mt19937_64 generator(54);
  const Tensor grad = at::full({9}, std::numeric_limits<double>::quiet_NaN(), at::kFloat);
  Tensor master = random_normal({9}, at::kFloat, generator);
  Tensor m = random_normal({9}, at::kFloat, generator);
  Tensor v = random_normal({9}, at::kFloat, generator);
  Tensor weight = random_normal({9}, at::kBFloat16, generator);
  std::vector<Tensor> before;
  for (const Tensor& x : {master, m, v, weight}) before.push_back(x.clone());
  ops::adamw_step(kOptions, step_at(2).gate(/*proceed=*/0), Decays::kYes, grad, master, m, v, weight);
  std::size_t i = 0;
  for (const Tensor& x : {master, m, v, weight}) EXPECT_TRUE(at::equal(x, before[i++]));
}

TEST(CloseGateTest, ClipsCountsAndStops) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  constexpr double kInf = std::numeric_limits<double>::infinity();
  struct Case {
    double loss, squares, clip, scale;
    int proceed;
  };
  UpdateGate gate = ops::make_update_gate(at::kCPU);
  std::int64_t steps = 0;
  for (const Case& c : {Case{2.0, 16.0, 1.0, 1.0 / (4.0 + 1e-6), 1}, Case{2.0, 0.25, 1.0, 1.0, 1},
                        Case{2.0, 16.0, 0.0, 1.0, 1}, Case{kNan, 16.0, 1.0, 0.0, 0}, Case{2.0, kNan, 1.0, 0.0, 0},
                        Case{2.0, kInf, 0.0, 0.0, 0}, Case{-kInf, 0.0, 0.0, 0.0, 0}, Case{0.0, 0.0, 1.0, 1.0, 1}}) {
    ops::close_gate(at::full({1}, c.loss, at::kDouble), at::full({1}, c.squares, at::kDouble), c.clip, gate);
    steps += c.proceed;
    EXPECT_EQ(gate.proceed_1.item<std::int32_t>(), c.proceed);
    EXPECT_EQ(gate.num_steps_1.item<std::int64_t>(), steps);
    if (c.proceed == 0) continue;
    EXPECT_EQ(gate.grad_scale_1.item<double>(), c.scale);
  }
}

TEST(AdamWTest, SameBitsWithAnyNumberOfThreads) {
  std::mt19937_64 generator(52);
  const Tensor start = random_normal({100003}, at::kFloat, generator);
  const Tensor grad = random_normal({100003}, at::kFloat, generator);
  std::vector<Tensor> results;
  for (const int threads : {1, 2}) {
    at::set_num_threads(threads);
    Tensor weight = start.clone();
    Tensor m = at::full({100003}, 0.01, at::kFloat);
    Tensor v = at::full({100003}, 0.02, at::kFloat);
    ops::adamw_step(kOptions, step_at(3).gate(), Decays::kYes, grad, weight, m, v, weight);
    results.insert(results.end(), {weight, m, v});
  }
  for (std::size_t i = 0; i < 3; ++i) EXPECT_TRUE(at::equal(results[i], results[i + 3]));
}

TEST(AdamWTest, RefusesWhatDoesNotFit) {
  Tensor weight = at::zeros({4}, at::kFloat);
  Tensor state = at::zeros({4}, at::kFloat);
  Tensor wide = at::zeros({4}, at::kDouble);
  Tensor longer = at::zeros({5}, at::kFloat);
  const UpdateGate gate = Step{}.gate();
  const auto step = [](const UpdateGate& by, const Tensor& grad, Tensor& master, Tensor& moments, Tensor& to) {
    ops::adamw_step({}, by, Decays::kYes, grad, master, moments, moments, to);
  };
  EXPECT_NO_THROW(step(gate, state, weight, state, weight));
  EXPECT_THROW(step(gate, longer, weight, state, weight), InternalError);
  EXPECT_THROW(step(gate, state, wide, wide, weight), InternalError);
  EXPECT_THROW(step(Step{.number = 0}.gate(), state, weight, state, weight), InternalError);
  EXPECT_THROW(step({}, state, weight, state, weight), InternalError);
}

double sum_of_squares(const Tensor& x) {
  Tensor sum = at::zeros({1}, at::kDouble);
  ops::add_sum_of_squares(x, sum);
  return sum.item<double>();
}

TEST(SumOfSquaresTest, MatchesADoubleSumForAnyNumberOfThreads) {
  std::mt19937_64 generator(53);
  for (const std::int64_t n : {0, 1, 5, 16383, 16384, 16385, 200001}) {
    for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
      const Tensor x = random_normal({n}, dtype, generator);
      at::set_num_threads(1);
      const double one = sum_of_squares(x);
      at::set_num_threads(2);
      EXPECT_EQ(one, sum_of_squares(x));
      const Tensor x64 = x.to(at::kDouble);
      const double expected = at::sum(x64.mul(x64)).item<double>();
      EXPECT_NEAR(one, expected, 1e-12 * expected);
    }
  }
  Tensor sum = at::ones({1}, at::kDouble);
  ops::add_sum_of_squares(at::full({2}, 3.0, at::kFloat), sum);
  EXPECT_EQ(sum.item<double>(), 19.0);
  EXPECT_NEAR(sum_of_squares(at::full({3}, 1e30, at::kFloat)), 3e60, 1e54);  // past fp32's range
}

TEST(HasNonfiniteTest, FindsOneBadElementAnywhere) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
    for (const std::int64_t n : {1, 17, 40000}) {
      Tensor x = at::full({n}, 1e38, dtype);
      x[0] = 1e-40;
      EXPECT_FALSE(ops::has_nonfinite(x));
      for (const double bad : {std::numeric_limits<double>::quiet_NaN(), kInf, -kInf}) {
        for (const std::int64_t place : {std::int64_t{0}, n / 2, n - 1}) {
          Tensor broken = x.clone();
          broken[place] = bad;
          EXPECT_TRUE(ops::has_nonfinite(broken)) << bad << " at " << place << " of " << n;
        }
      }
    }
  }
  EXPECT_FALSE(ops::has_nonfinite(at::zeros({0}, at::kFloat)));
}

TEST(AdamWHalves, AreTheMasterBitForBit) {
  // Every pattern of the low half beside upper halves of both parities and signs, largest and smallest values too.
  std::vector<float> values;
  for (const std::uint32_t upper : {0x0000U, 0x0001U, 0x3F80U, 0x3F81U, 0xBF80U, 0x7F7EU, 0x8000U, 0x0080U}) {
    for (std::uint32_t low = 0; low < 0x10000U; ++low) values.push_back(std::bit_cast<float>(upper << 16U | low));
  }
  const Tensor master = at::from_blob(values.data(), {static_cast<std::int64_t>(values.size())}, at::kFloat);
  Tensor weight = at::empty(master.sizes(), at::kBFloat16);
  Tensor low_bits = at::empty(master.sizes(), at::kShort);
  ops::split_halves(master, weight, low_bits);
  EXPECT_TRUE(at::equal(ops::join_halves(weight, low_bits).view(at::kInt), master.view(at::kInt)));
  // The weight is the rounded master, but for ties.
  const Tensor is_tie = master.view(at::kInt).bitwise_and(0xFFFF).eq(0x8000);
  EXPECT_EQ(is_tie.sum().item<std::int64_t>(), 8);
  const Tensor rounded = master.to(at::kBFloat16);
  EXPECT_TRUE(weight.eq(rounded).logical_or(is_tie).all().item<bool>());
  EXPECT_FALSE(weight.eq(rounded).all().item<bool>());
}

TEST(AdamWHalves, StepLikeAWholeMaster) {
  std::mt19937_64 generator(45);
  const Tensor start = random_normal({5000}, at::kFloat, generator, 0.02);
  Tensor master = start.clone();
  Tensor m = at::zeros_like(start), v = at::zeros_like(start);
  Tensor m_halves = m.clone(), v_halves = v.clone();
  Tensor weight = at::empty(start.sizes(), at::kBFloat16), low_bits = at::empty(start.sizes(), at::kShort);
  Tensor unused = start.to(at::kBFloat16);
  ops::split_halves(start, weight, low_bits);
  for (std::int64_t t = 1; t <= 20; ++t) {
    const UpdateGate gate =
        Step{.learning_rate = 1e-3, .weight_decay = 0.1, .grad_scale = 0.7, .number = t}.gate(t != 7);
    const Tensor grad = random_normal({5000}, at::kFloat, generator);
    ops::adamw_step(kOptions, gate, Decays::kYes, grad, master, m, v, unused);
    ops::adamw_halves_step(kOptions, gate, Decays::kYes, grad, low_bits, m_halves, v_halves, weight);
    ASSERT_TRUE(at::equal(ops::join_halves(weight, low_bits), master)) << t;
    ASSERT_TRUE(at::equal(m_halves, m) && at::equal(v_halves, v)) << t;
  }
}

}  // namespace
}  // namespace primus
