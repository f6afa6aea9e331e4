#include "ops/router/router.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "ops/routing.hpp"

namespace primus {
namespace {

using at::Tensor;
using ops::RouterOptions;
using ops::ScoreFunction;
using ops::SoftmaxOrder;
using namespace primus::test;

class RouterTest : public ::testing::TestWithParam<std::tuple<RouterShape, Options>> {};

TEST_P(RouterTest, MatchesAutograd) {
  const auto& [shape, given] = GetParam();
  const std::int64_t tokens = shape.sequences * shape.length;
  RouterOptions options = given.options;
  options.top_k = shape.top_k;
  options.num_sequences = shape.sequences;
  options.num_groups = shape.groups;
  options.group_top_k = shape.group_top_k;
  for (int seed = 0; seed < 6; ++seed) {
    std::mt19937_64 generator(static_cast<std::uint64_t>(seed));
    for (const at::ScalarType dtype : {at::kDouble, at::kFloat}) {
      Tensor logits = random_normal({tokens, shape.experts}, dtype, generator, 1.5);
      if (seed % 3 == 1) logits = logits.mul(2.0).round().div(2.0);  // many ties
      // Every token's first choice is expert 0, yet without saturation, whose gradient is all cancellation.
      if (seed % 3 == 2) logits.select(1, 0).copy_(logits.amax(1).add(0.5));
      const Tensor bias = random_normal({shape.experts}, dtype, generator, 0.5);
      const Tensor earlier = random_int({shape.experts}, at::kLong, 0, 50, generator);
      ops::RouterInput input{.logits_TE = logits, .num_earlier_E = earlier, .num_earlier_batches = 3};
      if (given.has_bias) input.bias_E = bias;
      const Routing routing = route(input, options);
      const Tensor dprob = random_normal({tokens, shape.top_k}, dtype, generator);
      const double loss_scale = 1.25 * static_cast<double>(tokens);
      const Tensor dlogits = gradient(routing, dprob, options, loss_scale);

      // In fp32 a sum of group scores may order two groups the other way round: there the choice is only checked where
      // it has no such sums.
      if (dtype == at::kDouble || shape.groups == 1) {
        const Tensor values = choice_values(logits.to(at::kDouble), input.bias_E, options);
        const Tensor expected = sorted_choice(dtype == at::kDouble ? values : values.to(at::kFloat), shape.top_k);
        // Rounded scores tie where exact ones do not: compare by value.
        EXPECT_LE(
            relative_error(values.gather(1, routing.index().to(at::kLong)), values.gather(1, expected.to(at::kLong))),
            dtype == at::kDouble ? 0.0 : 1e-6);
      }
      EXPECT_TRUE(at::equal(routing.count(), counts_of(routing.index(), shape.experts)));
      EXPECT_EQ(routing.count().sum().item<std::int64_t>(), tokens * shape.top_k);
      const Tensor logits64 = leaf64(logits);
      const Reference expected = reference(logits64, routing.index(), options, given.has_bias, earlier, 3);
      EXPECT_LE(relative_error(routing.prob(), expected.prob), tolerance(dtype));
      EXPECT_LE(relative_error(routing.output.loss_4.sum().reshape({1}), expected.loss.reshape({1})), tolerance(dtype));
      if (tokens == 0) continue;
      at::sum(expected.prob.mul(dprob.to(at::kDouble))).add(expected.loss.mul(loss_scale)).backward();
      // A gate that is constant (one expert, or one that a softmax over the chosen follows) has a gradient of zero but
      // for rounding, beside which a loss's own may be small.
      const double size = dprob.norm().item<double>();
      if (shape.experts == 1 || logits64.grad().norm().item<double>() <= 1e-12 * size) {
        EXPECT_LE(dlogits.to(at::kDouble).sub(logits64.grad()).norm().item<double>(), 1e-6 * size);
      } else {
        EXPECT_LE(relative_error(dlogits, logits64.grad()), tolerance(dtype));
      }
    }
  }
}

std::string name_of(const ::testing::TestParamInfo<RouterTest::ParamType>& info) {
  const auto& [shape, given] = info.param;
  return fmt::format("{}_{}x{}_top{}of{}_groups{}of{}", given.name, shape.sequences, shape.length, shape.top_k,
                     shape.experts, shape.group_top_k, shape.groups);
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, RouterTest,
    ::testing::Combine(::testing::Values(RouterShape{1, 0, 4, 2}, RouterShape{1, 1, 1, 1}, RouterShape{1, 1, 8, 2},
                                         RouterShape{3, 5, 7, 1}, RouterShape{2, 9, 6, 6}, RouterShape{1, 300, 16, 4},
                                         RouterShape{4, 131, 64, 6}, RouterShape{2, 17, 257, 8},
                                         RouterShape{5, 1, 512, 22}, RouterShape{2, 30, 16, 4, 4, 2},
                                         RouterShape{1, 65, 64, 8, 8, 4}, RouterShape{3, 7, 12, 6, 4, 3},
                                         RouterShape{1, 9, 8, 2, 8, 2}),
                       ::testing::ValuesIn(kOptions)),
    name_of);

TEST(RouterTest, MatchesFiniteDifferences) {
  for (const Options& given : kOptions) {
    std::mt19937_64 generator(21);
    RouterOptions options = given.options;
    options.top_k = 2;
    options.num_sequences = 2;
    const Tensor logits = random_normal({6, 5}, at::kDouble, generator);
    const Tensor dprob = random_normal({6, 2}, at::kDouble, generator);
    const Tensor bias = given.has_bias ? random_normal({5}, at::kDouble, generator, 0.3) : Tensor();
    const auto routed = [&](const Tensor& point) {
      return route(ops::RouterInput{.logits_TE = point, .bias_E = bias}, options);
    };
    const auto loss = [&](const Tensor& point) {
      const Routing routing = routed(point);
      return at::sum(routing.prob().mul(dprob)).item<double>() + 7.0 * routing.loss();
    };
    const Tensor dlogits = gradient(routed(logits), dprob, options, 7.0);
    EXPECT_LE(relative_error(dlogits, finite_difference(loss, logits)), 1e-7) << given.name;
  }
}

TEST(RouterTest, ForcedBalanceGivesEveryExpertItsShareAndTheRightGradient) {
  std::mt19937_64 generator(22);
  for (const RouterOptions& scores : {kPre, kPost, kSigmoid}) {
    RouterOptions options = scores;
    options.top_k = 3;
    options.selection = ops::Selection::kForcedBalance;
    options.aux_loss = 0.3;
    // Logits so far apart that a softmax over badly chosen experts would vanish against the best one.
    const double spread = scores.softmax_order == SoftmaxOrder::kPost ? 400.0 : 1.0;
    const Tensor logits = random_normal({37, 5}, at::kDouble, generator, spread);
    const Routing routing = route(logits, options);
    for (std::int64_t e = 0; e < 5; ++e) EXPECT_NEAR(routing.count()[e].item<int>(), 37.0 * 3.0 / 5.0, 1.0);
    EXPECT_TRUE(std::isfinite(at::sum(routing.prob()).item<double>()));
    const Tensor near = logits.div(spread);
    const Tensor dprob = random_normal({37, 3}, at::kDouble, generator);
    const auto loss = [&](const Tensor& point) {
      const Routing at_point = route(point, options);
      return at::sum(at_point.prob().mul(dprob)).item<double>() + 7.0 * at_point.loss();
    };
    const Tensor dlogits = gradient(route(near, options), dprob, options, 7.0);
    EXPECT_LE(relative_error(dlogits, finite_difference(loss, near)), 1e-7);
  }
}

TEST(RouterTest, TiesGoToTheLowerIndex) {
  for (const RouterOptions& scores : {kPre, kPost, kSigmoid, kSqrtSoftplus}) {
    RouterOptions options = scores;
    options.top_k = 4;
    const Routing routing = route(at::zeros({3, 12}, at::kFloat), options);
    options.num_groups = 4;
    options.group_top_k = 2;
    const Routing grouped = route(at::zeros({3, 12}, at::kFloat), options);
    for (std::int64_t t = 0; t < 3; ++t) {
      for (int k = 0; k < 4; ++k) {
        EXPECT_EQ(routing.index()[t][k].item<int>(), k);
        EXPECT_EQ(grouped.index()[t][k].item<int>(), k);
      }
    }
  }
}

RouterOptions one_loss(int loss, double coefficient) {
  RouterOptions options;
  (loss == ops::RouterLoss::kAux      ? options.aux_loss
   : loss == ops::RouterLoss::kSeqAux ? options.seq_aux_loss
                                      : options.global_aux_loss) = coefficient;
  return options;
}
constexpr int kBalanceLosses[] = {ops::RouterLoss::kAux, ops::RouterLoss::kSeqAux, ops::RouterLoss::kGlobalAux};

TEST(RouterTest, BalancedLossesAreTheirCoefficients) {
  constexpr std::int64_t kExperts = 8;
  // Token t prefers experts t and t + 1: every expert gets as many tokens and as much probability as the others.
  Tensor logits = at::zeros({2 * kExperts, kExperts}, at::kDouble);
  for (std::int64_t t = 0; t < 2 * kExperts; ++t) {
    logits[t][t % kExperts] = 3.0;
    logits[t][(t + 1) % kExperts] = 2.0;
  }
  for (const ScoreFunction score : {ScoreFunction::kSoftmax, ScoreFunction::kSigmoid, ScoreFunction::kSqrtSoftplus}) {
    for (const int loss : kBalanceLosses) {
      RouterOptions options = one_loss(loss, 0.01);
      options.top_k = 2;
      options.num_sequences = 2;
      options.score_function = score;
      const Routing routing = route(logits, options);
      EXPECT_TRUE(at::equal(routing.count(), at::full({kExperts}, 4, at::kInt)));
      EXPECT_NEAR(routing.output.loss_4[loss].item<double>(), 0.01, 1e-15);
      EXPECT_NEAR(routing.loss(), 0.01, 1e-15);
      EXPECT_NEAR(route(logits.to(at::kFloat), options).loss(), 0.01, 1e-8);
    }
  }
}

TEST(RouterTest, CollapsedLossesAreTheCoefficientTimesExpertsOverTopK) {
  Tensor logits = at::full({32, 12}, -400.0, at::kDouble);
  logits.narrow(1, 3, 3).fill_(400.0);
  for (const ScoreFunction score : {ScoreFunction::kSoftmax, ScoreFunction::kSigmoid}) {
    for (const int loss : kBalanceLosses) {
      RouterOptions options = one_loss(loss, 0.01);
      options.top_k = 3;
      options.num_sequences = 4;
      options.score_function = score;
      EXPECT_NEAR(route(logits, options).loss(), 0.01 * 12 / 3, 1e-15);
    }
  }
}

TEST(RouterTest, ZLossOfEqualLogitsIsTheSquareOfTheirLogSum) {
  const RouterOptions options{.top_k = 2, .z_loss = 0.1};
  const double lse = 1.5 + std::log(8.0);
  EXPECT_NEAR(route(at::full({5, 8}, 1.5, at::kDouble), options).loss(), 0.1 * lse * lse, 1e-14);
}

TEST(RouterTest, SequenceAndZLossDoNotDependOnTheMicroBatch) {
  std::mt19937_64 generator(22);
  const Tensor logits = random_normal({8 * 20, 6}, at::kDouble, generator);
  const Tensor dprob = at::zeros({8 * 20, 2}, at::kDouble);
  RouterOptions options{.top_k = 2, .seq_aux_loss = 0.1, .z_loss = 0.05};
  // Sequences a micro-batch: 1, 2, 4, 8. The loss of a global batch is the mean over its micro-batches.
  const auto global_batch = [&](std::int64_t sequences) {
    options.num_sequences = sequences;
    const double share = static_cast<double>(sequences) / 8.0;
    double loss = 0.0;
    std::vector<Tensor> gradients;
    for (std::int64_t first = 0; first < 160; first += 20 * sequences) {
      const Tensor part = logits.narrow(0, first, 20 * sequences);
      const Routing routing = route(part, options);
      loss += share * routing.loss();
      gradients.push_back(gradient(routing, dprob.narrow(0, first, 20 * sequences), options, share));
    }
    return std::pair{loss, at::cat(gradients)};
  };
  const auto [whole_loss, whole_gradient] = global_batch(8);
  EXPECT_GT(relative_error(whole_gradient, at::zeros_like(whole_gradient)), 0.0);
  for (const std::int64_t sequences : {1, 2, 4}) {
    const auto [loss, grad] = global_batch(sequences);
    EXPECT_NEAR(loss, whole_loss, 1e-14);
    EXPECT_LE(relative_error(grad, whole_gradient), 1e-12);
  }
  options.seq_aux_loss = 0.0;
  options.aux_loss = 0.1;  // which is defined per micro-batch, so the comparison can fail
  EXPECT_GT(std::abs(global_batch(8).first - global_batch(1).first), 1e-5);
}

/// With the counts of equal micro-batches before it, the last one's loss is that of the mean counts; alone it is aux.
TEST(RouterTest, GlobalLossTakesTheMeanCountsOfTheStepSoFar) {
  std::mt19937_64 generator(27);
  const RouterOptions global{.top_k = 2, .global_aux_loss = 0.5};
  const RouterOptions aux{.top_k = 2, .aux_loss = 0.5};
  const Tensor logits = random_normal({30, 6}, at::kDouble, generator);
  const Routing first = route(logits, global);
  EXPECT_NEAR(first.loss(), route(logits, aux).loss(), 1e-15);
  EXPECT_EQ(first.output.num_balance_E.sum().item<std::int64_t>(), 60);
  // The same micro-batch again changes no mean.
  ops::RouterInput again{.logits_TE = logits};
  again.num_earlier_E = first.output.num_balance_E.to(at::kLong).mul(4);
  again.num_earlier_batches = 4;
  EXPECT_NEAR(route(again, global).loss(), first.loss(), 1e-15);
  // Earlier ones that only used expert 0 do.
  again.num_earlier_E = at::zeros({6}, at::kLong);
  again.num_earlier_E[0] = 60;
  again.num_earlier_batches = 1;
  const double mean_of_0 = (60.0 + first.output.num_balance_E[0].item<double>()) / 2.0;
  const Tensor probability = logits.softmax(1).sum(0);
  double expected = probability[0].item<double>() * mean_of_0;
  for (int e = 1; e < 6; ++e) {
    expected += probability[e].item<double>() * first.output.num_balance_E[e].item<double>() / 2.0;
  }
  EXPECT_NEAR(route(again, global).loss(), expected * 0.5 * 6.0 / (2.0 * 30.0 * 30.0), 1e-14);
}

/// Filling: as if it were not there, for every output of the other tokens.
TEST(RouterTest, FillingIsNeitherRoutedNorCounted) {
  for (const Options& given : kOptions) {
    std::mt19937_64 generator(28);
    RouterOptions options = given.options;
    options.top_k = 3;
    options.num_sequences = 2;
    constexpr std::int64_t kValid = 14;  // of 20 tokens of each sequence
    Tensor logits = random_normal({40, 8}, at::kDouble, generator);
    Tensor is_routed = at::zeros({40}, at::kBool);
    std::vector<std::int64_t> places;
    for (std::int64_t b = 0; b < 2; ++b) {
      for (std::int64_t i = 0; i < kValid; ++i) places.push_back(b * 20 + (i < 9 ? i : i + 3));
    }
    for (const std::int64_t place : places) is_routed[place] = true;
    const Tensor valid = at::tensor(at::ArrayRef<std::int64_t>(places), at::kLong);
    const Tensor filling = is_routed.logical_not().nonzero().reshape({-1});
    logits.index_fill_(0, filling, std::numeric_limits<double>::quiet_NaN());  // padding may hold anything
    const Tensor bias = given.has_bias ? random_normal({8}, at::kDouble, generator, 0.3) : Tensor();
    const Routing padded =
        route(ops::RouterInput{.logits_TE = logits, .bias_E = bias, .is_routed_T = is_routed}, options);
    const Routing packed = route(ops::RouterInput{.logits_TE = logits.index_select(0, valid), .bias_E = bias}, options);
    EXPECT_TRUE(at::equal(padded.count(), packed.count())) << given.name;
    EXPECT_TRUE(at::equal(padded.index().index_select(0, valid), packed.index()));
    EXPECT_TRUE(at::equal(padded.prob().index_select(0, valid), packed.prob()));
    EXPECT_TRUE(padded.index().index_select(0, filling).eq(-1).all().item<bool>());
    EXPECT_EQ(padded.prob().index_select(0, filling).abs().sum().item<double>(), 0.0);
    EXPECT_NEAR(padded.loss(), packed.loss(), 1e-14) << given.name;
    const Tensor dprob = random_normal({40, 3}, at::kDouble, generator);
    const Tensor dpadded = gradient(padded, dprob, options, 2.0);
    const Tensor dpacked = gradient(packed, dprob.index_select(0, valid), options, 2.0);
    EXPECT_LE(relative_error(dpadded.index_select(0, valid), dpacked), 1e-13) << given.name;
    EXPECT_EQ(dpadded.index_select(0, filling).abs().sum().item<double>(), 0.0);
  }
}

TEST(RouterTest, ProbabilitiesOfTheChosenAddUpToTheScalingFactor) {
  std::mt19937_64 generator(23);
  const Tensor logits = random_normal({200, 60}, at::kFloat, generator, 2.0);
  for (const RouterOptions& scores : {kPost, kSigmoid, kSqrtSoftplus}) {
    RouterOptions options = scores;
    options.top_k = 4;
    const Tensor sums = at::sum(route(logits, options).prob(), 1);
    EXPECT_LE(relative_error(sums, at::full({200}, options.scaling_factor, at::kFloat)), 1e-6);
  }
  RouterOptions options = kPre;
  options.top_k = 60;
  EXPECT_LE(relative_error(at::sum(route(logits, options).prob(), 1), at::full({200}, 2.5, at::kFloat)), 1e-6);
}

TEST(RouterTest, PostSoftmaxIsSoftmaxOverAllThenRenormalised) {
  std::mt19937_64 generator(23);
  const Tensor logits = random_normal({200, 60}, at::kFloat, generator, 2.0);
  const Routing post = route(logits, {.top_k = 4, .softmax_order = SoftmaxOrder::kPost});
  const Routing pre = route(logits, {.top_k = 4, .softmax_order = SoftmaxOrder::kPre});
  EXPECT_TRUE(at::equal(post.index(), pre.index()));
  EXPECT_LE(relative_error(post.prob(), pre.prob().div(at::sum(pre.prob(), {1}, true))), 1e-6);
}

TEST(RouterTest, OneChosenExpertStillTrainsTheRouter) {
  std::mt19937_64 generator(24);
  const Tensor logits = random_normal({30, 8}, at::kFloat, generator);
  const Tensor dprob = random_normal({30, 1}, at::kFloat, generator);
  const auto size = [&](RouterOptions options) {
    options.top_k = 1;
    return gradient(route(logits, options), dprob, options, 0.0).abs().sum().item<double>();
  };
  EXPECT_GT(size(kPre), 1.0);
  EXPECT_GT(size(kSigmoid), 1.0);
  EXPECT_GT(size(kSqrtSoftplus), 1.0);
  EXPECT_EQ(size({.softmax_order = SoftmaxOrder::kPost}), 0.0);
}

/// Groups whose scores are all negative: an expert of another group, masked as 0, would win.
TEST(RouterTest, NoExpertOutsideTheKeptGroupsIsChosen) {
  std::mt19937_64 generator(29);
  for (const ops::GroupScore score : {ops::GroupScore::kMax, ops::GroupScore::kSumOfBest}) {
    RouterOptions options = kSigmoid;
    options.top_k = 8;
    options.num_groups = 8;
    options.group_top_k = 4;
    options.group_score = score;
    const Tensor logits = random_normal({500, 64}, at::kFloat, generator);
    const Tensor bias = at::full({64}, -2.0, at::kFloat);
    const Routing routing = route(ops::RouterInput{.logits_TE = logits, .bias_E = bias}, options);
    const Tensor values = choice_values(logits.to(at::kDouble), bias, options);
    EXPECT_TRUE(values.gather(1, routing.index().to(at::kLong)).isfinite().all().item<bool>());
    // At most four groups a token.
    const Tensor groups = routing.index().to(at::kLong).div(8, "floor");
    const Tensor used = at::zeros({500, 8}, at::kLong).scatter(1, groups, 1);
    EXPECT_LE(used.sum(1).max().item<std::int64_t>(), 4);
  }
}

/// One strong expert in a weak group against two good ones: the two group scores choose differently.
TEST(RouterTest, GroupScoresAreTheBestOrTheSumOfTheBest) {
  Tensor logits = at::full({1, 8}, -5.0, at::kFloat);
  logits[0][0] = 3.0;                 // group 0: 3, −5
  logits[0][2] = logits[0][3] = 2.0;  // group 1: 2, 2
  RouterOptions options{.top_k = 2, .softmax_order = SoftmaxOrder::kPost, .num_groups = 4, .group_top_k = 1};
  EXPECT_EQ(route(logits, options).index()[0][0].item<int>(), 2);
  options.group_score = ops::GroupScore::kMax;
  EXPECT_EQ(route(logits, options).index()[0][0].item<int>(), 0);
}

TEST(RouterTest, BiasChoosesButDoesNotWeigh) {
  Tensor logits = at::zeros({1, 4}, at::kDouble);
  logits[0][3] = 1.0;
  Tensor bias = at::zeros({4}, at::kDouble);
  bias[1] = 2.0;
  RouterOptions options{.top_k = 2, .score_function = ScoreFunction::kSigmoid};
  const Routing routing = route(ops::RouterInput{.logits_TE = logits, .bias_E = bias}, options);
  EXPECT_EQ(routing.index()[0][0].item<int>(), 1);
  EXPECT_EQ(routing.index()[0][1].item<int>(), 3);
  const double s0 = 0.5;
  const double s1 = 1.0 / (1.0 + std::exp(-1.0));
  EXPECT_NEAR(routing.prob()[0][0].item<double>(), s0 / (s0 + s1), 1e-15);
  EXPECT_NEAR(routing.prob()[0][1].item<double>(), s1 / (s0 + s1), 1e-15);
}

TEST(RouterTest, NamesTheFirstTokenWithoutASoftmax) {
  std::mt19937_64 generator(25);
  constexpr double kInf = std::numeric_limits<double>::infinity();
  for (const double bad : {std::numeric_limits<double>::quiet_NaN(), kInf}) {
    for (RouterOptions options : {kPre, kPost, kSigmoid, kSqrtSoftplus}) {
      for (const ops::Selection selection : {ops::Selection::kTopK, ops::Selection::kSinkhorn}) {
        Tensor logits = random_normal({1000, 5}, at::kFloat, generator);
        options.top_k = 2;
        options.selection = selection;
        logits[999][0] = bad;
        logits[613][4] = bad;
        try {
          route(logits, options);
          ADD_FAILURE() << "no error";
        } catch (const UserError& error) {
          EXPECT_THAT(error.what(), ::testing::HasSubstr("token 613 "));
        }
        EXPECT_NO_THROW(route(logits.narrow(0, 0, 613), options));  // rows that are not handed over are not read
      }
    }
  }
  Tensor masked = at::zeros({1, 4}, at::kFloat);
  masked.narrow(1, 0, 3).fill_(-kInf);  // a masked expert is no fault
  EXPECT_EQ(route(masked, {.top_k = 1}).index().item<int>(), 3);
}

TEST(RouterTest, SameBitsWithAnyNumberOfThreads) {
  for (const Options& given : kOptions) {
    std::mt19937_64 generator(26);
    RouterOptions options = given.options;
    options.top_k = 3;
    options.num_sequences = 4;
    const Tensor logits = random_normal({4 * 333, 31}, at::kFloat, generator);
    const Tensor dprob = random_normal({4 * 333, 3}, at::kFloat, generator);
    std::vector<Tensor> results;
    for (const int threads : {1, 2}) {
      at::set_num_threads(threads);
      const Routing routing = route(logits, options);
      const Tensor dlogits = gradient(routing, dprob, options, 2.0);
      results.insert(results.end(), {routing.index(), routing.prob(), routing.count(), routing.output.loss_4, dlogits});
    }
    for (std::size_t i = 0; i < 5; ++i) EXPECT_TRUE(at::equal(results[i], results[i + 5])) << given.name << i;
  }
}

TEST(RouterTest, RefusesWhatDoesNotFit) {
  EXPECT_THROW(route(at::zeros({4, 3}, at::kFloat), {.top_k = 4}), InternalError);
  EXPECT_THROW(route(at::zeros({4, 3}, at::kBFloat16), {.top_k = 1}), InternalError);
  EXPECT_THROW(route(at::zeros({4, 3}, at::kFloat), {.top_k = 1, .seq_aux_loss = 0.1, .num_sequences = 3}),
               InternalError);
  EXPECT_THROW(route(at::zeros({4, 6}, at::kFloat), {.top_k = 3, .num_groups = 3, .group_top_k = 1}), InternalError);
  EXPECT_THROW(route(at::zeros({4, 6}, at::kFloat), {.top_k = 1, .num_groups = 4, .group_top_k = 1}), InternalError);
}

}  // namespace
}  // namespace primus
