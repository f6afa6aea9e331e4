// Ops that pass over rows: norm, activation, position, embedding and loss.
#include <ATen/ops/_fused_rms_norm.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/embedding_dense_backward.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/zeros.h>

#include "diag/op_cases.hpp"
#include "ops/cross_entropy/cross_entropy.hpp"
#include "ops/embedding/embedding.hpp"
#include "ops/rms_norm/rms_norm.hpp"
#include "ops/rope/rope.hpp"
#include "ops/swiglu/swiglu.hpp"

namespace primus::diag {
namespace {

void add_norm(const Workload& w, std::vector<OpCase>& cases) {
  struct Buffers {
    Tensor x, y, dx, weight, rstd, main_grad;
  };
  const double pass = w.element_bytes() * static_cast<double>(w.tokens * w.hidden);
  const auto sets = [w, pass] {
    return BufferSets(num_buffer_sets(w, 2 * pass), [&] {
      return Buffers{w.random({w.tokens, w.hidden}),   w.random({w.tokens, w.hidden}),
                     w.random({w.tokens, w.hidden}),   w.random({w.hidden}),
                     w.random({w.tokens}, at::kFloat), w.random({w.hidden}, at::kFloat)};
    });
  };
  const std::string shape = fmt::format("T {} H {}", w.tokens, w.hidden);
  cases.push_back({"rms_norm_forward", shape, Limit::kBytes, 2 * pass, [w, sets] {
                     const auto buffers = sets();
                     return Calls{
                         buffers.call([](auto& b) { ops::rms_norm_forward(b.x, b.weight, 1e-6, b.y, b.rstd); }),
                         buffers.call([w](auto& b) {
                           const std::int64_t width = w.hidden;
                           at::_fused_rms_norm(b.x, {&width, 1}, b.weight, 1e-6);
                         })};
                   }});
  cases.push_back({"rms_norm_backward", shape, Limit::kBytes, 3 * pass, [sets] {
                     return Calls{sets().call([](auto& b) {
                                    ops::rms_norm_backward(b.y, b.x, b.weight, b.rstd, b.dx, ops::Write::kOverwrite,
                                                           b.main_grad);
                                  }),
                                  {}};
                   }});
}

void add_activation(const Workload& w, std::vector<OpCase>& cases) {
  struct Buffers {
    Tensor h, dh, a, da, prob, dprob;
  };
  const double pass = w.element_bytes() * static_cast<double>(w.rows() * w.expert_ffn);
  const auto sets = [w, pass] {
    return BufferSets(std::min(num_buffer_sets(w, 3 * pass), 8), [&] {
      return Buffers{w.random({w.rows(), 2 * w.expert_ffn}), w.random({w.rows(), 2 * w.expert_ffn}),
                     w.random({w.rows(), w.expert_ffn}),     w.random({w.rows(), w.expert_ffn}),
                     w.random({w.rows()}, at::kFloat),       w.random({w.rows()}, at::kFloat)};
    });
  };
  const std::string shape = fmt::format("R {} F {}", w.rows(), w.expert_ffn);
  cases.push_back(
      {"swiglu_forward", shape, Limit::kBytes, 3 * pass, [sets, width = w.expert_ffn] {
         const auto buffers = sets();
         return Calls{buffers.call([](auto& b) { ops::swiglu_forward(b.h, b.prob, {}, b.a); }),
                      buffers.call([width](auto& b) {
                        at::silu(b.h.narrow(1, 0, width)).mul_(b.h.narrow(1, width, width)).mul_(b.prob.unsqueeze(1));
                      })};
       }});
  cases.push_back({"swiglu_backward", shape, Limit::kBytes, 6 * pass, [sets] {
                     return Calls{
                         sets().call([](auto& b) { ops::swiglu_backward(b.da, b.h, b.prob, {}, b.dh, b.dprob, b.a); }),
                         {}};
                   }});
}

void add_position(const Workload& w, std::vector<OpCase>& cases) {
  struct Buffers {
    Tensor q, k, v, kv, k_pe;
  };
  const std::int64_t size = w.nope + w.rotary;
  const std::string shape = fmt::format("T {} A {} {}+{}/{}", w.tokens, w.heads, w.nope, w.rotary, w.value);
  const double bytes =
      w.element_bytes() *
      static_cast<double>(w.tokens * (w.heads * (w.nope + w.value + size + w.value + 2 * w.rotary) + w.rotary));
  const auto sets = [w, size, bytes] {
    return BufferSets(num_buffer_sets(w, bytes), [&] {
      return Buffers{w.random({w.tokens, w.heads, size}), w.random({w.tokens, w.heads, size}),
                     w.random({w.tokens, w.heads, w.value}), w.random({w.tokens, w.heads, w.nope + w.value}),
                     w.random({w.tokens, w.rotary})};
    });
  };
  const Tensor cos = w.random({w.sequence, w.rotary / 2}, at::kFloat).cos();
  const Tensor sin = w.random({w.sequence, w.rotary / 2}, at::kFloat).sin();
  cases.push_back({"mla_assemble_forward", shape, Limit::kBytes, bytes, [sets, cos, sin] {
                     return Calls{sets().call([cos, sin](auto& b) {
                                    ops::mla_assemble_forward(b.kv, b.k_pe, cos, sin, ops::RopeLayout::kHalves, b.q,
                                                              b.k, b.v);
                                  }),
                                  {}};
                   }});
  cases.push_back({"mla_assemble_backward", shape, Limit::kBytes, bytes, [sets, cos, sin] {
                     return Calls{sets().call([cos, sin](auto& b) {
                                    ops::mla_assemble_backward(b.k, b.v, cos, sin, ops::RopeLayout::kHalves, b.q, b.kv,
                                                               b.k_pe);
                                  }),
                                  {}};
                   }});
}

void add_embedding(const Workload& w, std::vector<OpCase>& cases) {
  struct Buffers {
    Tensor ids, x;
  };
  const double pass = w.element_bytes() * static_cast<double>(w.tokens * w.hidden);
  const auto sets = [w, pass] {
    return BufferSets(num_buffer_sets(w, 2 * pass), [&] {
      return Buffers{w.numbers_below(w.vocabulary, w.tokens), w.random({w.tokens, w.hidden})};
    });
  };
  const std::string shape = fmt::format("T {} V {} H {}", w.tokens, w.vocabulary, w.hidden);
  cases.push_back({"embedding_forward", shape, Limit::kBytes, 2 * pass, [w, sets] {
                     const Tensor weight = w.random({w.vocabulary, w.hidden});
                     const auto buffers = sets();
                     return Calls{buffers.call([weight](auto& b) { ops::embedding_forward(b.ids, weight, b.x); }),
                                  buffers.call([weight](auto& b) { at::embedding(weight, b.ids); })};
                   }});
  const double sums = 8.0 * static_cast<double>(w.tokens * w.hidden);
  cases.push_back({"embedding_backward", shape, Limit::kBytes, pass + sums, [w, sets] {
                     Tensor main_grad = w.random({w.vocabulary, w.hidden}, at::kFloat);
                     const auto buffers = sets();
                     return Calls{
                         buffers.call([main_grad](auto& b) mutable { ops::embedding_backward(b.ids, b.x, main_grad); }),
                         buffers.call([w, main_grad](auto& b) mutable {
                           main_grad.add_(at::embedding_dense_backward(b.x, b.ids, w.vocabulary, -1, false));
                         })};
                   }});
}

void add_loss(const Workload& w, std::vector<OpCase>& cases) {
  struct Buffers {
    Tensor logits, label, grad, loss;
  };
  const double pass = w.element_bytes() * static_cast<double>(w.loss_tokens * w.vocabulary);
  const auto sets = [w, pass] {
    return BufferSets(std::min(num_buffer_sets(w, pass), 8), [&] {
      return Buffers{w.random({w.loss_tokens, w.vocabulary}), w.numbers_below(w.vocabulary, w.loss_tokens),
                     w.random({w.loss_tokens}, at::kFloat), w.random({w.loss_tokens}, at::kFloat)};
    });
  };
  const std::string shape = fmt::format("T {} V {}", w.loss_tokens, w.vocabulary);
  cases.push_back({"cross_entropy_forward", shape, Limit::kBytes, pass, [sets] {
                     const auto buffers = sets();
                     return Calls{buffers.call([](auto& b) { ops::cross_entropy_forward(b.logits, b.label, b.loss); }),
                                  buffers.call([](auto& b) { at::cross_entropy_loss(b.logits, b.label); })};
                   }});
  cases.push_back(
      {"cross_entropy_forward_backward", shape, Limit::kBytes, 2 * pass, [sets] {
         return Calls{
             sets().call([](auto& b) { ops::cross_entropy_forward_backward(b.logits, b.label, b.grad, b.loss); }), {}};
       }});
}

}  // namespace

void add_row_cases(const Workload& workload, std::vector<OpCase>& cases) {
  for (const auto add : {add_norm, add_activation, add_position, add_embedding, add_loss}) add(workload, cases);
}

}  // namespace primus::diag
