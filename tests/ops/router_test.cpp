#include "ops/router/router.hpp"

#include <ATen/ops/gather.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/sum.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <numeric>

#include "support/tensors.hpp"

namespace primus {
namespace {

using at::Tensor;
using ops::AuxLossKind;
using ops::RouterOptions;
using ops::SoftmaxOrder;
using namespace primus::test;

struct Routing {
  Tensor index, prob, count, aux;
};

Routing route(const Tensor& logits, const RouterOptions& options) {
  const std::int64_t tokens = logits.size(0);
  Routing out{poisoned({tokens, options.top_k}, at::kInt), poisoned({tokens, options.top_k}, logits.scalar_type()),
              poisoned({logits.size(1)}, at::kInt), poisoned({1}, logits.scalar_type())};
  ops::router_forward(logits, options, out.index, out.prob, out.count, out.aux);
  return out;
}

Tensor gradient(const Tensor& logits, const Routing& routing, const Tensor& dprob, const RouterOptions& options,
                double aux_scale) {
  Tensor dlogits = poisoned({logits.size(0), logits.size(1)}, logits.scalar_type());
  ops::router_backward(logits, routing.index, routing.prob, dprob, options, aux_scale, dlogits);
  return dlogits;
}

/// The k largest, by a stable sort: another algorithm than the op's.
Tensor sorted_choice(const Tensor& logits, std::int64_t k) {
  const Tensor values = logits.to(at::kDouble).contiguous();
  const std::int64_t experts = logits.size(1);
  Tensor index = at::zeros({logits.size(0), k}, at::kInt);
  std::vector<std::int64_t> order(static_cast<std::size_t>(experts));
  for (std::int64_t t = 0; t < logits.size(0); ++t) {
    const double* row = values.data_ptr<double>() + t * experts;
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) { return row[a] > row[b]; });
    for (std::int64_t i = 0; i < k; ++i) {
      index.data_ptr<int>()[t * k + i] = static_cast<int>(order[static_cast<std::size_t>(i)]);
    }
  }
  return index;
}

Tensor counts_of(const Tensor& index, std::int64_t experts) {
  Tensor count = at::zeros({experts}, at::kInt);
  const Tensor flat = index.contiguous();
  for (std::int64_t i = 0; i < flat.numel(); ++i) ++count.data_ptr<int>()[flat.data_ptr<int>()[i]];
  return count;
}

/// Probabilities of the chosen and the auxiliary loss from fp64 logits that autograd follows.
struct Reference {
  Tensor prob, aux;
};
Reference reference(const Tensor& logits64, const Tensor& index, const RouterOptions& options) {
  const Tensor chosen = index.to(at::kLong);
  const Tensor full = at::softmax(logits64, 1);
  Tensor prob = options.softmax_order == SoftmaxOrder::kPre ? at::gather(full, 1, chosen)
                                                            : at::softmax(at::gather(logits64, 1, chosen), 1);
  prob = prob.mul(options.scaling_factor);
  Tensor aux = at::zeros({}, at::kDouble);
  const std::int64_t groups = options.aux_loss == AuxLossKind::kSeqAux ? options.num_sequences : 1;
  const std::int64_t n = logits64.size(0) / groups;
  const std::int64_t experts = logits64.size(1);
  for (std::int64_t g = 0; g < groups && options.aux_loss != AuxLossKind::kNone && n > 0; ++g) {
    const Tensor count = counts_of(index.narrow(0, g * n, n), experts).to(at::kDouble);
    const double factor = options.aux_loss_coefficient * static_cast<double>(experts) /
                          static_cast<double>(options.top_k * n * n * groups);
    aux = aux.add(at::sum(at::sum(full.narrow(0, g * n, n), 0).mul(count)).mul(factor));
  }
  return {prob, aux};
}

struct Shape {
  std::int64_t sequences, length, experts, top_k;
};

class RouterTest : public ::testing::TestWithParam<std::tuple<Shape, SoftmaxOrder, AuxLossKind>> {};

