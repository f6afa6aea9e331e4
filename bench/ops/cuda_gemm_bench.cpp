// Speed of products and attention: the shapes of the workload's layers, FLOPs as multiplications and additions of the
// mathematical product (attention: the causal half; backward recomputes the scores: five products to forward's two).
#include <ATen/ops/_grouped_mm.h>
#include <ATen/ops/randperm.h>

#include "cuda_bench.hpp"
#include "ops/attention/attention.hpp"
#include "ops/device.hpp"
#include "ops/gemm/gemm.hpp"

namespace primus::bench {
namespace {

using ops::Write;

struct Linear {
  const char* name;
  std::int64_t tokens, inputs, outputs;
};
constexpr Linear kLinears[] = {{"q", kTokens, kHidden, 3072},
                               {"kv_down", kTokens, kHidden, 576},
                               {"kv_up", kTokens, 512, 4096},
                               {"o", kTokens, kHidden, kHidden},
                               {"dense fc1", kTokens, kHidden, 2 * 10944},
                               {"dense fc2", kTokens, 10944, kHidden},
                               {"shared fc1", kTokens, kHidden, 4 * kFfn},
                               {"shared fc2", kTokens, 2 * kFfn, kHidden},
                               {"vocabulary", 1024, kHidden, 102400}};

void bench_linear(const Linear& shape, at::ScalarType weight_type) {
  struct Buffers {
    Tensor x, w, y, main_grad;
  };
  const bool is_router = weight_type == at::kFloat;
  const auto [name, tokens, inputs, outputs] = shape;
  const auto bytes = 2.0 * static_cast<double>(tokens * (inputs + outputs) + inputs * outputs);
  auto sets = sets_of(num_buffer_sets(bytes), [&] {
    return Buffers{cuda_randn({tokens, inputs}), cuda_randn({outputs, inputs}, weight_type),
                   cuda_randn({tokens, outputs}, weight_type), cuda_randn({outputs, inputs}, at::kFloat)};
  });
  const double flops = 2.0 * static_cast<double>(tokens * inputs) * static_cast<double>(outputs);
  const std::string text = fmt::format("{} T {} I {} O {}{}", name, tokens, inputs, outputs, is_router ? " fp32" : "");
  const auto report = [&](const char* op, const auto& call) {
    report_flops(op, text, flops, kDenseTeraflops, measure_sets(sets, call));
  };
  report("linear_forward", [](Buffers& b) { ops::linear_forward(b.x, b.w, b.y); });
  report("linear_dgrad", [](Buffers& b) { ops::linear_dgrad(b.y, b.w, b.x); });
  report("linear_wgrad", [](Buffers& b) { ops::linear_wgrad(b.y, b.x, b.main_grad); });
  if (std::string_view(name) == "o") {
    report("linear_forward y +=", [](Buffers& b) { ops::linear_forward(b.x, b.w, b.y, Write::kAccumulate); });
  }
}

/// How the rows fall on the experts, cut at random or all to one.
Tensor random_offsets(std::int64_t rows) {
  const Tensor borders = std::get<0>(at::randperm(rows, at::kInt).narrow(0, 0, kExperts + 1).sort());
  borders[0] = 0;
  borders[kExperts] = static_cast<int>(rows);
  return borders.to(at::kCUDA);
}
Tensor even_offsets(std::int64_t rows) {
  Tensor borders = at::empty({kExperts + 1}, at::kInt);
  for (std::int64_t e = 0; e <= kExperts; ++e) borders[e] = static_cast<int>(rows * e / kExperts);
  return borders.to(at::kCUDA);
}
Tensor one_offset(std::int64_t rows) {
  Tensor borders = at::full({kExperts + 1}, static_cast<int>(rows), at::kInt);
  borders[0] = 0;
  return borders.to(at::kCUDA);
}

struct GroupedBuffers {
  Tensor x, w, y, main_grad;
};

/// ATen's own: outputs that it allocates; the weight gradient in bf16, added to the main gradient by a kernel.
void bench_aten(std::vector<GroupedBuffers>& sets, const Tensor& offsets, const std::string& text, double flops) {
  const Tensor ends = offsets.narrow(0, 1, kExperts);
  const auto report = [&](const char* op, const auto& call) {
    report_flops(op, text, flops, kGroupedTeraflops, measure_sets(sets, call));
  };
  report("_grouped_mm forward", [&](GroupedBuffers& b) { at::_grouped_mm(b.x, b.w.transpose(1, 2), ends); });
  report("_grouped_mm dgrad", [&](GroupedBuffers& b) { at::_grouped_mm(b.y, b.w, ends); });
  // Its groups must be multiples of 8 rows.
  report("_grouped_mm wgrad", [&](GroupedBuffers& b) { b.main_grad.add_(at::_grouped_mm(b.y.t(), b.x, ends)); });
}

void bench_experts(std::int64_t inputs, std::int64_t outputs) {
  const std::int64_t rows = kTokens * kTopK;
  auto sets = sets_of(2, [&] {
    return GroupedBuffers{cuda_randn({rows, inputs}), cuda_randn({kExperts, outputs, inputs}),
                          cuda_randn({rows, outputs}), cuda_randn({kExperts, outputs, inputs}, at::kFloat)};
  });
  const double flops = 2.0 * static_cast<double>(rows * inputs) * static_cast<double>(outputs);
  const auto run = [&](const char* name, const Tensor& offsets) {
    const std::string text = fmt::format("R {} I {} O {} {}", rows, inputs, outputs, name);
    const auto report = [&](const char* op, const auto& call) {
      report_flops(op, text, flops, kGroupedTeraflops, measure_sets(sets, call));
    };
    report("grouped_forward", [&](GroupedBuffers& b) { ops::grouped_linear_forward(b.x, b.w, offsets, b.y); });
    report("grouped_dgrad", [&](GroupedBuffers& b) { ops::grouped_linear_dgrad(b.y, b.w, offsets, b.x); });
    report("grouped_wgrad", [&](GroupedBuffers& b) { ops::grouped_linear_wgrad(b.y, b.x, offsets, b.main_grad); });
  };
  run("even", even_offsets(rows));
  bench_aten(sets, even_offsets(rows), fmt::format("R {} I {} O {} even", rows, inputs, outputs), flops);
  run("random", random_offsets(rows));
  run("one expert", one_offset(rows));
}

void bench_heads(std::int64_t query_size, std::int64_t value_size, std::int64_t heads, std::int64_t groups) {
  constexpr std::int64_t kBatch = 4;
  constexpr std::int64_t kSequence = kTokens / kBatch;
  struct Buffers {
    Tensor q, k, v, context, lse, dq, dk, dv, dcontext;
  };
  auto sets = sets_of(2, [&] {
    const auto make = [&](std::int64_t count, std::int64_t size) {
      return cuda_randn({kBatch, kSequence, count, size});
    };
    return Buffers{make(heads, query_size),
                   make(groups, query_size),
                   make(groups, value_size),
                   make(heads, value_size),
                   cuda_randn({kBatch, heads, kSequence}, at::kFloat),
                   make(heads, query_size),
                   make(groups, query_size),
                   make(groups, value_size),
                   make(heads, value_size)};
  });
  const double scale = 1.0 / std::sqrt(static_cast<double>(query_size));
  // Multiplications and additions of one product, for each element of a head, over the causal half.
  const double product = 1.0 * kBatch * kSequence * kSequence * static_cast<double>(heads);
  const double forward = product * static_cast<double>(query_size + value_size);
  const double backward = product * static_cast<double>(3 * query_size + 2 * value_size);
  const std::string text =
      fmt::format("B {} S {} A {}/{} head {}/{}", kBatch, kSequence, heads, groups, query_size, value_size);
  report_flops("attention_forward", text, forward, kAttentionForwardTeraflops, measure_sets(sets, [&](Buffers& b) {
                 ops::attention_forward(b.q, b.k, b.v, {.scale = scale}, b.context, b.lse);
               }));
  for (const auto& [name, determinism] : {std::pair{"attention_backward", ops::Determinism::kAnyOrder},
                                          std::pair{"attention_backward same bits", ops::Determinism::kSameBits}}) {
    ops::set_determinism(at::kCUDA, determinism);
    report_flops(name, text, backward, kAttentionBackwardTeraflops, measure_sets(sets, [&](Buffers& b) {
                   ops::attention_backward(b.dcontext, b.q, b.k, b.v, b.context, b.lse, {.scale = scale}, b.dq, b.dk,
                                           b.dv);
                 }));
  }
  ops::set_determinism(at::kCUDA, ops::Determinism::kAnyOrder);
}

}  // namespace

void bench_gemm() {
  for (const Linear& shape : kLinears) bench_linear(shape, at::kBFloat16);
  bench_linear({"router", kTokens, kHidden, kExperts}, at::kFloat);
}

void bench_grouped_gemm() {
  bench_experts(kHidden, 2 * kFfn);
  bench_experts(kFfn, kHidden);
}

void bench_attention() {
  bench_heads(192, 128, 16, 16);
  bench_heads(128, 128, 16, 16);
  bench_heads(128, 128, 32, 8);
}

}  // namespace primus::bench
