// Ways of choosing experts that look at all tokens of a micro-batch, and the router's random numbers.
#include <ATen/ops/arange.h>
#include <gtest/gtest.h>

#include "ops/router/noise.hpp"
#include "ops/routing.hpp"

namespace primus {
namespace {

using at::Tensor;
using ops::RouterOptions;
using ops::ScoreFunction;
using ops::SoftmaxOrder;
using namespace primus::test;

/// Sinkhorn's choice spreads what a plain choice would pile up, and its weights have the right sums.
TEST(RouterChoiceTest, SinkhornSpreadsTheTokens) {
  std::mt19937_64 generator(30);
  Tensor logits = random_normal({400, 8}, at::kDouble, generator, 0.5);
  logits.select(1, 2).add_(2.0);  // everybody's favourite
  for (const std::int64_t k : {1, 2}) {
    RouterOptions options{.top_k = k, .selection = ops::Selection::kSinkhorn};
    if (k == 1) options.score_function = ScoreFunction::kSigmoid;
    const Routing spread = route(logits, options);
    options.selection = ops::Selection::kTopK;
    const Routing piled = route(logits, options);
    const std::int64_t share = 400 * k / 8;
    EXPECT_GT(piled.count()[2].item<std::int64_t>(), 380);
    EXPECT_LT(spread.count().max().item<std::int64_t>(), 2 * share);
    EXPECT_GT(spread.count().min().item<std::int64_t>(), share / 2);
    const Tensor score = k == 1 ? logits.sigmoid() : logits.softmax(1);
    EXPECT_LE(relative_error(spread.prob(), score.gather(1, spread.index().to(at::kLong))), 1e-14);
    options.selection = ops::Selection::kSinkhorn;
    const Tensor dprob = random_normal({400, k}, at::kDouble, generator);
    const Tensor leaf = leaf64(logits);
    at::sum((k == 1 ? leaf.sigmoid() : leaf.softmax(1)).gather(1, spread.index().to(at::kLong)).mul(dprob)).backward();
    EXPECT_LE(relative_error(gradient(spread, dprob, options, 1.0), leaf.grad()), 1e-12);
  }
}

/// The quantile is the bias that balances: chosen with it, every expert gets its share within a few tokens.
TEST(RouterChoiceTest, QuantilesBalanceAfterAFewUpdates) {
  std::mt19937_64 generator(31);
  Tensor logits = random_normal({600, 6}, at::kDouble, generator);
  logits.select(1, 0).add_(3.0);
  logits.select(1, 5).sub_(2.0);
  const RouterOptions options{.top_k = 2, .softmax_order = SoftmaxOrder::kPost, .selection = ops::Selection::kQuantile};
  Tensor bias = at::zeros({6}, at::kDouble);
  Routing routing = route(ops::RouterInput{.logits_TE = logits, .bias_E = bias}, options);
  EXPECT_GT(routing.count()[0].item<std::int64_t>(), 550);
  EXPECT_TRUE(at::equal(routing.index(), sorted_choice(logits, 2)));  // without a bias: the plain choice
  for (int update = 0; update < 30; ++update) {
    bias = routing.output.quantile_E.sub(routing.output.quantile_E.mean());
    routing = route(ops::RouterInput{.logits_TE = logits, .bias_E = bias}, options);
  }
  for (int e = 0; e < 6; ++e) EXPECT_NEAR(routing.count()[e].item<double>(), 200.0, 20.0) << e;
  // The bias chooses and does not weigh.
  const Tensor prob = logits.gather(1, routing.index().to(at::kLong)).softmax(1);
  EXPECT_LE(relative_error(routing.prob(), prob), 1e-13);
}

/// The choice is the caller's, in the caller's order; weights and losses are those of the scores.
TEST(RouterChoiceTest, GivenChoicesAreWeighedByTheScores) {
  std::mt19937_64 generator(33);
  for (const ScoreFunction score : {ScoreFunction::kSoftmax, ScoreFunction::kSigmoid, ScoreFunction::kSqrtSoftplus}) {
    const Tensor logits = random_normal({37, 7}, at::kDouble, generator);
    RouterOptions options{.top_k = 3,
                          .score_function = score,
                          .softmax_order = SoftmaxOrder::kPost,
                          .scaling_factor = 1.5,
                          .selection = ops::Selection::kGiven,
                          .z_loss = 0.01};
    const Tensor chosen = random_normal({37, 7}, at::kDouble, generator).argsort(1, false).narrow(1, 0, 3).to(at::kInt);
    const Tensor given = chosen.contiguous();
    const Routing routing = route(ops::RouterInput{.logits_TE = logits, .chosen_TK = given}, options);
    EXPECT_TRUE(at::equal(routing.index(), given));
    EXPECT_TRUE(at::equal(routing.count(), counts_of(given, 7)));
    const Tensor leaf = leaf64(logits);
    const Reference expected = reference(leaf, given, options, false);
    EXPECT_LE(relative_error(routing.prob(), expected.prob), 1e-14);
    EXPECT_NEAR(routing.loss(), expected.loss.item<double>(), 1e-14);
    const Tensor dprob = random_normal({37, 3}, at::kDouble, generator);
    at::sum(expected.prob.mul(dprob)).add(expected.loss, 0.5).backward();
    EXPECT_LE(relative_error(gradient(routing, dprob, options, 0.5), leaf.grad()), 1e-12);
    options.top_k = 1;
    Tensor wrong = at::full({37, 1}, 7, at::kInt);
    EXPECT_THROW(route(ops::RouterInput{.logits_TE = logits, .chosen_TK = wrong}, options), InternalError);
  }
}

TEST(RouterChoiceTest, QuantileIsTheValueOfItsRank) {
  // One expert a token; thresholds are the second values: 1, 1, 2, 0.
  const std::array<double, 12> values{5, 1, 0, 1, 4, 0, 2, 3, 1, 0, -1, 9};
  const Tensor logits = at::from_blob(const_cast<double*>(values.data()), {4, 3}, at::kDouble).clone();
  const Routing routing = route(ops::RouterInput{.logits_TE = logits, .bias_E = at::zeros({3}, at::kDouble)},
                                {.top_k = 1, .selection = ops::Selection::kQuantile});
  // logits − threshold: {4, 0, −1}, {0, 3, −1}, {0, 1, −1}, {0, −1, 9}; rank 4·1/3 = 1, the second largest.
  const std::array<double, 3> expected{0, 1, -1};
  for (std::size_t e = 0; e < 3; ++e) {
    EXPECT_EQ(routing.output.quantile_E.data_ptr<double>()[e], expected[e]) << e;
  }
}

/// A token's numbers depend on its global place only, lie in the interval, and their own backward repeats them.
TEST(RouterNoiseTest, IsKeyedByTheGlobalToken) {
  std::mt19937_64 generator(32);
  const Tensor x = random_normal({60, 11}, at::kDouble, generator).abs().add(0.5);
  ops::TokenNoise noise{.seed = 7, .stream = 3, .first_token = 100};
  Tensor whole = poisoned({60, 11}, at::kDouble);
  ops::token_jitter(x, noise, 0.1, whole, ops::Write::kOverwrite);
  const Tensor factor = whole.div(x);
  EXPECT_GT(factor.min().item<double>(), 0.9);
  EXPECT_LT(factor.max().item<double>(), 1.1);
  EXPECT_NEAR(factor.mean().item<double>(), 1.0, 0.01);
  EXPECT_GT(factor.std().item<double>(), 0.05);
  for (std::int64_t first = 0; first < 60; first += 20) {
    Tensor part = poisoned({20, 11}, at::kDouble);
    noise.first_token = 100 + first;
    ops::token_jitter(x.narrow(0, first, 20), noise, 0.1, part, ops::Write::kOverwrite);
    EXPECT_TRUE(at::equal(part, whole.narrow(0, first, 20)));
  }
  noise.first_token = 100;
  const Tensor dy = random_normal({60, 11}, at::kDouble, generator);
  Tensor dx = dy.clone();
  ops::token_jitter(dy, noise, 0.1, dx, ops::Write::kAccumulate);
  EXPECT_LE(relative_error(dx, dy.add(dy.mul(factor))), 1e-14);
  noise.seed = 8;
  Tensor other = poisoned({60, 11}, at::kDouble);
  ops::token_jitter(x, noise, 0.1, other, ops::Write::kOverwrite);
  EXPECT_GT(relative_error(other, whole), 0.01);
}

TEST(RouterNoiseTest, NormalNumbersWithAFavour) {
  Tensor values = poisoned({5000, 3}, at::kDouble);
  const Tensor favour = at::arange(3, at::kDouble);
  ops::token_normal({.seed = 1, .stream = 2, .first_token = 0}, favour, values);
  for (int e = 0; e < 3; ++e) {
    EXPECT_NEAR(values.select(1, e).mean().item<double>(), e, 0.06);
    EXPECT_NEAR(values.select(1, e).std().item<double>(), 1.0, 0.05);
  }
}

}  // namespace
}  // namespace primus
