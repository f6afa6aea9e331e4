// The router, and rows by expert and back.
#include <ATen/ops/index_select.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/topk.h>

#include "diag/op_cases.hpp"
#include "ops/permute/permute.hpp"
#include "ops/router/router.hpp"

namespace primus::diag {
namespace {

void add_router(const Workload& w, std::vector<OpCase>& cases) {
  struct Buffers {
    Tensor logits;
    ops::RouterOutput output;
    Tensor dlogits;
  };
  const at::TensorOptions int32 = at::TensorOptions(w.device).dtype(at::kInt);
  const ops::RouterOptions options{.top_k = w.top_k, .num_sequences = w.tokens / w.sequence};
  const double logits = 4.0 * static_cast<double>(w.tokens * w.experts);
  const double choices = 4.0 * static_cast<double>(w.rows());
  const auto sets = [w, int32, options, logits] {
    return BufferSets(num_buffer_sets(w, 2 * logits), [&] {
      Buffers b{w.random({w.tokens, w.experts}, at::kFloat),
                {.index_TK = at::empty({w.tokens, w.top_k}, int32),
                 .prob_TK = w.random({w.tokens, w.top_k}, at::kFloat),
                 .num_tokens_E = at::empty({w.experts}, int32),
                 .num_balance_E = {},
                 .loss_4 = w.random({ops::RouterLoss::kNum}, at::kFloat),
                 .slope_GE = {},
                 .quantile_E = {}},
                w.random({w.tokens, w.experts}, at::kFloat)};
      ops::router_forward({.logits_TE = b.logits}, options, b.output);
      return b;
    });
  };
  const std::string shape = fmt::format("T {} E {} K {}", w.tokens, w.experts, w.top_k);
  cases.push_back({"router_forward", shape, Limit::kBytes, logits + 2 * choices, [sets, options, k = w.top_k] {
                     const auto buffers = sets();
                     return Calls{buffers.call([options](auto& b) {
                                    ops::router_forward({.logits_TE = b.logits}, options, b.output);
                                  }),
                                  buffers.call([k](auto& b) { at::topk(at::softmax(b.logits, 1), k); })};
                   }});
  cases.push_back({"router_backward", shape, Limit::kBytes, 2 * logits + 3 * choices, [sets, options] {
                     return Calls{sets().call([options](auto& b) {
                                    ops::router_backward({.logits_TE = b.logits}, b.output, b.output.prob_TK, options,
                                                         1.0, b.dlogits);
                                  }),
                                  {}};
                   }});
}

void add_permutation(const Workload& w, std::vector<OpCase>& cases) {
  struct Buffers {
    Tensor index, offsets, row_of, slot_of, token_of, x, x_R;
  };
  const at::TensorOptions int32 = at::TensorOptions(w.device).dtype(at::kInt);
  const double pass = w.element_bytes() * static_cast<double>(w.tokens * w.hidden);
  const auto sets = [w, int32] {
    return BufferSets(2, [&] {
      const Tensor scores = w.random({w.tokens, w.experts}, at::kFloat);
      Buffers b{std::get<1>(at::topk(scores, w.top_k)).to(at::kInt),
                at::empty({w.experts + 1}, int32),
                at::empty({w.tokens, w.top_k}, int32),
                at::empty({w.rows()}, int32),
                {},
                w.random({w.tokens, w.hidden}),
                w.random({w.rows(), w.hidden})};
      ops::permute_plan(b.index, w.experts, b.offsets, b.row_of, b.slot_of);
      b.token_of = b.slot_of.to(at::kLong).floor_divide(w.top_k);
      return b;
    });
  };
  const std::string shape = fmt::format("T {} K {} E {} H {}", w.tokens, w.top_k, w.experts, w.hidden);
  const auto k = static_cast<double>(w.top_k);
  cases.push_back(
      {"permute_plan", shape, Limit::kBytes, 3.0 * 4.0 * static_cast<double>(w.rows()), [sets, experts = w.experts] {
         return Calls{
             sets().call([experts](auto& b) { ops::permute_plan(b.index, experts, b.offsets, b.row_of, b.slot_of); }),
             {}};
       }});
  cases.push_back({"permute_rows", shape, Limit::kBytes, (1 + k) * pass, [sets] {
                     const auto buffers = sets();
                     return Calls{buffers.call([](auto& b) { ops::permute_rows(b.x, b.row_of, b.x_R); }),
                                  buffers.call([](auto& b) { at::index_select_out(b.x_R, b.x, 0, b.token_of); })};
                   }});
  cases.push_back(
      {"unpermute_sum", shape, Limit::kBytes, (1 + k) * pass, [sets] {
         const auto buffers = sets();
         return Calls{buffers.call([](auto& b) { ops::unpermute_sum(b.x_R, b.row_of, b.x, ops::Write::kOverwrite); }),
                      buffers.call([](auto& b) { b.x.zero_().index_add_(0, b.token_of, b.x_R); })};
       }});
}

}  // namespace

void add_routing_cases(const Workload& workload, std::vector<OpCase>& cases) {
  add_router(workload, cases);
  add_permutation(workload, cases);
}

}  // namespace primus::diag