TEST_P(RouterTest, MatchesAutograd) {
  const auto [shape, order, kind] = GetParam();
  const std::int64_t tokens = shape.sequences * shape.length;
  const RouterOptions options{.top_k = shape.top_k,
                              .softmax_order = order,
                              .scaling_factor = 2.5,
                              .aux_loss = kind,
                              .aux_loss_coefficient = 0.75,
                              .num_sequences = shape.sequences};
  for (int seed = 0; seed < 6; ++seed) {
    std::mt19937_64 generator(static_cast<std::uint64_t>(seed));
    for (const at::ScalarType dtype : {at::kDouble, at::kFloat}) {
      Tensor logits = random_normal({tokens, shape.experts}, dtype, generator, 1.5);
      if (seed % 3 == 1) logits = logits.mul(2.0).round().div(2.0);  // many ties
      // Every token's first choice is expert 0, yet without saturation, whose gradient is all cancellation.
      if (seed % 3 == 2) logits.select(1, 0).copy_(logits.amax(1).add(0.5));
      const Routing routing = route(logits, options);
      const Tensor dprob = random_normal({tokens, shape.top_k}, dtype, generator);
      const double aux_scale = 1.25 * static_cast<double>(tokens);
      const Tensor dlogits = gradient(logits, routing, dprob, options, aux_scale);

      EXPECT_TRUE(at::equal(routing.index, sorted_choice(logits, shape.top_k)));
      EXPECT_TRUE(at::equal(routing.count, counts_of(routing.index, shape.experts)));
      EXPECT_EQ(routing.count.sum().item<std::int64_t>(), tokens * shape.top_k);
      const Tensor logits64 = leaf64(logits);
      const Reference expected = reference(logits64, routing.index, options);
      EXPECT_LE(relative_error(routing.prob, expected.prob), tolerance(dtype));
      EXPECT_LE(relative_error(routing.aux, expected.aux.reshape({1})), tolerance(dtype));
      if (tokens == 0) continue;
      at::sum(expected.prob.mul(dprob.to(at::kDouble))).add(expected.aux.mul(aux_scale)).backward();
      // With one expert, or one chosen after the top-k, the gate is constant: the gradient is zero but for rounding.
      const bool is_constant =
          shape.experts == 1 || (order == SoftmaxOrder::kPost && shape.top_k == 1 && kind == AuxLossKind::kNone);
      if (is_constant) {
        EXPECT_LE(relative_error(dlogits, at::zeros_like(dlogits)),
                  1e-6 * relative_error(dprob, at::zeros_like(dprob)));
      } else {
        EXPECT_LE(relative_error(dlogits, logits64.grad()), tolerance(dtype));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, RouterTest,
    ::testing::Combine(::testing::Values(Shape{1, 0, 4, 2}, Shape{1, 1, 1, 1}, Shape{1, 1, 8, 2}, Shape{3, 5, 7, 1},
                                         Shape{2, 9, 6, 6}, Shape{1, 300, 16, 4}, Shape{4, 131, 64, 6},
                                         Shape{2, 17, 257, 8}, Shape{5, 1, 512, 22}),
                       ::testing::Values(SoftmaxOrder::kPre, SoftmaxOrder::kPost),
                       ::testing::Values(AuxLossKind::kNone, AuxLossKind::kAux, AuxLossKind::kSeqAux)));

TEST(RouterTest, MatchesFiniteDifferences) {
  std::mt19937_64 generator(21);
  for (const SoftmaxOrder order : {SoftmaxOrder::kPre, SoftmaxOrder::kPost}) {
    const RouterOptions options{.top_k = 2,
                                .softmax_order = order,
                                .scaling_factor = 1.5,
                                .aux_loss = AuxLossKind::kSeqAux,
                                .aux_loss_coefficient = 0.3,
                                .num_sequences = 2};
    const Tensor logits = random_normal({6, 5}, at::kDouble, generator);
    const Tensor dprob = random_normal({6, 2}, at::kDouble, generator);
    const auto loss = [&](const Tensor& point) {
      const Routing routing = route(point, options);
      return at::sum(routing.prob.mul(dprob)).item<double>() + 7.0 * routing.aux.item<double>();
    };
    const Tensor dlogits = gradient(logits, route(logits, options), dprob, options, 7.0);
    EXPECT_LE(relative_error(dlogits, finite_difference(loss, logits)), 1e-7);
  }
}

TEST(RouterTest, ForcedBalanceGivesEveryExpertItsShareAndTheRightGradient) {
  std::mt19937_64 generator(22);
  for (const SoftmaxOrder order : {SoftmaxOrder::kPre, SoftmaxOrder::kPost}) {
    const RouterOptions options{.top_k = 3,
                                .softmax_order = order,
                                .scaling_factor = 1.5,
                                .selection = ops::Selection::kForcedBalance,
                                .aux_loss = AuxLossKind::kAux,
                                .aux_loss_coefficient = 0.3};
    // Logits so far apart that a softmax over badly chosen experts would vanish against the best one.
    const Tensor logits = random_normal({37, 5}, at::kDouble, generator, order == SoftmaxOrder::kPost ? 400.0 : 1.0);
    const Routing routing = route(logits, options);
    for (std::int64_t e = 0; e < 5; ++e) EXPECT_NEAR(routing.count[e].item<int>(), 37.0 * 3.0 / 5.0, 1.0);
    EXPECT_TRUE(std::isfinite(at::sum(routing.prob).item<double>()));
    const Tensor near = logits.div(order == SoftmaxOrder::kPost ? 400.0 : 1.0);
    const Tensor dprob = random_normal({37, 3}, at::kDouble, generator);
    const auto loss = [&](const Tensor& point) {
      const Routing at_point = route(point, options);
      return at::sum(at_point.prob.mul(dprob)).item<double>() + 7.0 * at_point.aux.item<double>();
    };
    const Tensor dlogits = gradient(near, route(near, options), dprob, options, 7.0);
    EXPECT_LE(relative_error(dlogits, finite_difference(loss, near)), 1e-7);
  }
}

TEST(RouterTest, TiesGoToTheLowerIndex) {
  const Routing routing = route(at::zeros({3, 9}, at::kFloat), {.top_k = 4});
  for (std::int64_t t = 0; t < 3; ++t) {
    for (int k = 0; k < 4; ++k) EXPECT_EQ(routing.index[t][k].item<int>(), k);
  }
}

TEST(RouterTest, BalancedAuxiliaryLossIsTheCoefficient) {
  constexpr std::int64_t kExperts = 8;
  for (const AuxLossKind kind : {AuxLossKind::kAux, AuxLossKind::kSeqAux}) {
    // Token t prefers experts t and t + 1: every expert gets as many tokens and as much probability as the others.
    Tensor logits = at::zeros({2 * kExperts, kExperts}, at::kDouble);
    for (std::int64_t t = 0; t < 2 * kExperts; ++t) {
      logits[t][t % kExperts] = 3.0;
      logits[t][(t + 1) % kExperts] = 2.0;
    }
    const RouterOptions options{.top_k = 2, .aux_loss = kind, .aux_loss_coefficient = 0.01, .num_sequences = 2};
    const Routing routing = route(logits, options);
    EXPECT_TRUE(at::equal(routing.count, at::full({kExperts}, 4, at::kInt)));
    EXPECT_NEAR(routing.aux.item<double>(), 0.01, 1e-15);
    EXPECT_NEAR(route(logits.to(at::kFloat), options).aux.item<double>(), 0.01, 1e-8);
  }
}

TEST(RouterTest, CollapsedAuxiliaryLossIsTheCoefficientTimesExpertsOverTopK) {
  Tensor logits = at::full({32, 12}, -400.0, at::kDouble);
  logits.narrow(1, 3, 3).fill_(400.0);
  for (const AuxLossKind kind : {AuxLossKind::kAux, AuxLossKind::kSeqAux}) {
    const RouterOptions options{.top_k = 3, .aux_loss = kind, .aux_loss_coefficient = 0.01, .num_sequences = 4};
    EXPECT_NEAR(route(logits, options).aux.item<double>(), 0.01 * 12 / 3, 1e-15);
  }
}

TEST(RouterTest, SequenceLossDoesNotDependOnTheMicroBatch) {
  std::mt19937_64 generator(22);
  const Tensor logits = random_normal({8 * 20, 6}, at::kDouble, generator);
  const Tensor dprob = at::zeros({8 * 20, 2}, at::kDouble);
  RouterOptions options{.top_k = 2, .aux_loss = AuxLossKind::kSeqAux, .aux_loss_coefficient = 0.1};
  // Sequences a micro-batch: 1, 2, 4, 8. The loss of a global batch is the mean over its micro-batches.
  const auto global_batch = [&](std::int64_t sequences) {
    options.num_sequences = sequences;
    const double share = static_cast<double>(sequences) / 8.0;
    double loss = 0.0;
    std::vector<Tensor> gradients;
    for (std::int64_t first = 0; first < 160; first += 20 * sequences) {
      const Tensor part = logits.narrow(0, first, 20 * sequences);
      const Routing routing = route(part, options);
      loss += share * routing.aux.item<double>();
      gradients.push_back(gradient(part, routing, dprob.narrow(0, first, 20 * sequences), options, share));
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
  options.aux_loss = AuxLossKind::kAux;  // which is defined per micro-batch, so the comparison can fail
  EXPECT_GT(std::abs(global_batch(8).first - global_batch(1).first), 1e-5);
}

TEST(RouterTest, PostSoftmaxIsSoftmaxOverAllThenRenormalised) {
  std::mt19937_64 generator(23);
  const Tensor logits = random_normal({200, 60}, at::kFloat, generator, 2.0);
  const Routing post = route(logits, {.top_k = 4, .softmax_order = SoftmaxOrder::kPost});
  const Routing pre = route(logits, {.top_k = 4, .softmax_order = SoftmaxOrder::kPre});
  EXPECT_TRUE(at::equal(post.index, pre.index));
  EXPECT_LE(relative_error(post.prob, pre.prob.div(at::sum(pre.prob, {1}, true))), 1e-6);
  EXPECT_LE(relative_error(at::sum(post.prob, 1), at::ones({200}, at::kFloat)), 1e-6);
}

TEST(RouterTest, OneChosenExpertStillTrainsTheRouter) {
  std::mt19937_64 generator(24);
  const Tensor logits = random_normal({30, 8}, at::kFloat, generator);
  const Tensor dprob = random_normal({30, 1}, at::kFloat, generator);
  const RouterOptions pre{.top_k = 1};
  EXPECT_GT(gradient(logits, route(logits, pre), dprob, pre, 0.0).abs().sum().item<double>(), 1.0);
  const RouterOptions post{.top_k = 1, .softmax_order = SoftmaxOrder::kPost};
  EXPECT_EQ(gradient(logits, route(logits, post), dprob, post, 0.0).abs().sum().item<double>(), 0.0);
}

TEST(RouterTest, NamesTheFirstTokenWithoutASoftmax) {
  std::mt19937_64 generator(25);
  constexpr double kInf = std::numeric_limits<double>::infinity();
  for (const double bad : {std::numeric_limits<double>::quiet_NaN(), kInf}) {
    for (const SoftmaxOrder order : {SoftmaxOrder::kPre, SoftmaxOrder::kPost}) {
      Tensor logits = random_normal({1000, 5}, at::kFloat, generator);
      const RouterOptions options{.top_k = 2, .softmax_order = order};
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
  Tensor masked = at::zeros({1, 4}, at::kFloat);
  masked.narrow(1, 0, 3).fill_(-kInf);  // a masked expert is no fault
  EXPECT_EQ(route(masked, {.top_k = 1}).index.item<int>(), 3);
}

TEST(RouterTest, SameBitsWithAnyNumberOfThreads) {
  std::mt19937_64 generator(26);
  const Tensor logits = random_normal({4 * 333, 31}, at::kFloat, generator);
  const Tensor dprob = random_normal({4 * 333, 3}, at::kFloat, generator);
  const RouterOptions options{
      .top_k = 3, .aux_loss = AuxLossKind::kSeqAux, .aux_loss_coefficient = 0.1, .num_sequences = 4};
  std::vector<Tensor> results;
  for (const int threads : {1, 2}) {
    at::set_num_threads(threads);
    const Routing routing = route(logits, options);
    const Tensor dlogits = gradient(logits, routing, dprob, options, 2.0);
    results.insert(results.end(), {routing.index, routing.prob, routing.count, routing.aux, dlogits});
  }
  for (std::size_t i = 0; i < 5; ++i) EXPECT_TRUE(at::equal(results[i], results[i + 5])) << i;
}

TEST(RouterTest, RefusesWhatDoesNotFit) {
  EXPECT_THROW(route(at::zeros({4, 3}, at::kFloat), {.top_k = 4}), InternalError);
  EXPECT_THROW(route(at::zeros({4, 3}, at::kBFloat16), {.top_k = 1}), InternalError);
  EXPECT_THROW(route(at::zeros({4, 3}, at::kFloat), {.top_k = 1, .aux_loss = AuxLossKind::kSeqAux, .num_sequences = 3}),
               InternalError);
}

}  // namespace
}  // namespace primus
