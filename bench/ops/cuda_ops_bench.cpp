// Speed of the CUDA ops on the shapes of the performance page's workload (16,384 tokens, hidden 2048, 64 experts,
// top-6): cuda_ops_bench [NAME]... (all of them when none is named). Bytes: each input read once, each output written
// once.
#include <ATen/ops/rand.h>
#include <ATen/ops/topk.h>

#include <cstdio>
#include <string_view>

#include "cuda_bench.hpp"
#include "ops/cuda_plugin.hpp"
#include "ops/permute/permute.hpp"
#include "ops/rms_norm/rms_norm.hpp"
#include "ops/router/router.hpp"
#include "ops/swiglu/swiglu.hpp"

namespace primus::bench {
namespace {

using ops::Write;

void bench_rms_norm() {
  struct Buffers {
    Tensor x, y, dy, dx, weight, rstd, grad;
  };
  for (const std::int64_t width : {std::int64_t{512}, kHidden}) {
    const double pass = 2.0 * static_cast<double>(kTokens * width);  // bytes of one bf16 tensor
    auto sets = sets_of(num_buffer_sets(2 * pass), [&] {
      return Buffers{cuda_randn({kTokens, width}),   cuda_randn({kTokens, width}), cuda_randn({kTokens, width}),
                     cuda_randn({kTokens, width}),   cuda_randn({width}),          cuda_randn({kTokens}, at::kFloat),
                     cuda_randn({width}, at::kFloat)};
    });
    const std::string shape = fmt::format("T {} H {} bf16", kTokens, width);
    report_bytes("rms_norm_forward", shape, 2 * pass,
                 measure_sets(sets, [](Buffers& b) { ops::rms_norm_forward(b.x, b.weight, 1e-6, b.y, b.rstd); }));
    for (const Write write : {Write::kOverwrite, Write::kAccumulate}) {
      const bool adds = write == Write::kAccumulate;
      report_bytes("rms_norm_backward", shape + (adds ? " dx +=" : ""), (adds ? 4 : 3) * pass,
                   measure_sets(sets, [&](Buffers& b) {
                     ops::rms_norm_backward(b.dy, b.x, b.weight, b.rstd, b.dx, write, b.grad);
                   }));
    }
  }
}

void bench_swiglu() {
  struct Buffers {
    Tensor h, a, da, prob, dprob;
  };
  constexpr std::int64_t rows = kTokens * kTopK;
  constexpr double pass = 2.0 * rows * kFfn;
  auto sets = sets_of(2, [] {
    return Buffers{cuda_randn({rows, 2 * kFfn}), cuda_randn({rows, kFfn}), cuda_randn({rows, kFfn}),
                   cuda_randn({rows}, at::kFloat), cuda_randn({rows}, at::kFloat)};
  });
  const std::string shape = fmt::format("R {} F {} bf16", rows, kFfn);
  report_bytes("swiglu_forward", shape, 3 * pass,
               measure_sets(sets, [](Buffers& b) { ops::swiglu_forward(b.h, b.prob, {}, b.a); }));
  report_bytes("swiglu_backward", shape + " in place", 6 * pass,
               measure_sets(sets, [](Buffers& b) { ops::swiglu_backward(b.da, b.h, b.prob, {}, b.h, b.dprob, b.a); }));
}

void bench_permute() {
  struct Buffers {
    Tensor index, offsets, row_of, slot_of, x, x_R;
  };
  constexpr std::int64_t rows = kTokens * kTopK;
  const at::TensorOptions int32 = at::TensorOptions(at::kCUDA).dtype(at::kInt);
  auto sets = sets_of(2, [&] {
    const Tensor scores = cuda_randn({kTokens, kExperts}, at::kFloat);
    Buffers b{std::get<1>(at::topk(scores, kTopK)).to(at::kInt),
              at::empty({kExperts + 1}, int32),
              at::empty({kTokens, kTopK}, int32),
              at::empty({rows}, int32),
              cuda_randn({kTokens, kHidden}),
              cuda_randn({rows, kHidden})};
    ops::permute_plan(b.index, kExperts, b.offsets, b.row_of, b.slot_of);
    return b;
  });
  const std::string shape = fmt::format("T {} K {} E {}", kTokens, kTopK, kExperts);
  report_bytes("permute_plan", shape, 3.0 * 4 * rows, measure_sets(sets, [](Buffers& b) {
                 ops::permute_plan(b.index, kExperts, b.offsets, b.row_of, b.slot_of);
               }));
  const std::string row_shape = fmt::format("T {} K {} H {} bf16", kTokens, kTopK, kHidden);
  constexpr double pass = 2.0 * kTokens * kHidden;
  report_bytes("permute_rows", row_shape, (1 + kTopK) * pass,
               measure_sets(sets, [](Buffers& b) { ops::permute_rows(b.x, b.row_of, b.x_R); }));
  for (const Write write : {Write::kOverwrite, Write::kAccumulate}) {
    const bool adds = write == Write::kAccumulate;
    report_bytes("unpermute_sum", row_shape + (adds ? " y +=" : ""), (kTopK + (adds ? 2 : 1)) * pass,
                 measure_sets(sets, [&](Buffers& b) { ops::unpermute_sum(b.x_R, b.row_of, b.x, write); }));
  }
}

void bench_router() {
  constexpr std::int64_t kSequences = 4;
  struct Buffers {
    Tensor logits;
    ops::RouterOutput output;
    Tensor dlogits;
  };
  const at::TensorOptions int32 = at::TensorOptions(at::kCUDA).dtype(at::kInt);
  auto sets = sets_of(16, [&] {
    return Buffers{cuda_randn({kTokens, kExperts}, at::kFloat),
                   {.index_TK = at::empty({kTokens, kTopK}, int32),
                    .prob_TK = cuda_randn({kTokens, kTopK}, at::kFloat),
                    .num_tokens_E = at::empty({kExperts}, int32),
                    .num_balance_E = {},
                    .loss_4 = cuda_randn({ops::RouterLoss::kNum}, at::kFloat),
                    .slope_GE = cuda_randn({kSequences, kExperts}, at::kFloat),
                    .quantile_E = {}},
                   cuda_randn({kTokens, kExperts}, at::kFloat)};
  });
  constexpr double logits = 4.0 * kTokens * kExperts;
  constexpr double choices = 4.0 * kTokens * kTopK;
  const ops::RouterOptions plain{.top_k = kTopK, .num_sequences = kSequences};
  ops::RouterOptions aux = plain;
  aux.aux_loss = 0.01;
  ops::RouterOptions seq_aux = plain;
  seq_aux.seq_aux_loss = 0.01;
  for (const auto& [name, options] : {std::pair{"", plain}, {" aux", aux}, {" seq_aux", seq_aux}}) {
    // The slopes of one group are the first row of the buffer.
    const auto output_of = [&, rows = options.num_slopes()](Buffers& b) {
      ops::RouterOutput output = b.output;
      output.slope_GE = b.output.slope_GE.narrow(0, 0, rows);
      return output;
    };
    const std::string shape = fmt::format("T {} E {} K {}{}", kTokens, kExperts, kTopK, name);
    report_bytes("router_forward", shape, logits + 2 * choices, measure_sets(sets, [&, options = options](Buffers& b) {
                   ops::RouterOutput output = output_of(b);
                   ops::router_forward({.logits_TE = b.logits}, options, output);
                 }));
    report_bytes(
        "router_backward", shape, 2 * logits + 3 * choices, measure_sets(sets, [&, options = options](Buffers& b) {
          ops::router_backward({.logits_TE = b.logits}, output_of(b), b.output.prob_TK, options, 1.0, b.dlogits);
        }));
  }
}

constexpr std::array<Benchmark, 12> kBenchmarks = {{{"rms_norm", bench_rms_norm},
                                                    {"swiglu", bench_swiglu},
                                                    {"permute", bench_permute},
                                                    {"router", bench_router},
                                                    {"gemm", bench_gemm},
                                                    {"grouped_gemm", bench_grouped_gemm},
                                                    {"attention", bench_attention},
                                                    {"rope", bench_rope},
                                                    {"cross_entropy", bench_cross_entropy},
                                                    {"embedding", bench_embedding},
                                                    {"adamw", bench_adamw},
                                                    {"moe_layer", bench_moe_layer}}};

}  // namespace
}  // namespace primus::bench

int main(int argc, char** argv) {
  try {
    return primus::bench::run_benchmarks("cuda_ops_bench", primus::bench::kBenchmarks, argc, argv,
                                         primus::ops::load_cuda_plugin);
  } catch (const primus::UserError& error) {
    fmt::print(stderr, "cuda_ops_bench: {}\n", error.what());
    return 1;
  }
}
