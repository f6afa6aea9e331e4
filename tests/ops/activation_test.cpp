#include "ops/swiglu/activation.hpp"

#include <ATen/ops/gelu.h>
#include <ATen/ops/sum.h>
#include <gtest/gtest.h>

#include <limits>

#include "ops/swiglu/swiglu.hpp"
#include "support/tensors.hpp"

namespace primus {
namespace {

using at::Tensor;
using ops::ActivationFunction;
using ops::ActivationOptions;
using ops::ActivationUnit;
using namespace primus::test;

struct Case {
  const char* name;
  ActivationOptions options;
};

const Case kCases[] = {
    {"gpt_oss", {.function = ActivationFunction::kQuickGelu, .clamp = 1.5, .linear_offset = 1.0}},
    {"quick_geglu", {.function = ActivationFunction::kQuickGelu}},
    {"clamped_swiglu", {.clamp = 1.0}},
    {"shifted_swiglu", {.linear_offset = 0.5}},
    {"swiglu", {}},
    {"geglu", {.function = ActivationFunction::kGelu}},
    {"gelu", {.function = ActivationFunction::kGelu, .unit = ActivationUnit::kPlain}},
    {"tanh_gelu", {.function = ActivationFunction::kTanhGelu, .unit = ActivationUnit::kPlain}},
    {"squared_relu", {.function = ActivationFunction::kSquaredRelu, .unit = ActivationUnit::kPlain}},
    {"quick_gelu", {.function = ActivationFunction::kQuickGelu, .unit = ActivationUnit::kPlain}},
    {"silu", {.function = ActivationFunction::kSilu, .unit = ActivationUnit::kPlain}},
    {"situ", {.function = ActivationFunction::kSitu, .situ_beta = 1.5}},
    {"situ_on_both", {.function = ActivationFunction::kSitu, .situ_beta = 0.8, .situ_linear_beta = 1.2}},
};

Tensor function_of(const Tensor& x, ActivationFunction function) {
  switch (function) {
    case ActivationFunction::kSilu:
      return x.mul(x.sigmoid());
    case ActivationFunction::kQuickGelu:
      return x.mul(x.mul(1.702).sigmoid());
    case ActivationFunction::kGelu:
      return at::gelu(x);
    case ActivationFunction::kTanhGelu:
      return at::gelu(x, "tanh");
    case ActivationFunction::kSquaredRelu:
      return x.clamp_min(0.0).pow(2);
    case ActivationFunction::kSitu:
      break;  // no function of one number: situ_of
  }
  return {};
}

Tensor flattened(const Tensor& x, double beta) {
  return x.div(beta).tanh().mul(beta);
}

Tensor situ_of(const Tensor& gate, const Tensor& up, const ActivationOptions& options) {
  const Tensor linear = options.situ_linear_beta ? flattened(up, *options.situ_linear_beta) : up;
  return flattened(gate, options.situ_beta).mul(gate.sigmoid()).mul(linear);
}

Tensor reference(const Tensor& h, const ActivationOptions& options, const Tensor& prob) {
  Tensor activation;
  if (options.unit == ActivationUnit::kPlain) {
    activation = function_of(h, options.function);
  } else {
    const std::int64_t width = h.size(1) / 2;
    Tensor gate = h.narrow(1, 0, width);
    Tensor up = h.narrow(1, width, width);
    if (options.clamp) {
      gate = gate.clamp_max(*options.clamp);
      up = up.clamp(-*options.clamp, *options.clamp);
    }
    activation = options.function == ActivationFunction::kSitu
                     ? situ_of(gate, up, options)
                     : function_of(gate, options.function).mul(up.add(options.linear_offset));
  }
  return prob.defined() ? activation.mul(prob.unsqueeze(1)) : activation;
}

struct Shape {
  std::int64_t rows, width;
};

class ActivationTest : public ::testing::TestWithParam<std::tuple<Case, Shape, bool>> {};

TEST_P(ActivationTest, MatchesAutograd) {
  const auto& [given, shape, has_prob] = GetParam();
  const ActivationOptions& options = given.options;
  const std::int64_t width_in = options.input_width(shape.width);
  for (int seed = 0; seed < 3; ++seed) {
    std::mt19937_64 generator(static_cast<std::uint64_t>(seed));
    for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
      const at::ScalarType statistics = ops::accumulator_type(dtype);
      const Tensor h = random_normal({shape.rows, width_in}, dtype, generator, 2.0);
      const Tensor da = random_normal({shape.rows, shape.width}, dtype, generator);
      const Tensor prob = has_prob ? random_normal({shape.rows}, statistics, generator) : Tensor();
      Tensor a = poisoned({shape.rows, shape.width}, dtype);
      Tensor again = poisoned({shape.rows, shape.width}, dtype);
      Tensor dh = poisoned({shape.rows, width_in}, dtype);
      Tensor dprob = has_prob ? poisoned({shape.rows}, statistics) : Tensor();
      ops::activation_forward(h, options, prob, {}, a);
      ops::activation_backward(da, h, options, prob, {}, dh, dprob, again);
      EXPECT_TRUE(at::equal(a, again));
      const Tensor h64 = leaf64(h);
      const Tensor prob64 = has_prob ? leaf64(prob) : Tensor();
      const Tensor expected = reference(h64, options, prob64);
      EXPECT_LE(relative_error(a, expected), tolerance(dtype));
      if (shape.rows == 0) continue;
      at::sum(expected.mul(da.to(at::kDouble))).backward();
      EXPECT_LE(relative_error(dh, h64.grad()), tolerance(dtype));
      if (has_prob) {
        EXPECT_LE(relative_error(dprob, prob64.grad()), 3.0 * tolerance(statistics));
      }

      Tensor in_place = h.clone();
      ops::activation_backward(da, in_place, options, prob, {}, in_place, dprob, again);
      EXPECT_TRUE(at::equal(in_place, dh));
    }
  }
}

std::string name_of(const ::testing::TestParamInfo<ActivationTest::ParamType>& info) {
  const auto& [given, shape, has_prob] = info.param;
  return fmt::format("{}_{}x{}_{}", given.name, shape.rows, shape.width, has_prob ? "scaled" : "plain");
}

INSTANTIATE_TEST_SUITE_P(Cases, ActivationTest,
                         ::testing::Combine(::testing::ValuesIn(kCases),
                                            ::testing::Values(Shape{0, 5}, Shape{1, 1}, Shape{17, 33}, Shape{5, 1001}),
                                            ::testing::Bool()),
                         name_of);

TEST(ActivationTest, MatchesFiniteDifferences) {
  for (const Case& given : kCases) {
    std::mt19937_64 generator(11);
    const Tensor h = random_normal({3, given.options.input_width(5)}, at::kDouble, generator, 2.0);
    const Tensor prob = random_normal({3}, at::kDouble, generator);
    const Tensor da = random_normal({3, 5}, at::kDouble, generator);
    const auto loss = [&](const Tensor& h_point, const Tensor& prob_point) {
      Tensor a = poisoned({3, 5}, at::kDouble);
      ops::activation_forward(h_point, given.options, prob_point, {}, a);
      return at::sum(a.mul(da)).item<double>();
    };
    Tensor dh = poisoned({3, h.size(1)}, at::kDouble);
    Tensor dprob = poisoned({3}, at::kDouble);
    Tensor a = poisoned({3, 5}, at::kDouble);
    ops::activation_backward(da, h, given.options, prob, {}, dh, dprob, a);
    EXPECT_LE(relative_error(dh, finite_difference([&](const Tensor& x) { return loss(x, prob); }, h)), 1e-8)
        << given.name;
    EXPECT_LE(relative_error(dprob, finite_difference([&](const Tensor& x) { return loss(h, x); }, prob)), 1e-8)
        << given.name;
  }
}

/// A bound so far away that nothing meets it, and an offset of nothing, give SwiGLU.
TEST(ActivationTest, LooseBoundsAreSwiglu) {
  std::mt19937_64 generator(12);
  const Tensor h = random_normal({20, 62}, at::kDouble, generator, 3.0);
  Tensor bounded = poisoned({20, 31}, at::kDouble);
  Tensor swiglu = poisoned({20, 31}, at::kDouble);
  ops::activation_forward(h, {.clamp = 1e9}, {}, {}, bounded);
  ops::swiglu_forward(h, {}, {}, swiglu);
  EXPECT_LE(relative_error(bounded, swiglu), 1e-15);
}

TEST(ActivationTest, NoGradientPassesABound) {
  const ActivationOptions options{.function = ActivationFunction::kQuickGelu, .clamp = 7.0, .linear_offset = 1.0};
  Tensor h = at::zeros({1, 6}, at::kFloat);  // gate: 8, −8, 1; up: 1, −8, 9
  const std::array<float, 6> values{8, -8, 1, 1, -8, 9};
  std::copy(values.begin(), values.end(), h.data_ptr<float>());
  Tensor dh = poisoned({1, 6}, at::kFloat);
  Tensor a = poisoned({1, 3}, at::kFloat);
  Tensor no_dprob;
  ops::activation_backward(at::ones({1, 3}, at::kFloat), h, options, {}, {}, dh, no_dprob, a);
  const float* d = dh.data_ptr<float>();
  EXPECT_EQ(d[0], 0.0F);  // the gate is bounded from above
  EXPECT_NE(d[1], 0.0F);  // and not from below
  EXPECT_NE(d[2], 0.0F);
  EXPECT_NE(d[3], 0.0F);
  EXPECT_EQ(d[4], 0.0F);
  EXPECT_EQ(d[5], 0.0F);
}

TEST(ActivationTest, LargeValuesSaturate) {
  for (const Case& given : kCases) {
    if (given.options.unit != ActivationUnit::kPlain || given.options.function == ActivationFunction::kSquaredRelu) {
      continue;
    }
    Tensor h = at::zeros({1, 4}, at::kFloat);
    const std::array<float, 4> values{-1e30F, -200.0F, 200.0F, 1e30F};
    std::copy(values.begin(), values.end(), h.data_ptr<float>());
    Tensor dh = poisoned({1, 4}, at::kFloat);
    Tensor a = poisoned({1, 4}, at::kFloat);
    Tensor no_dprob;
    ops::activation_backward(at::ones({1, 4}, at::kFloat), h, given.options, {}, {}, dh, no_dprob, a);
    const std::array<float, 4> expected{0.0F, 0.0F, 200.0F, 1e30F};
    const std::array<float, 4> slope{0.0F, 0.0F, 1.0F, 1.0F};
    for (std::size_t i = 0; i < 4; ++i) {
      EXPECT_EQ(a.data_ptr<float>()[i], expected[i]) << given.name;
      EXPECT_EQ(dh.data_ptr<float>()[i], slope[i]) << given.name;
    }
  }
}

TEST(ActivationTest, RowsPastTheValidCountAreNeitherReadNorWritten) {
  std::mt19937_64 generator(13);
  for (const Case& given : kCases) {
    for (const std::int64_t valid : {0, 4, 9}) {
      const std::int64_t width_in = given.options.input_width(13);
      Tensor h = random_normal({9, width_in}, at::kFloat, generator);
      Tensor da = random_normal({9, 13}, at::kFloat, generator);
      Tensor prob = random_normal({9}, at::kFloat, generator);
      for (const Tensor& x : {h, prob, da}) {
        x.narrow(0, valid, 9 - valid).fill_(std::numeric_limits<float>::infinity());
      }
      Tensor a = poisoned({9, 13}, at::kFloat);
      Tensor dh = poisoned({9, width_in}, at::kFloat);
      Tensor dprob = poisoned({9}, at::kFloat);
      ops::activation_backward(da, h, given.options, prob, at::full({1}, valid, at::kInt), dh, dprob, a);
      for (const Tensor& x : {a, dh, dprob}) {
        EXPECT_FALSE(x.narrow(0, 0, valid).isnan().any().item<bool>()) << given.name;
        EXPECT_TRUE(valid == 9 || x.narrow(0, valid, 9 - valid).isnan().all().item<bool>()) << given.name;
      }
    }
  }
}

TEST(ActivationTest, RefusesWhatDoesNotFit) {
  Tensor a = at::zeros({4, 3}, at::kFloat);
  const ActivationOptions plain{.function = ActivationFunction::kGelu, .unit = ActivationUnit::kPlain};
  EXPECT_THROW(ops::activation_forward(at::zeros({4, 6}, at::kFloat), plain, {}, {}, a), InternalError);
  EXPECT_THROW(ops::activation_forward(at::zeros({4, 3}, at::kFloat), {.clamp = 1.0}, {}, {}, a), InternalError);
}

}  // namespace
}  // namespace primus
