// The optimizer's pass and the norm before it.
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include "diag/op_cases.hpp"
#include "ops/adamw/adamw.hpp"

namespace primus::diag {
namespace {

struct Buffers {
  Tensor grad, master, exp_avg, exp_avg_sq, weight, low_bits;
  ops::UpdateGate gate;
};

auto buffers_of(const Workload& w) {
  // Parameters far larger than the cache: one set is enough.
  return BufferSets(1, [&] {
    Buffers b{w.random({w.parameters}, at::kFloat),
              w.random({w.parameters}, at::kFloat),
              w.random({w.parameters}, at::kFloat),
              w.random({w.parameters}, at::kFloat).abs_(),
              w.random({w.parameters}, at::kBFloat16),
              at::zeros({w.parameters}, at::TensorOptions(w.device).dtype(at::kShort)),
              ops::make_update_gate(w.device)};
    b.gate.rates_2.fill_(1e-4);
    const Tensor one = at::ones({1}, b.gate.rates_2.options());
    ops::close_gate(one, one, 1.0, b.gate);
    return b;
  });
}

}  // namespace

void add_update_cases(const Workload& w, std::vector<OpCase>& cases) {
  const auto count = static_cast<double>(w.parameters);
  const std::string shape = fmt::format("{} Mi", w.parameters >> 20);
  cases.push_back({"adamw_step", shape + " fp32", Limit::kBytes, 28.0 * count, [w] {
                     const auto sets = buffers_of(w);
                     const Tensor step = at::ones({1}, at::TensorOptions(w.device).dtype(at::kFloat));
                     return Calls{sets.call([](Buffers& b) {
                                    ops::adamw_step({}, b.gate, ops::Decays::kYes, b.grad, b.master, b.exp_avg,
                                                    b.exp_avg_sq, b.master);
                                  }),
                                  sets.call([step](Buffers& b) {
                                    at::_fused_adamw_({b.master}, {b.grad}, {b.exp_avg}, {b.exp_avg_sq}, {},
                                                      {step.squeeze(0)}, 1e-4, 0.9, 0.999, 0.1, 1e-8, false, false);
                                  })};
                   }});
  cases.push_back({"adamw_halves_step", shape + " bf16 + low 16 bits", Limit::kBytes, 28.0 * count, [w] {
                     return Calls{buffers_of(w).call([](Buffers& b) {
                                    ops::adamw_halves_step({}, b.gate, ops::Decays::kYes, b.grad, b.low_bits, b.exp_avg,
                                                           b.exp_avg_sq, b.weight);
                                  }),
                                  {}};
                   }});
  cases.push_back({"add_sum_of_squares", shape + " fp32", Limit::kBytes, 4.0 * count, [w] {
                     const auto sets = buffers_of(w);
                     Tensor sum = at::zeros({1}, at::TensorOptions(w.device).dtype(at::kDouble));
                     return Calls{sets.call([sum](Buffers& b) mutable { ops::add_sum_of_squares(b.grad, sum); }),
                                  sets.call([](Buffers& b) { at::linalg_vector_norm(b.grad); })};
                   }});
}

}  // namespace primus::diag
