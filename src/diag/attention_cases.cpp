// Causal attention. FLOPs of the causal half; backward's five products with the scores computed again.
#include <ATen/ops/empty_like.h>
#include <ATen/ops/scaled_dot_product_attention.h>

#include <cmath>

#include "diag/op_cases.hpp"
#include "ops/attention/attention.hpp"

namespace primus::diag {
namespace {

struct Buffers {
  Tensor q, k, v, context, lse, dcontext, dq, dk, dv;
};

auto buffers_of(const Workload& w, double scale) {
  const std::int64_t batch = w.tokens / w.sequence;
  return BufferSets(2, [&] {
    const auto heads = [&](std::int64_t size) { return w.random({batch, w.sequence, w.heads, size}); };
    const std::int64_t query_size = w.nope + w.rotary;
    Buffers b{.q = heads(query_size),
              .k = heads(query_size),
              .v = heads(w.value),
              .context = heads(w.value),
              .lse = w.random({batch, w.heads, w.sequence}, at::kFloat),
              .dcontext = heads(w.value),
              .dq = heads(query_size),
              .dk = heads(query_size),
              .dv = heads(w.value)};
    ops::attention_forward(b.q, b.k, b.v, {.scale = scale}, b.context, b.lse);
    return b;
  });
}

}  // namespace

void add_attention_cases(const Workload& w, std::vector<OpCase>& cases) {
  const std::int64_t query_size = w.nope + w.rotary;
  const double scale = 1.0 / std::sqrt(static_cast<double>(query_size));
  const double product = static_cast<double>(w.tokens * w.sequence) * static_cast<double>(w.heads);
  const std::string shape =
      fmt::format("B {} S {} A {} head {}/{}", w.tokens / w.sequence, w.sequence, w.heads, query_size, w.value);
  cases.push_back(
      {"attention_forward", shape, Limit::kFlops, product * static_cast<double>(query_size + w.value), [w, scale] {
         const auto sets = buffers_of(w, scale);
         return Calls{sets.call([scale](Buffers& b) {
                        ops::attention_forward(b.q, b.k, b.v, {.scale = scale}, b.context, b.lse);
                      }),
                      sets.call([scale](Buffers& b) {
                        at::scaled_dot_product_attention(b.q.transpose(1, 2), b.k.transpose(1, 2), b.v.transpose(1, 2),
                                                         {}, 0.0, true, scale);
                      })};
       }});
  cases.push_back({"attention_backward", shape, Limit::kFlops,
                   product * static_cast<double>(3 * query_size + 2 * w.value), [w, scale] {
                     return Calls{buffers_of(w, scale).call([scale](Buffers& b) {
                                    ops::attention_backward(b.dcontext, b.q, b.k, b.v, b.context, b.lse,
                                                            {.scale = scale}, b.dq, b.dk, b.dv);
                                  }),
                                  {}};
                   }});
}

}  // namespace primus::diag
