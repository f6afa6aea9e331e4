#include "ops/decay_gate/decay_gate.hpp"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/softplus.h>
#include <gtest/gtest.h>

#include "support/tensors.hpp"

namespace primus {
namespace {

using at::Tensor;
using namespace primus::test;

struct Case {
  Tensor x, dy;
  ops::DecayGate gate;
};

Case random_case(std::int64_t tokens, std::int64_t heads, std::int64_t width, std::optional<double> lower_bound,
                 at::ScalarType dtype, std::mt19937_64& generator, double scale = 1.0) {
  // A token's numbers stand in a wider row.
  Tensor wide = poisoned({tokens, heads * width + 3}, dtype);
  Tensor x = wide.narrow(1, 1, heads * width).unflatten(1, {heads, width});
  x.copy_(random_normal({tokens, heads, width}, dtype, generator, scale));
  return {x,
          random_normal({tokens, heads, width}, ops::accumulator_type(dtype), generator),
          {random_normal({heads}, dtype, generator), random_normal({heads * width}, dtype, generator), lower_bound}};
}

Tensor reference(const Tensor& x, const Tensor& a_log, const Tensor& dt_bias, const ops::DecayGate& gate) {
  const Tensor u = x + dt_bias.view({x.size(1), x.size(2)});
  const Tensor rate = a_log.exp().view({-1, 1});
  // A threshold beyond all values: softplus itself, not torch's straight line from 20 on.
  return gate.lower_bound ? at::sigmoid(rate * u) * *gate.lower_bound : -rate * at::softplus(u, 1, 700);
}

struct Output {
  Tensor y, dx;
  ops::DecayGateGradient gradient;
};

Output run(const Case& c) {
  const auto sums = c.dy.options();
  Output out{poisoned(c.dy.sizes().vec(), c.dy.scalar_type()),
             poisoned(c.x.sizes().vec(), c.x.scalar_type()),
             {at::ones(c.gate.a_log_A.sizes(), sums), at::ones(c.gate.dt_bias.sizes(), sums)}};
  ops::decay_gate_forward(c.x, c.gate, out.y);
  ops::decay_gate_backward(c.dy, c.x, c.gate, out.dx, out.gradient);
  return out;
}

TEST(DecayGateTest, MatchesAutograd) {
  std::mt19937_64 generator(1);
  for (const auto& [tokens, heads, width] : {std::tuple{1, 1, 1}, {5, 3, 1}, {300, 4, 16}, {33, 2, 7}}) {
    for (const std::optional<double> bound : {std::optional<double>(), std::optional(-5.0)}) {
      for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
        SCOPED_TRACE(
            fmt::format("T {} A {} K {} {} {}", tokens, heads, width, bound.has_value(), c10::toString(dtype)));
        const Case c = random_case(tokens, heads, width, bound, dtype, generator);
        const Output out = run(c);
        const Tensor x = leaf64(c.x);
        const Tensor a_log = leaf64(c.gate.a_log_A);
        const Tensor dt_bias = leaf64(c.gate.dt_bias);
        const Tensor y = reference(x, a_log, dt_bias, c.gate);
        y.backward(c.dy.to(at::kDouble));
        EXPECT_LE(relative_error(out.y, y), tolerance(dtype));
        EXPECT_LE(relative_error(out.dx, x.grad()), tolerance(dtype));
        EXPECT_LE(relative_error(out.gradient.a_log_A, a_log.grad() + 1), tolerance(dtype));
        EXPECT_LE(relative_error(out.gradient.dt_bias, dt_bias.grad() + 1), tolerance(dtype));
      }
    }
  }
}

// Far from zero softplus is x or exp(x): neither overflows, and neither loses its digits.
TEST(DecayGateTest, LargeNumbersStayExact) {
  std::mt19937_64 generator(2);
  for (const std::optional<double> bound : {std::optional<double>(), std::optional(-5.0)}) {
    const Case c = random_case(40, 2, 3, bound, at::kFloat, generator, 60.0);
    const Output out = run(c);
    const Tensor y =
        reference(c.x.to(at::kDouble), c.gate.a_log_A.to(at::kDouble), c.gate.dt_bias.to(at::kDouble), c.gate);
    EXPECT_TRUE(out.y.isfinite().all().item<bool>() && out.dx.isfinite().all().item<bool>());
    EXPECT_LE(relative_error(out.y, y), 1e-5);
    EXPECT_LE(out.y.max().item<float>(), 0.0F);
  }
}

TEST(DecayGateTest, MatchesFiniteDifferencesAndOneThread) {
  std::mt19937_64 generator(3);
  for (const std::optional<double> bound : {std::optional<double>(), std::optional(-5.0)}) {
    const Case c = random_case(4, 2, 3, bound, at::kDouble, generator);
    const auto loss = [&](const Tensor& point) {
      Tensor y = poisoned(c.dy.sizes().vec(), at::kDouble);
      ops::decay_gate_forward(point, c.gate, y);
      return y.mul(c.dy).sum().item<double>();
    };
    EXPECT_LE(relative_error(run(c).dx, finite_difference(loss, c.x.contiguous())), 1e-7);
    const Case large = random_case(700, 3, 5, bound, at::kFloat, generator);
    const Output two = run(large);
    const int threads = at::get_num_threads();
    at::set_num_threads(1);
    const Output one = run(large);
    at::set_num_threads(threads);
    EXPECT_TRUE(at::equal(one.y, two.y) && at::equal(one.dx, two.dx));
    EXPECT_TRUE(at::equal(one.gradient.a_log_A, two.gradient.a_log_A));
    EXPECT_TRUE(at::equal(one.gradient.dt_bias, two.gradient.dt_bias));
  }
}

TEST(DecayGateTest, RefusesShapesThatDoNotAgree) {
  std::mt19937_64 generator(4);
  Case c = random_case(4, 2, 3, {}, at::kFloat, generator);
  Tensor y = at::zeros({4, 2, 4}, at::kFloat);
  EXPECT_THROW(ops::decay_gate_forward(c.x, c.gate, y), InternalError);
  Tensor fitting = at::zeros({4, 2, 3}, at::kFloat);
  c.gate.dt_bias = at::zeros({2}, at::kFloat);
  EXPECT_THROW(ops::decay_gate_forward(c.x, c.gate, fitting), InternalError);
}

}  // namespace
}  // namespace primus
