#include "ops/router/router.hpp"

#include <ATen/ops/arange.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/softplus.h>

#include <limits>

#include "support/cuda.hpp"

namespace primus {
namespace {

using at::Tensor;
using ops::RouterOptions;
using ops::Selection;
using ops::SoftmaxOrder;
using namespace primus::test;

ops::RouterOutput route(const Tensor& logits, const RouterOptions& options, const Tensor& bias = {}) {
  const auto like = [&](std::vector<std::int64_t> shape, at::ScalarType dtype) {
    return poisoned(std::move(shape), dtype).to(logits.device());
  };
  ops::RouterOutput out{.index_TK = like({logits.size(0), options.top_k}, at::kInt),
                        .prob_TK = like({logits.size(0), options.top_k}, logits.scalar_type()),
                        .num_tokens_E = like({logits.size(1)}, at::kInt),
                        .num_balance_E = {},
                        .loss_4 = like({ops::RouterLoss::kNum}, logits.scalar_type()),
                        .slope_GE = {},
                        .quantile_E = {}};
  if (options.has_balance_loss()) out.slope_GE = like({options.num_slopes(), logits.size(1)}, logits.scalar_type());
  ops::router_forward({.logits_TE = logits, .bias_E = bias}, options, out);
  return out;
}

struct Case {
  std::int64_t sequences, length, experts, top_k;
};

class CudaRouterTest : public CudaTestWithParam<Case> {};

TEST_P(CudaRouterTest, MatchesTheReference) {
  const Case c = GetParam();
  const std::int64_t tokens = c.sequences * c.length;
  for (const auto& [order, selection] : {std::pair{SoftmaxOrder::kPre, Selection::kTopK},
                                         {SoftmaxOrder::kPost, Selection::kTopK},
                                         {SoftmaxOrder::kPre, Selection::kForcedBalance},
                                         {SoftmaxOrder::kPost, Selection::kForcedBalance}}) {
    for (const auto& [aux, seq_aux] : {std::pair{0.0, 0.0}, {0.01, 0.0}, {0.0, 0.01}}) {
      std::mt19937_64 generator(6);
      // Few distinct values, so that ties are common.
      const Tensor logits = random_normal({tokens, c.experts}, at::kFloat, generator, 16.0).round().div(8.0);
      const Tensor dprob = random_normal({tokens, c.top_k}, at::kFloat, generator);
      const RouterOptions options{.top_k = c.top_k,
                                  .softmax_order = order,
                                  .scaling_factor = 2.5,
                                  .selection = selection,
                                  .aux_loss = aux,
                                  .seq_aux_loss = seq_aux,
                                  .num_sequences = c.sequences};
      const ops::RouterOutput expected = route(to64(logits), options);
      Tensor dlogits64 = poisoned({tokens, c.experts}, at::kDouble);
      ops::router_backward({.logits_TE = to64(logits)}, expected, to64(dprob), options, 3.0, dlogits64);

      std::vector<Tensor> losses;
      for (int run = 0; run < 2; ++run) {
        const ops::RouterOutput routing = route(to_cuda(logits), options);
        EXPECT_TRUE(at::equal(routing.index_TK.cpu(), expected.index_TK));
        EXPECT_TRUE(at::equal(routing.num_tokens_E.cpu(), expected.num_tokens_E));
        EXPECT_LE(relative_error(to64(routing.prob_TK), expected.prob_TK), 1e-5);
        EXPECT_LE(relative_error(to64(routing.loss_4), expected.loss_4), 1e-5);
        if (options.has_balance_loss()) {
          EXPECT_LE(relative_error(to64(routing.slope_GE), expected.slope_GE), 1e-6);
        }
        Tensor dlogits = cuda_poisoned({tokens, c.experts}, at::kFloat);
        ops::router_backward({.logits_TE = to_cuda(logits)}, routing, to_cuda(dprob), options, 3.0, dlogits);
        if (c.experts == 1) {
          // A gate that is constant has a gradient of zero but for rounding, as on the CPU.
          EXPECT_LE(to64(dlogits).sub(dlogits64).norm().item<double>(), 1e-6 * to64(dprob).norm().item<double>());
        } else {
          EXPECT_LE(relative_error(to64(dlogits), dlogits64), 1e-5);
        }
        losses.push_back(at::cat({routing.loss_4, dlogits.reshape({-1})}).cpu());
      }
      EXPECT_TRUE(at::equal(losses[0], losses[1]));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, CudaRouterTest,
                         ::testing::Values(Case{1, 0, 4, 2}, Case{1, 1, 1, 1}, Case{2, 3, 5, 5}, Case{3, 333, 16, 4},
                                           Case{4, 100, 60, 4}, Case{4, 257, 64, 6}, Case{2, 70, 128, 8},
                                           Case{1, 65, 257, 8}, Case{2, 33, 1000, 10}));

/// What the experts of each token are chosen by, in fp64.
Tensor choice_values(const Tensor& logits, const RouterOptions& options, const Tensor& bias) {
  Tensor value = logits;
  if (options.score_function == ops::ScoreFunction::kSigmoid) value = logits.sigmoid();
  if (options.score_function == ops::ScoreFunction::kSqrtSoftplus) value = at::softplus(logits).sqrt();
  if (options.score_function == ops::ScoreFunction::kSoftmax && options.softmax_order == SoftmaxOrder::kPre) {
    value = at::softmax(logits, 1);
  }
  return bias.defined() ? value.add(bias) : value;
}

/// Smallest step between the largest `taken` + 1 values of each row, relative to them.
Tensor smallest_step(const Tensor& value, std::int64_t taken) {
  const std::int64_t num = std::min(taken + 1, value.size(1));
  const Tensor sorted = std::get<0>(value.sort(1, /*descending=*/true)).narrow(1, 0, num);
  if (num < 2) return at::full({value.size(0)}, 1.0, value.options());
  const Tensor larger = sorted.narrow(1, 0, num - 1);
  const Tensor smaller = sorted.narrow(1, 1, num - 1);
  return larger.sub(smaller).div(at::maximum(larger.abs(), smaller.abs())).amin(1);
}

/// Logits whose choice does not hang on the last bits, so that fp32 and fp64 must agree: rows that do are replaced.
Tensor decided_logits(Tensor logits, const RouterOptions& options, const Tensor& bias) {
  const Tensor value = choice_values(logits, options, bias);
  const std::int64_t size = logits.size(1) / options.num_groups;
  const std::int64_t best =
      options.group_score == ops::GroupScore::kMax ? 1 : std::max<std::int64_t>(1, options.top_k / options.group_top_k);
  const Tensor group = std::get<0>(value.view({-1, options.num_groups, size}).topk(std::min(best, size), 2)).sum(2);
  const Tensor is_decided =
      at::minimum(smallest_step(group, options.group_top_k), smallest_step(value, value.size(1))).gt(1e-5);
  if (logits.size(0) == 0) return logits;
  EXPECT_GT(is_decided.sum().item<std::int64_t>(), logits.size(0) / 4);
  const Tensor decided = logits.index({is_decided});
  const Tensor row = at::arange(logits.size(0)).remainder(decided.size(0));
  return decided.index({row}).contiguous();
}

struct Choice {
  ops::ScoreFunction score;
  SoftmaxOrder order;
  bool has_bias;
  std::int64_t num_groups, group_top_k;
  ops::GroupScore group_score;
  double seq_aux, z;
};

struct ScoreCase {
  std::int64_t sequences, length, experts, top_k, groups, kept;
};

class CudaRouterScores : public CudaTestWithParam<ScoreCase> {};

TEST_P(CudaRouterScores, MatchTheReference) {
  using ops::GroupScore;
  using ops::ScoreFunction;
  const ScoreCase c = GetParam();
  const std::int64_t tokens = c.sequences * c.length;
  const Choice choices[] = {
      {ScoreFunction::kSigmoid, SoftmaxOrder::kPre, false, 1, 1, GroupScore::kMax, 0.0, 0.0},
      {ScoreFunction::kSigmoid, SoftmaxOrder::kPre, true, 1, 1, GroupScore::kMax, 0.01, 0.0},
      {ScoreFunction::kSigmoid, SoftmaxOrder::kPre, true, c.groups, c.kept, GroupScore::kSumOfBest, 0.01, 0.003},
      {ScoreFunction::kSqrtSoftplus, SoftmaxOrder::kPre, true, 1, 1, GroupScore::kMax, 0.01, 0.0},
      {ScoreFunction::kSqrtSoftplus, SoftmaxOrder::kPre, false, c.groups, c.kept, GroupScore::kMax, 0.0, 0.003},
      {ScoreFunction::kSoftmax, SoftmaxOrder::kPre, false, c.groups, c.kept, GroupScore::kMax, 0.01, 0.003},
      {ScoreFunction::kSoftmax, SoftmaxOrder::kPre, false, c.groups, c.kept, GroupScore::kSumOfBest, 0.0, 0.0},
      {ScoreFunction::kSoftmax, SoftmaxOrder::kPost, false, c.groups, c.kept, GroupScore::kMax, 0.01, 0.0},
      {ScoreFunction::kSoftmax, SoftmaxOrder::kPost, false, 1, 1, GroupScore::kMax, 0.0, 0.003}};
  for (const Choice& choice : choices) {
    std::mt19937_64 generator(9);
    const RouterOptions options{.top_k = c.top_k,
                                .score_function = choice.score,
                                .softmax_order = choice.order,
                                .scaling_factor = 2.5,
                                .num_groups = choice.num_groups,
                                .group_top_k = choice.group_top_k,
                                .group_score = choice.group_score,
                                .seq_aux_loss = choice.seq_aux,
                                .z_loss = choice.z,
                                .num_sequences = c.sequences};
    const Tensor bias = choice.has_bias ? random_normal({c.experts}, at::kFloat, generator, 0.2) : Tensor{};
    const Tensor bias64 = bias.defined() ? to64(bias) : Tensor{};
    const Tensor logits64 =
        decided_logits(to64(random_normal({tokens, c.experts}, at::kFloat, generator)), options, bias64);
    const Tensor logits = logits64.to(at::kFloat);
    const Tensor dprob = random_normal({tokens, c.top_k}, at::kFloat, generator);
    const ops::RouterOutput expected = route(logits64, options, bias64);
    Tensor dlogits64 = poisoned({tokens, c.experts}, at::kDouble);
    ops::router_backward({.logits_TE = logits64}, expected, to64(dprob), options, 3.0, dlogits64);

    std::vector<Tensor> results;
    for (int run = 0; run < 2; ++run) {
      const ops::RouterOutput routing = route(to_cuda(logits), options, bias.defined() ? to_cuda(bias) : Tensor{});
      EXPECT_TRUE(at::equal(routing.index_TK.cpu(), expected.index_TK));
      EXPECT_TRUE(at::equal(routing.num_tokens_E.cpu(), expected.num_tokens_E));
      EXPECT_LE(relative_error(to64(routing.prob_TK), expected.prob_TK), 1e-5);
      EXPECT_LE(relative_error(to64(routing.loss_4), expected.loss_4), 1e-5);
      if (options.has_balance_loss()) {
        EXPECT_LE(relative_error(to64(routing.slope_GE), expected.slope_GE), 1e-6);
      }
      Tensor dlogits = cuda_poisoned({tokens, c.experts}, at::kFloat);
      ops::router_backward({.logits_TE = to_cuda(logits)}, routing, to_cuda(dprob), options, 3.0, dlogits);
      EXPECT_LE(relative_error(to64(dlogits), dlogits64), 2e-5);
      results.push_back(at::cat({routing.loss_4, dlogits.reshape({-1})}).cpu());
    }
    EXPECT_TRUE(at::equal(results[0], results[1]));
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, CudaRouterScores,
                         ::testing::Values(ScoreCase{1, 0, 8, 2, 2, 1}, ScoreCase{1, 1, 8, 1, 4, 2},
                                           ScoreCase{3, 111, 16, 4, 4, 2}, ScoreCase{2, 257, 64, 6, 8, 3},
                                           ScoreCase{4, 65, 256, 8, 8, 4}, ScoreCase{2, 33, 384, 8, 48, 9}));

TEST_F(CudaTest, RouterGivesNanProbabilitiesWithoutASoftmax) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  std::mt19937_64 generator(7);
  for (const SoftmaxOrder order : {SoftmaxOrder::kPre, SoftmaxOrder::kPost}) {
    Tensor logits = random_normal({100, 20}, at::kFloat, generator);
    logits[17][3] = std::numeric_limits<float>::quiet_NaN();
    logits[40][19] = kInf;
    logits[41].fill_(-kInf);
    logits[42].narrow(0, 0, 19).fill_(-kInf);  // all masked but one: no fault
    const ops::RouterOutput routing = route(to_cuda(logits), {.top_k = 3, .softmax_order = order});
    const Tensor index = routing.index_TK.cpu();
    const Tensor is_nan = routing.prob_TK.cpu().isnan();
    for (std::int64_t t = 0; t < 100; ++t) {
      const bool bad = t == 17 || t == 40 || t == 41;
      for (int k = 0; k < 3; ++k) {
        EXPECT_EQ(is_nan[t][k].item<bool>(), bad) << t;
        EXPECT_TRUE(!bad || index[t][k].item<int>() == k) << t;
      }
    }
    EXPECT_EQ(index[42][0].item<int>(), 19);
    EXPECT_EQ(routing.num_tokens_E.cpu().sum().item<std::int64_t>(), 300);
  }
}

/// An option without a kernel: an error that names its key, never another result.
TEST_F(CudaTest, RouterNamesTheKeyOfAnOptionWithoutAKernel) {
  const Tensor logits = at::zeros({8, 4}, at::kFloat);
  const auto expect_named = [&](const ops::RouterInput& input, RouterOptions options, const std::string& key) {
    options.top_k = 2;
    ops::RouterOutput out{.index_TK = cuda_poisoned({8, 2}, at::kInt),
                          .prob_TK = cuda_poisoned({8, 2}, input.logits_TE.scalar_type()),
                          .num_tokens_E = cuda_poisoned({4}, at::kInt),
                          .num_balance_E = cuda_poisoned({4}, at::kInt),
                          .loss_4 = cuda_poisoned({ops::RouterLoss::kNum}, input.logits_TE.scalar_type()),
                          .slope_GE = cuda_poisoned({options.num_slopes(), 4}, input.logits_TE.scalar_type()),
                          .quantile_E = cuda_poisoned({4}, input.logits_TE.scalar_type())};
    try {
      ops::router_forward(input, options, out);
      ADD_FAILURE() << key;
    } catch (const UserError& error) {
      EXPECT_NE(std::string(error.what()).find(key), std::string::npos) << error.what();
    }
  };
  const Tensor on_gpu = to_cuda(logits);
  const Tensor bias = to_cuda(at::zeros({4}, at::kFloat));
  const Tensor earlier = to_cuda(at::zeros({4}, at::kLong));
  const ops::RouterInput plain{.logits_TE = on_gpu, .num_earlier_E = earlier};
  expect_named(plain, {.logit_softcap = 1.0}, "router_logit_softcapping");
  expect_named(plain, {.global_aux_loss = 1.0}, "global_aux_loss");
  expect_named(plain, {.aux_loss = 1.0, .seq_aux_loss = 1.0}, "several losses");
  expect_named(plain, {.selection = Selection::kSinkhorn}, "sinkhorn");
  expect_named({.logits_TE = on_gpu, .bias_E = bias}, {.selection = Selection::kQuantile}, "quantile_balancing");
  expect_named({.logits_TE = on_gpu, .bias_E = bias}, {}, "moe_router_enable_expert_bias");
  expect_named({.logits_TE = on_gpu.to(at::kDouble)}, {}, "moe_router_dtype");
}

}  // namespace
}  // namespace primus
