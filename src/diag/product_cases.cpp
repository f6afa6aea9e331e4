// Products of the layers, dense and by expert.
#include <ATen/ops/_grouped_mm.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>

#include "diag/op_cases.hpp"
#include "ops/gemm/gemm.hpp"

namespace primus::diag {
namespace {

struct Linear {
  const char* name;
  std::int64_t tokens, inputs, outputs;

  double flops() const { return 2.0 * static_cast<double>(tokens * inputs) * static_cast<double>(outputs); }
};

std::vector<Linear> linears(const Workload& w) {
  const std::int64_t query = w.heads * (w.nope + w.rotary);
  return {{"q", w.tokens, w.hidden, query},
          {"kv_down", w.tokens, w.hidden, w.kv_rank + w.rotary},
          {"kv_up", w.tokens, w.kv_rank, w.heads * (w.nope + w.value)},
          {"o", w.tokens, w.heads * w.value, w.hidden},
          {"dense fc1", w.tokens, w.hidden, 2 * w.dense_ffn},
          {"dense fc2", w.tokens, w.dense_ffn, w.hidden},
          {"shared fc1", w.tokens, w.hidden, 2 * w.shared_ffn},
          {"shared fc2", w.tokens, w.shared_ffn, w.hidden},
          {"vocabulary", w.loss_tokens, w.hidden, w.vocabulary}};
}

struct Buffers {
  Tensor x, w, y, main_grad;
};

/// `sets` makes the buffers when the case is prepared.
template <typename Sets, typename Ours, typename Aten>
OpCase product_case(const char* op, const std::string& shape, double flops, Sets sets, Ours ours, Aten aten) {
  return {op, shape, Limit::kFlops, flops, [sets, ours, aten] {
            const auto buffers = sets();
            return Calls{buffers.call(ours), buffers.call(aten)};
          }};
}

/// The buffers of one product, and its three ops with what libtorch has for them.
void add_linear(const Workload& workload, const Linear& linear, std::vector<OpCase>& cases) {
  const auto sets = [workload, linear] {
    const double bytes =
        workload.element_bytes() * static_cast<double>(linear.tokens * (linear.inputs + linear.outputs));
    return BufferSets(num_buffer_sets(workload, bytes), [&] {
      return Buffers{workload.random({linear.tokens, linear.inputs}), workload.random({linear.outputs, linear.inputs}),
                     workload.random({linear.tokens, linear.outputs}),
                     workload.random({linear.outputs, linear.inputs}, at::kFloat)};
    });
  };
  const std::string shape = fmt::format("{} T {} I {} O {}", linear.name, linear.tokens, linear.inputs, linear.outputs);
  const auto add = [&](const char* op, auto ours, auto aten) {
    cases.push_back(product_case(op, shape, linear.flops(), sets, ours, aten));
  };
  add(
      "linear_forward", [](Buffers& b) { ops::linear_forward(b.x, b.w, b.y); },
      [](Buffers& b) { at::mm_out(b.y, b.x, b.w.t()); });
  add(
      "linear_dgrad", [](Buffers& b) { ops::linear_dgrad(b.y, b.w, b.x); },
      [](Buffers& b) { at::mm_out(b.x, b.y, b.w); });
  // libtorch has no product of bf16 that is added up in fp32: the sum takes a pass of its own.
  add(
      "linear_wgrad", [](Buffers& b) { ops::linear_wgrad(b.y, b.x, b.main_grad); },
      [](Buffers& b) { b.main_grad.add_(at::mm(b.y.t(), b.x)); });
}

/// All experts with the same number of rows.
Tensor even_offsets(const Workload& workload) {
  Tensor offsets = at::empty({workload.experts + 1}, at::kInt);
  for (std::int64_t e = 0; e <= workload.experts; ++e) {
    offsets[e] = static_cast<int>(workload.rows() * e / workload.experts);
  }
  return offsets.to(workload.device);
}

void add_grouped(const Workload& workload, const char* name, std::int64_t inputs, std::int64_t outputs,
                 std::vector<OpCase>& cases) {
  const std::int64_t rows = workload.rows();
  const auto sets = [workload, rows, inputs, outputs] {
    const double bytes = workload.element_bytes() * static_cast<double>(rows * (inputs + outputs));
    return BufferSets(std::min(num_buffer_sets(workload, bytes), 8), [&] {
      return Buffers{workload.random({rows, inputs}), workload.random({workload.experts, outputs, inputs}),
                     workload.random({rows, outputs}),
                     workload.random({workload.experts, outputs, inputs}, at::kFloat)};
    });
  };
  const std::string shape = fmt::format("{} R {} E {} I {} O {}", name, rows, workload.experts, inputs, outputs);
  const double flops = 2.0 * static_cast<double>(rows * inputs) * static_cast<double>(outputs);
  const Tensor offsets = even_offsets(workload);
  const Tensor ends = offsets.narrow(0, 1, workload.experts);
  const auto add = [&](const char* op, auto ours, auto aten) {
    cases.push_back(product_case(op, shape, flops, sets, ours, aten));
  };
  add(
      "grouped_linear_forward", [offsets](Buffers& b) { ops::grouped_linear_forward(b.x, b.w, offsets, b.y); },
      [ends](Buffers& b) { at::_grouped_mm(b.x, b.w.transpose(1, 2), ends); });
  add(
      "grouped_linear_dgrad", [offsets](Buffers& b) { ops::grouped_linear_dgrad(b.y, b.w, offsets, b.x); },
      [ends](Buffers& b) { at::_grouped_mm(b.y, b.w, ends); });
  add(
      "grouped_linear_wgrad", [offsets](Buffers& b) { ops::grouped_linear_wgrad(b.y, b.x, offsets, b.main_grad); },
      [ends](Buffers& b) { b.main_grad.add_(at::_grouped_mm(b.y.t(), b.x, ends)); });
}

}  // namespace

void add_product_cases(const Workload& workload, std::vector<OpCase>& cases) {
  for (const Linear& linear : linears(workload)) add_linear(workload, linear, cases);
  add_grouped(workload, "experts fc1", workload.hidden, 2 * workload.expert_ffn, cases);
  add_grouped(workload, "experts fc2", workload.expert_ffn, workload.hidden, cases);
}

}  // namespace primus::diag
