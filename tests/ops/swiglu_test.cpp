#include "ops/swiglu/swiglu.hpp"

#include <ATen/ops/isnan.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/sum.h>
#include <gtest/gtest.h>

#include <bit>
#include <limits>

#include "ops/simd_math.hpp"
#include "support/tensors.hpp"

namespace primus {
namespace {

using at::Tensor;
using namespace primus::test;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

Tensor reference(const Tensor& h, const Tensor& prob) {
  const std::int64_t width = h.size(1) / 2;
  const Tensor gate = h.narrow(1, 0, width);
  const Tensor activation = gate.mul(at::sigmoid(gate)).mul(h.narrow(1, width, width));
  return prob.defined() ? activation.mul(prob.unsqueeze(1)) : activation;
}

Tensor one_int(std::int64_t value) {
  return at::full({1}, value, at::kInt);
}

bool all_nan(const Tensor& x) {
  return x.numel() == 0 || at::isnan(x).all().item<bool>();
}

enum class Prob { kNone, kGiven };

struct Shape {
  std::int64_t rows, width;
};

class SwigluTest : public ::testing::TestWithParam<std::tuple<Shape, Prob>> {};

TEST_P(SwigluTest, MatchesAutograd) {
  const auto [shape, with_prob] = GetParam();
  for (int seed = 0; seed < 5; ++seed) {
    std::mt19937_64 generator(static_cast<std::uint64_t>(seed));
    for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
      const at::ScalarType statistics = ops::accumulator_type(dtype);
      const Tensor h = random_normal({shape.rows, 2 * shape.width}, dtype, generator, 2.0);
      const Tensor da = random_normal({shape.rows, shape.width}, dtype, generator);
      const bool has_prob = with_prob == Prob::kGiven;
      const Tensor prob = has_prob ? random_normal({shape.rows}, statistics, generator) : Tensor();
      Tensor a = poisoned({shape.rows, shape.width}, dtype);
      Tensor again = poisoned({shape.rows, shape.width}, dtype);
      Tensor dh = poisoned({shape.rows, 2 * shape.width}, dtype);
      Tensor dprob = has_prob ? poisoned({shape.rows}, statistics) : Tensor();
      ops::swiglu_forward(h, prob, Tensor(), a);
      ops::swiglu_backward(da, h, prob, Tensor(), dh, dprob, again);
      EXPECT_TRUE(at::equal(a, again));

      const Tensor h64 = leaf64(h);
      const Tensor prob64 = has_prob ? leaf64(prob) : Tensor();
      const Tensor expected = reference(h64, prob64);
      EXPECT_LE(relative_error(a, expected), tolerance(dtype));
      if (shape.rows == 0) continue;
      at::sum(expected.mul(da.to(at::kDouble))).backward();
      EXPECT_LE(relative_error(dh, h64.grad()), tolerance(dtype));
      if (has_prob) {
        EXPECT_LE(relative_error(dprob, prob64.grad()), tolerance(statistics));
      }

      // In place: dh over h.
      Tensor in_place = h.clone();
      Tensor dprob_in_place = has_prob ? poisoned({shape.rows}, statistics) : Tensor();
      ops::swiglu_backward(da, in_place, prob, Tensor(), in_place, dprob_in_place, again);
      EXPECT_TRUE(at::equal(in_place, dh));
      EXPECT_TRUE(at::equal(again, a));
      if (has_prob) {
        EXPECT_TRUE(at::equal(dprob_in_place, dprob));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, SwigluTest,
                         ::testing::Combine(::testing::Values(Shape{0, 5}, Shape{1, 1}, Shape{3, 7}, Shape{17, 33},
                                                              Shape{129, 64}, Shape{5, 1001}, Shape{1, 8192}),
                                            ::testing::Values(Prob::kNone, Prob::kGiven)));

TEST(SwigluTest, MatchesFiniteDifferences) {
  std::mt19937_64 generator(11);
  const Tensor h = random_normal({3, 10}, at::kDouble, generator);
  const Tensor prob = random_normal({3}, at::kDouble, generator);
  const Tensor da = random_normal({3, 5}, at::kDouble, generator);
  const auto loss = [&](const Tensor& h_point, const Tensor& prob_point) {
    Tensor a = poisoned({3, 5}, at::kDouble);
    ops::swiglu_forward(h_point, prob_point, Tensor(), a);
    return at::sum(a.mul(da)).item<double>();
  };
  Tensor dh = poisoned({3, 10}, at::kDouble);
  Tensor dprob = poisoned({3}, at::kDouble);
  Tensor a = poisoned({3, 5}, at::kDouble);
  ops::swiglu_backward(da, h, prob, Tensor(), dh, dprob, a);
  EXPECT_LE(relative_error(dh, finite_difference([&](const Tensor& x) { return loss(x, prob); }, h)), 1e-8);
  EXPECT_LE(relative_error(dprob, finite_difference([&](const Tensor& x) { return loss(h, x); }, prob)), 1e-8);
}

TEST(SwigluTest, RowsPastTheValidCountAreNeitherReadNorWritten) {
  std::mt19937_64 generator(12);
  for (const std::int64_t valid : {0, 1, 6, 9}) {
    Tensor h = random_normal({9, 26}, at::kFloat, generator);
    Tensor prob = random_normal({9}, at::kFloat, generator);
    Tensor da = random_normal({9, 13}, at::kFloat, generator);
    for (const Tensor& x : {h, prob, da}) x.narrow(0, valid, 9 - valid).fill_(kInfinity);
    Tensor a = poisoned({9, 13}, at::kFloat);
    Tensor again = poisoned({9, 13}, at::kFloat);
    Tensor dh = poisoned({9, 26}, at::kFloat);
    Tensor dprob = poisoned({9}, at::kFloat);
    ops::swiglu_forward(h, prob, one_int(valid), a);
    ops::swiglu_backward(da, h, prob, one_int(valid), dh, dprob, again);
    const Tensor expected = reference(h.narrow(0, 0, valid).to(at::kDouble), prob.narrow(0, 0, valid).to(at::kDouble));
    EXPECT_LE(relative_error(a.narrow(0, 0, valid), expected), 1e-5);
    for (const Tensor& x : {a, again, dh, dprob}) {
      EXPECT_FALSE(at::isnan(x.narrow(0, 0, valid)).any().item<bool>());
      EXPECT_TRUE(all_nan(x.narrow(0, valid, 9 - valid)));
    }
  }
}

TEST(SwigluTest, LargeGatesSaturate) {
  Tensor h = at::zeros({1, 8}, at::kFloat);
  const std::array<float, 8> values{-1e30F, -200.0F, 200.0F, 1e30F, 1.0F, 1.0F, 1.0F, 1.0F};
  std::copy(values.begin(), values.end(), h.data_ptr<float>());
  Tensor a = poisoned({1, 4}, at::kFloat);
  Tensor dh = poisoned({1, 8}, at::kFloat);
  Tensor dprob;
  ops::swiglu_backward(at::ones({1, 4}, at::kFloat), h, Tensor(), Tensor(), dh, dprob, a);
  const std::array<float, 4> expected_a{0.0F, 0.0F, 200.0F, 1e30F};
  const std::array<float, 4> expected_dgate{0.0F, 0.0F, 1.0F, 1.0F};
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(a.data_ptr<float>()[i], expected_a[i]);
    EXPECT_EQ(dh.data_ptr<float>()[i], expected_dgate[i]);
    EXPECT_EQ(dh.data_ptr<float>()[4 + i], expected_a[i]);
  }
}

TEST(SwigluTest, SameBitsWithAnyNumberOfThreads) {
  std::mt19937_64 generator(13);
  const Tensor h = random_normal({501, 254}, at::kFloat, generator);
  const Tensor prob = random_normal({501}, at::kFloat, generator);
  const Tensor da = random_normal({501, 127}, at::kFloat, generator);
  std::vector<Tensor> results;
  for (const int threads : {1, 2}) {
    at::set_num_threads(threads);
    Tensor a = poisoned({501, 127}, at::kFloat);
    Tensor dh = poisoned({501, 254}, at::kFloat);
    Tensor dprob = poisoned({501}, at::kFloat);
    ops::swiglu_backward(da, h, prob, Tensor(), dh, dprob, a);
    results.insert(results.end(), {a, dh, dprob});
  }
  for (std::size_t i = 0; i < 3; ++i) EXPECT_TRUE(at::equal(results[i], results[i + 3]));
}

TEST(SwigluTest, RefusesWhatDoesNotFit) {
  Tensor h = at::zeros({4, 6}, at::kFloat);
  Tensor a = at::zeros({4, 3}, at::kFloat);
  Tensor narrow = at::zeros({4, 2}, at::kFloat);
  EXPECT_THROW(ops::swiglu_forward(h, Tensor(), Tensor(), narrow), InternalError);
  EXPECT_THROW(ops::swiglu_forward(h, Tensor(), one_int(5), a), InternalError);
  EXPECT_THROW(ops::swiglu_forward(h, at::zeros({3}, at::kFloat), Tensor(), a), InternalError);
  EXPECT_THROW(ops::swiglu_forward(h, at::zeros({4}, at::kDouble), Tensor(), a), InternalError);
}

TEST(FastExpTest, IsWithinTwoUnitsInTheLastPlace) {
  double worst = 0.0;
  for (std::uint64_t bits = 0; bits <= 0xFFFFFFFFULL; bits += 997) {
    const float x = std::bit_cast<float>(static_cast<std::uint32_t>(bits));
    if (!(x > -87.3F && x < 88.72F)) continue;
    const double exact = std::exp(static_cast<double>(x));
    const float rounded = static_cast<float>(exact);
    const double unit = static_cast<double>(std::nextafter(rounded, HUGE_VALF)) - static_cast<double>(rounded);
    worst = std::max(worst, std::abs(static_cast<double>(ops::fast_exp(x)) - exact) / unit);
  }
  EXPECT_LE(worst, 2.0);
  EXPECT_GT(worst, 0.0);
}

TEST(FastExpTest, HasTheLimitsOfExp) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(ops::fast_exp(0.0F), 1.0F);
  EXPECT_EQ(ops::fast_exp(-kInf), 0.0F);
  EXPECT_EQ(ops::fast_exp(-1e30F), 0.0F);
  EXPECT_EQ(ops::fast_exp(-104.0F), 0.0F);
  EXPECT_EQ(ops::fast_exp(kInf), kInf);
  EXPECT_EQ(ops::fast_exp(1e30F), kInf);
  EXPECT_EQ(ops::fast_exp(88.73F), kInf);
  EXPECT_TRUE(std::isnan(ops::fast_exp(std::numeric_limits<float>::quiet_NaN())));
  for (float x = -103.5F; x < -87.3F; x += 0.01F) {  // subnormal results: at most one step of 2^-149 off
    EXPECT_NEAR(static_cast<double>(ops::fast_exp(x)), std::exp(static_cast<double>(x)), 1.41e-45) << x;
  }
}

}  // namespace
}  // namespace primus
