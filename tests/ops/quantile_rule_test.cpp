// The expert bias from a quantile of margins, against sorted margins; SOAP's direction against its formulas step by
// step.
#include "ops/router/quantile_rule.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/linalg_eigh.h>
#include <ATen/ops/linalg_qr.h>
#include <gtest/gtest.h>

#include "ops/soap/soap.hpp"
#include "support/tensors.hpp"

namespace primus::ops {
namespace {

using namespace primus::test;

/// How many of the tokens choose each expert by score + bias.
Tensor loads(const Tensor& score, const Tensor& bias, std::int64_t k) {
  const Tensor chosen = std::get<1>((score + bias).topk(k, -1));
  return at::zeros_like(score).scatter(-1, chosen, 1.0).sum(0);
}

TEST(QuantileRuleTest, CountsMarginsInTheirBins) {
  std::mt19937_64 generator(3);
  const std::int64_t tokens = 50;
  const std::int64_t experts = 6;
  const MarginOptions options{.top_k = 2, .logit_softcap = 3.0, .lowest = -0.4, .highest = 0.5};
  const Tensor logits = random_normal({tokens, experts}, at::kDouble, generator, 2.0);
  const Tensor bias = random_normal({experts}, at::kDouble, generator, 0.1);
  const Tensor routed = random_int({tokens}, at::kLong, 0, 3, generator).ne(0);
  Tensor histogram = at::zeros({experts, 9}, at::kLong);
  count_margins(logits, bias, routed, options, histogram);
  const Tensor score = ((logits / 3.0).tanh() * 3.0).sigmoid();
  const Tensor cutoff = std::get<0>((score + bias).sort(-1, true)).narrow(1, 2, 1);
  const Tensor bin = ((score - cutoff + 0.4) / 0.1).floor().clamp(0, 8).to(at::kLong);
  Tensor expected = at::zeros({experts, 9}, at::kLong);
  for (std::int64_t t = 0; t < tokens; ++t) {
    if (!routed[t].item<bool>()) continue;
    for (std::int64_t e = 0; e < experts; ++e) expected[e][bin[t][e].item<std::int64_t>()] += 1;
  }
  EXPECT_TRUE(at::equal(histogram, expected));
  count_margins(logits, bias, routed, options, histogram);
  EXPECT_TRUE(at::equal(histogram, expected * 2)) << "it adds up";
}

TEST(QuantileRuleTest, TheBiasIsMinusTheQuantile) {
  // Margins 0 … 99 hundredths, one in each bin: the 3/4 quantile lies at 0.75.
  Tensor histogram = at::ones({4, 100}, at::kLong);
  Tensor bias = poisoned({4}, at::kDouble);
  quantile_bias(histogram, {.top_k = 1, .lowest = 0.0, .highest = 1.0}, bias);
  for (std::int64_t e = 0; e < 4; ++e) EXPECT_NEAR(bias[e].item<double>(), -0.75, 1e-12);
}

TEST(QuantileRuleTest, BalancesSkewedScoresInOneStep) {
  std::mt19937_64 generator(5);
  const std::int64_t experts = 8;
  const Tensor skew = random_normal({experts}, at::kDouble, generator);
  const Tensor logits = random_normal({4000, experts}, at::kDouble, generator) + skew;
  const MarginOptions options{.top_k = 2};
  Tensor bias = at::zeros({experts}, at::kDouble);
  const Tensor score = logits.sigmoid();
  const double before = loads(score, bias, 2).max().item<double>() / 1000.0;
  for (int step = 0; step < 6; ++step) {
    Tensor histogram = at::zeros({experts, 1024}, at::kLong);
    count_margins(logits, bias, {}, options, histogram);
    quantile_bias(histogram, options, bias);
  }
  const double after = loads(score, bias, 2).max().item<double>() / 1000.0;
  EXPECT_GT(before, 1.5);
  EXPECT_LT(after, 1.1);
}

/// The same algorithm once more for one matrix, without shared helpers. Square, because the larger factor of an oblong
/// gradient has a null space at first, any basis of which is right.
TEST(SoapTest, FollowsItsFormulasStepByStep) {
  std::mt19937_64 generator(11);
  const std::int64_t rows = 4;
  const std::int64_t columns = 4;
  const SoapOptions options{.beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .basis_interval = 4};
  const Tensor like = at::zeros({2, rows, columns}, at::kDouble);
  SoapState state = make_soap_state(like, at::kDouble);
  Tensor first = at::zeros_like(like);
  Tensor second = at::zeros_like(like);
  struct Plain {
    Tensor l, r, ql, qr, m, v;
  };
  std::vector<Plain> plain(2);
  for (std::int64_t step = 1; step <= 13; ++step) {
    const Tensor gradient = random_normal({2, rows, columns}, at::kDouble, generator);
    const Tensor direction = soap_direction(gradient, step, options, state, first, second);
    for (std::int64_t i = 0; i < 2; ++i) {
      Plain& p = plain[static_cast<std::size_t>(i)];
      const Tensor g = gradient[i];
      if (step == 1) {
        p.l = g.mm(g.t());
        p.r = g.t().mm(g);
        p.m = at::zeros_like(g);
        p.v = at::zeros_like(g);
      }
      const Tensor seen = step == 1 ? g : p.ql.t().mm(g).mm(p.qr);
      p.m = 0.9 * p.m + 0.1 * seen;
      p.v = 0.95 * p.v + 0.05 * seen.pow(2);
      const Tensor adam = p.m / (1 - std::pow(0.9, step)) / ((p.v / (1 - std::pow(0.95, step))).sqrt() + 1e-8);
      EXPECT_LE(relative_error(direction[i], step == 1 ? adam : p.ql.mm(adam).mm(p.qr.t())), 1e-9) << step;
      const double past = 1 - 0.05 / (1 - std::pow(0.95, step + 1));
      p.l = past * p.l + (1 - past) * g.mm(g.t());
      p.r = past * p.r + (1 - past) * g.t().mm(g);
      if (step == 1) {
        p.ql = std::get<1>(at::linalg_eigh(p.l)).flip({-1});
        p.qr = std::get<1>(at::linalg_eigh(p.r)).flip({-1});
        p.m = p.ql.t().mm(p.m).mm(p.qr);
      } else if (step % 4 == 0) {
        const Tensor m = p.ql.mm(p.m).mm(p.qr.t());
        const auto follow = [](const Tensor& factor, Tensor& basis) {
          const Tensor order = basis.t().mm(factor).mm(basis).diag().argsort(-1, true);
          basis = std::get<0>(at::linalg_qr(factor.mm(basis.index_select(1, order))));
          return order;
        };
        const Tensor by_row = follow(p.l, p.ql);
        const Tensor by_column = follow(p.r, p.qr);
        p.v = p.v.index_select(0, by_row).index_select(1, by_column);
        p.m = p.ql.t().mm(m).mm(p.qr);
      }
    }
  }
}

TEST(SoapTest, KeepsTheBasesOrthogonalAndTheStepBounded) {
  std::mt19937_64 generator(12);
  const SoapOptions options{.beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .basis_interval = 2};
  for (const auto& [rows, columns] : std::vector<std::pair<std::int64_t, std::int64_t>>{{5, 3}, {2, 7}, {1, 4}}) {
    const Tensor like = at::zeros({2, rows, columns}, at::kDouble);
    SoapState state = make_soap_state(like, at::kDouble);
    Tensor first = at::zeros_like(like);
    Tensor second = at::zeros_like(like);
    for (std::int64_t step = 1; step <= 9; ++step) {
      const Tensor gradient = random_normal({2, rows, columns}, at::kDouble, generator);
      const Tensor direction = soap_direction(gradient, step, options, state, first, second);
      // Adam's ratio is bounded by (1 - beta1) / sqrt(1 - beta2) and a few, in any orthonormal basis.
      EXPECT_LE(direction.norm().item<double>(), 10.0 * std::sqrt(static_cast<double>(2 * rows * columns)));
      for (const Tensor& basis : {state.row_basis_EMM, state.column_basis_ENN}) {
        const Tensor product = basis.transpose(1, 2).matmul(basis);
        const Tensor identity = at::eye(basis.size(1), at::kDouble).expand_as(product);
        EXPECT_LE(relative_error(product, identity), 1e-12) << rows << " x " << columns;
      }
    }
  }
}

}  // namespace
}  // namespace primus::ops
