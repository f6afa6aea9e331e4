#include "ops/router/router.hpp"

#include <limits>

#include "support/cuda.hpp"

namespace primus {
namespace {

using at::Tensor;
using ops::AuxLossKind;
using ops::RouterOptions;
using ops::Selection;
using ops::SoftmaxOrder;
using namespace primus::test;

struct Routing {
  Tensor index, prob, count, aux;
};

Routing route(const Tensor& logits, const RouterOptions& options) {
  const auto like = [&](std::vector<std::int64_t> shape, at::ScalarType dtype) {
    return poisoned(std::move(shape), dtype).to(logits.device());
  };
  Routing out{like({logits.size(0), options.top_k}, at::kInt),
              like({logits.size(0), options.top_k}, logits.scalar_type()), like({logits.size(1)}, at::kInt),
              like({1}, logits.scalar_type())};
  ops::router_forward(logits, options, out.index, out.prob, out.count, out.aux);
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
    for (const AuxLossKind kind : {AuxLossKind::kNone, AuxLossKind::kAux, AuxLossKind::kSeqAux}) {
      std::mt19937_64 generator(6);
      // Few distinct values, so that ties are common.
      const Tensor logits = random_normal({tokens, c.experts}, at::kFloat, generator, 16.0).round().div(8.0);
      const Tensor dprob = random_normal({tokens, c.top_k}, at::kFloat, generator);
      const RouterOptions options{.top_k = c.top_k,
                                  .softmax_order = order,
                                  .scaling_factor = 2.5,
                                  .selection = selection,
                                  .aux_loss = kind,
                                  .aux_loss_coefficient = 0.01,
                                  .num_sequences = c.sequences};
      const Routing expected = route(to64(logits), options);
      Tensor dlogits64 = poisoned({tokens, c.experts}, at::kDouble);
      ops::router_backward(to64(logits), expected.index, expected.prob, to64(dprob), options, 3.0, dlogits64);

      std::vector<Tensor> losses;
      for (int run = 0; run < 2; ++run) {
        const Routing routing = route(to_cuda(logits), options);
        EXPECT_TRUE(at::equal(routing.index.cpu(), expected.index));
        EXPECT_TRUE(at::equal(routing.count.cpu(), expected.count));
        EXPECT_LE(relative_error(to64(routing.prob), expected.prob), 1e-5);
        EXPECT_LE(relative_error(to64(routing.aux), expected.aux), 1e-5);
        Tensor dlogits = cuda_poisoned({tokens, c.experts}, at::kFloat);
        ops::router_backward(to_cuda(logits), routing.index, routing.prob, to_cuda(dprob), options, 3.0, dlogits);
        EXPECT_LE(relative_error(to64(dlogits), dlogits64), 1e-5);
        losses.push_back(at::cat({routing.aux, dlogits.reshape({-1})}).cpu());
      }
      EXPECT_TRUE(at::equal(losses[0], losses[1]));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, CudaRouterTest,
                         ::testing::Values(Case{1, 0, 4, 2}, Case{1, 1, 1, 1}, Case{2, 3, 5, 5}, Case{3, 333, 16, 4},
                                           Case{4, 100, 60, 4}, Case{4, 257, 64, 6}, Case{2, 70, 128, 8},
                                           Case{1, 65, 257, 8}, Case{2, 33, 1000, 10}));

TEST_F(CudaTest, RouterGivesNanProbabilitiesWithoutASoftmax) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  std::mt19937_64 generator(7);
  for (const SoftmaxOrder order : {SoftmaxOrder::kPre, SoftmaxOrder::kPost}) {
    Tensor logits = random_normal({100, 20}, at::kFloat, generator);
    logits[17][3] = std::numeric_limits<float>::quiet_NaN();
    logits[40][19] = kInf;
    logits[41].fill_(-kInf);
    logits[42].narrow(0, 0, 19).fill_(-kInf);  // all masked but one: no fault
    const Routing routing = route(to_cuda(logits), {.top_k = 3, .softmax_order = order});
    const Tensor index = routing.index.cpu();
    const Tensor is_nan = routing.prob.cpu().isnan();
    for (std::int64_t t = 0; t < 100; ++t) {
      const bool bad = t == 17 || t == 40 || t == 41;
      for (int k = 0; k < 3; ++k) {
        EXPECT_EQ(is_nan[t][k].item<bool>(), bad) << t;
        EXPECT_TRUE(!bad || index[t][k].item<int>() == k) << t;
      }
    }
    EXPECT_EQ(index[42][0].item<int>(), 19);
    EXPECT_EQ(routing.count.cpu().sum().item<std::int64_t>(), 300);
  }
}

}  // namespace
}  // namespace primus
