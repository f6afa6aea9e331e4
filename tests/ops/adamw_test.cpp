#include "ops/adamw/adamw.hpp"

#include <ATen/ops/mul.h>
#include <ATen/ops/sqrt.h>
#include <ATen/ops/sum.h>
#include <gtest/gtest.h>

#include <limits>

#include "support/tensors.hpp"

namespace primus {
namespace {

using at::Tensor;
using ops::AdamWOptions;
using namespace primus::test;

/// The formula in whole-tensor fp64 operations.
struct ReferenceState {
  Tensor weight, m, v;

  explicit ReferenceState(const Tensor& initial)
      : weight(initial.to(at::kDouble).clone()), m(at::zeros_like(weight)), v(at::zeros_like(weight)) {}

  void step(const AdamWOptions& o, const Tensor& main_grad) {
    const Tensor g = main_grad.to(at::kDouble).mul(o.grad_scale);
    m = m.mul(o.beta1).add(g.mul(1.0 - o.beta1));
    v = v.mul(o.beta2).add(g.mul(g).mul(1.0 - o.beta2));
    const auto t = static_cast<double>(o.step);
    const Tensor m_hat = m.div(1.0 - std::pow(o.beta1, t));
    const Tensor v_hat = v.div(1.0 - std::pow(o.beta2, t));
    const Tensor direction = weight.mul(o.weight_decay).add(m_hat.div(v_hat.sqrt().add(o.epsilon)));
    weight = weight.sub(direction.mul(o.learning_rate));
  }
};

AdamWOptions options_at(std::int64_t step) {
  return {.learning_rate = 0.01 / static_cast<double>(step),
          .beta1 = 0.9,
          .beta2 = 0.95,
          .epsilon = 1e-8,
          .weight_decay = 0.1,
          .step = step,
          .grad_scale = step % 2 == 0 ? 0.5 : 1.0};
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
      ops::adamw_step(options_at(step), grad, master, m, v, weight);
      expected.step(options_at(step), grad);
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
  const AdamWOptions options{.learning_rate = 0.25, .epsilon = 0.0};
  ops::adamw_step(options, grad, weight, m, v, weight);
  EXPECT_NEAR(weight[0].item<double>(), 0.75, 1e-14);
  EXPECT_NEAR(weight[1].item<double>(), 1.25, 1e-14);
}

TEST(AdamWTest, DecayIsDecoupled) {
  Tensor weight = at::full({3}, 2.0, at::kDouble);
  const Tensor grad = at::zeros({3}, at::kDouble);
  Tensor m = at::zeros({3}, at::kDouble);
  Tensor v = at::zeros({3}, at::kDouble);
  ops::adamw_step({.learning_rate = 0.1, .weight_decay = 0.5}, grad, weight, m, v, weight);
  EXPECT_NEAR(weight[0].item<double>(), 2.0 - 0.1 * 0.5 * 2.0, 1e-15);
  EXPECT_EQ(m.abs().sum().item<double>(), 0.0);
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
    ops::adamw_step(options_at(3), grad, weight, m, v, weight);
    results.insert(results.end(), {weight, m, v});
  }
  for (std::size_t i = 0; i < 3; ++i) EXPECT_TRUE(at::equal(results[i], results[i + 3]));
}

TEST(AdamWTest, RefusesWhatDoesNotFit) {
  Tensor weight = at::zeros({4}, at::kFloat);
  Tensor state = at::zeros({4}, at::kFloat);
  Tensor wide = at::zeros({4}, at::kDouble);
  Tensor longer = at::zeros({5}, at::kFloat);
  EXPECT_THROW(ops::adamw_step({}, longer, weight, state, state, weight), InternalError);
  EXPECT_THROW(ops::adamw_step({}, state, wide, wide, wide, weight), InternalError);
  EXPECT_THROW(ops::adamw_step({.step = 0}, state, weight, state, state, weight), InternalError);
}

TEST(SumOfSquaresTest, MatchesADoubleSumForAnyNumberOfThreads) {
  std::mt19937_64 generator(53);
  for (const std::int64_t n : {0, 1, 5, 16383, 16384, 16385, 200001}) {
    for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
      const Tensor x = random_normal({n}, dtype, generator);
      at::set_num_threads(1);
      const double one = ops::sum_of_squares(x);
      at::set_num_threads(2);
      EXPECT_EQ(one, ops::sum_of_squares(x));
      const Tensor x64 = x.to(at::kDouble);
      const double expected = at::sum(x64.mul(x64)).item<double>();
      EXPECT_NEAR(one, expected, 1e-12 * expected);
    }
  }
  EXPECT_NEAR(ops::sum_of_squares(at::full({3}, 1e30, at::kFloat)), 3e60, 1e54);  // past fp32's range
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

}  // namespace
}  // namespace primus
