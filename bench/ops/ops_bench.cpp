// Speed of the CPU ops: ops_bench [gemm|grouped|rms_norm|rope|attention|indexer]... (all of them when none is named).
#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>

#include <cstdio>
#include <string_view>

#include "model/host_cuts.hpp"
#include "ops/attention/attention.hpp"
#include "ops/delta_rule/delta_rule.hpp"
#include "ops/gemm/gemm.hpp"
#include "ops/hyper_connection/hyper_connection.hpp"
#include "ops/indexer/indexer.hpp"
#include "ops/residual_attention/residual_attention.hpp"
#include "ops/rms_norm/rms_norm.hpp"
#include "ops/rope/rope.hpp"
#include "ops/short_conv/short_conv.hpp"
#include "timing.hpp"

namespace primus::bench {
namespace {

using at::Tensor;
using ops::Write;

struct Linear {
  std::int64_t inputs, outputs;
};

void bench_gemm() {
  constexpr std::int64_t tokens = 2048;
  for (const Linear& size : {Linear{256, 384}, Linear{256, 96}, Linear{64, 512}, Linear{256, 256}, Linear{256, 1408},
                             Linear{704, 256}, Linear{256, 4096}}) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      const Tensor x = at::randn({tokens, size.inputs}, dtype);
      const Tensor w = at::randn({size.outputs, size.inputs}, dtype);
      const Tensor dy = at::randn({tokens, size.outputs}, dtype);
      Tensor y = at::empty_like(dy);
      Tensor dx = at::empty_like(x);
      Tensor grad = at::zeros({size.outputs, size.inputs}, at::kFloat);
      const double flops = 2.0 * static_cast<double>(tokens * size.inputs * size.outputs);
      const std::string shape =
          fmt::format("T {} {} -> {} {}", tokens, size.inputs, size.outputs, c10::toString(dtype));
      if (dtype == at::kFloat) {
        report("at::mm", shape, flops, "FLOP", measure([&] { at::mm_out(y, x, w.t()); }));
      }
      report("linear_forward", shape, flops, "FLOP", measure([&] { ops::linear_forward(x, w, y); }));
      report("linear_dgrad", shape, flops, "FLOP", measure([&] { ops::linear_dgrad(dy, w, dx); }));
      report("linear_wgrad", shape, flops, "FLOP", measure([&] { ops::linear_wgrad(dy, x, grad); }));
    }
  }
}

// Rows of each of 16 experts: even, as routers leave them, and all in one.
const std::vector<std::pair<const char*, std::vector<int>>>& groupings() {
  static const std::vector<std::pair<const char*, std::vector<int>>> kGroupings = {
      {"even", std::vector<int>(16, 512)},
      {"uneven", {1200, 0, 37, 900, 512, 480, 1, 610, 700, 333, 820, 299, 410, 1024, 666, 200}},
      {"one", {0, 0, 0, 0, 0, 8192, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}}};
  return kGroupings;
}

void bench_grouped() {
  constexpr std::int64_t rows = 8192;
  constexpr std::int64_t experts = 16;
  for (const Linear& size : {Linear{256, 256}, Linear{128, 256}}) {
    for (const auto& [name, counts] : groupings()) {
      Tensor offsets = at::zeros({experts + 1}, at::kInt);
      for (std::size_t e = 0; e < counts.size(); ++e) {
        offsets.data_ptr<int>()[e + 1] = offsets.data_ptr<int>()[e] + counts[e];
      }
      for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
        const Tensor x = at::randn({rows, size.inputs}, dtype);
        const Tensor w = at::randn({experts, size.outputs, size.inputs}, dtype);
        const Tensor dy = at::randn({rows, size.outputs}, dtype);
        Tensor y = at::empty_like(dy);
        Tensor dx = at::empty_like(x);
        Tensor grad = at::zeros({experts, size.outputs, size.inputs}, at::kFloat);
        const double flops = 2.0 * static_cast<double>(offsets.data_ptr<int>()[experts]) *
                             static_cast<double>(size.inputs * size.outputs);
        const std::string shape =
            fmt::format("E 16 {} {} -> {} {}", name, size.inputs, size.outputs, c10::toString(dtype));
        report("grouped_linear_forward", shape, flops, "FLOP",
               measure([&] { ops::grouped_linear_forward(x, w, offsets, y); }));
        report("grouped_linear_dgrad", shape, flops, "FLOP",
               measure([&] { ops::grouped_linear_dgrad(dy, w, offsets, dx); }));
        report("grouped_linear_wgrad", shape, flops, "FLOP",
               measure([&] { ops::grouped_linear_wgrad(dy, x, offsets, grad); }));
      }
    }
  }
}

void bench_rms_norm() {
  for (const std::int64_t width : {64, 256, 2048}) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      constexpr std::int64_t rows = 2048;
      const Tensor x = at::randn({rows, width}, dtype);
      const Tensor weight = at::ones({width}, dtype);
      const Tensor dy = at::randn({rows, width}, dtype);
      Tensor y = at::empty_like(x);
      Tensor dx = at::empty_like(x);
      Tensor rstd = at::empty({rows}, at::kFloat);
      Tensor grad = at::zeros({width}, at::kFloat);
      const double bytes = static_cast<double>(rows * width) * static_cast<double>(x.element_size());
      const std::string shape = fmt::format("T {} H {} {}", rows, width, c10::toString(dtype));
      report("rms_norm_forward", shape, 2 * bytes, "B",
             measure([&] { ops::rms_norm_forward(x, weight, 1e-6, y, rstd); }));
      report("rms_norm_backward", shape, 3 * bytes, "B",
             measure([&] { ops::rms_norm_backward(dy, x, weight, rstd, dx, Write::kOverwrite, grad); }));
    }
  }
}

void bench_rope() {
  constexpr std::int64_t tokens = 2048;
  constexpr std::int64_t sequence = 512;
  constexpr std::int64_t heads = 4;
  for (const ops::RopeLayout layout : {ops::RopeLayout::kHalves, ops::RopeLayout::kInterleaved}) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      const Tensor cos = at::ones({sequence, 16}, at::kFloat);
      const Tensor sin = at::zeros({sequence, 16}, at::kFloat);
      Tensor kv = at::randn({tokens, heads, 128}, dtype);
      Tensor k_pe = at::randn({tokens, 32}, dtype);
      Tensor q = at::randn({tokens, heads, 96}, dtype);
      Tensor k = at::randn({tokens, heads, 96}, dtype);
      Tensor v = at::randn({tokens, heads, 64}, dtype);
      // kv, k and v once each, the rotated part of q twice.
      const double bytes =
          static_cast<double>(tokens * heads * (128 + 96 + 64 + 64)) * static_cast<double>(q.element_size());
      const std::string shape = fmt::format("T {} A 4 64+32/64 {} {}", tokens, c10::toString(dtype),
                                            layout == ops::RopeLayout::kHalves ? "halves" : "pairs");
      report("mla_assemble_forward", shape, bytes, "B",
             measure([&] { ops::mla_assemble_forward(kv, k_pe, cos, sin, layout, q, k, v); }));
      report("mla_assemble_backward", shape, bytes, "B",
             measure([&] { ops::mla_assemble_backward(k, v, cos, sin, layout, q, kv, k_pe); }));
      report("rope_apply", shape, 2.0 / 3.0 * static_cast<double>(q.nbytes()), "B",
             measure([&] { ops::rope_apply(cos, sin, layout, ops::RopeDirection::kForward, q); }));
    }
  }
}

struct Attention {
  std::int64_t batch, sequence, heads, groups, query_size, value_size;
  std::int64_t window = 0;
};

// FLOPs of the scores that are seen, S²/2 or W·(S − W/2): forward 2 products, backward 5.
void bench_attention() {
  for (const Attention& size :
       {Attention{4, 512, 4, 4, 96, 64}, Attention{1, 512, 1, 1, 96, 64}, Attention{1, 2048, 4, 4, 96, 64},
        Attention{1, 4096, 4, 4, 96, 64}, Attention{1, 2048, 8, 2, 128, 128}, Attention{1, 512, 16, 16, 192, 128},
        Attention{1, 2048, 4, 4, 192, 128}, Attention{1, 4096, 2, 2, 192, 128}, Attention{1, 4096, 8, 1, 64, 64},
        Attention{1, 4096, 8, 1, 64, 64, 128}}) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      const auto heads = [&](std::int64_t count, std::int64_t width) {
        return at::randn({size.batch, size.sequence, count, width}, dtype);
      };
      const Tensor q = heads(size.heads, size.query_size);
      const Tensor k = heads(size.groups, size.query_size);
      const Tensor v = heads(size.groups, size.value_size);
      const Tensor dcontext = heads(size.heads, size.value_size);
      Tensor context = at::empty_like(dcontext);
      Tensor lse = at::empty({size.batch, size.heads, size.sequence}, at::kFloat);
      Tensor dq = at::empty_like(q);
      Tensor dk = at::empty_like(k);
      Tensor dv = at::empty_like(v);
      const ops::AttentionOptions options{.scale = 1.0 / std::sqrt(static_cast<double>(size.query_size)),
                                          .window = size.window};
      const std::int64_t keys = size.window > 0 ? size.window : size.sequence;
      const double scores = static_cast<double>(size.batch * size.heads * keys) *
                            (static_cast<double>(size.sequence) - static_cast<double>(keys) / 2.0);
      const std::string window = size.window > 0 ? fmt::format(" window {}", size.window) : "";
      const std::string shape =
          fmt::format("B {} S {} A {} G {} {}/{}{} {}", size.batch, size.sequence, size.heads, size.groups,
                      size.query_size, size.value_size, window, c10::toString(dtype));
      report("attention_forward", shape, 2.0 * scores * static_cast<double>(size.query_size + size.value_size), "FLOP",
             measure([&] { ops::attention_forward(q, k, v, options, context, lse); }));
      report("attention_backward", shape, 2.0 * scores * static_cast<double>(3 * size.query_size + 2 * size.value_size),
             "FLOP", measure([&] { ops::attention_backward(dcontext, q, k, v, context, lse, options, dq, dk, dv); }));
    }
  }
}

/// What stands around linear attention's rule: bytes that must move.
void bench_short_conv(const Tensor& x, const ops::ShortConv& conv, const std::string& shape) {
  Tensor y = at::empty_like(x);
  Tensor dx = at::empty_like(x);
  ops::ShortConvGradient gradient{at::zeros(conv.weight_C1K.sizes(), at::kFloat), {}};
  const auto bytes = static_cast<double>(x.nbytes());
  report("silu_conv_forward", shape, 2 * bytes, "B", measure([&] { ops::silu_conv_forward(x, conv, y); }));
  report("silu_conv_backward", shape, 3 * bytes, "B",
         measure([&] { ops::silu_conv_backward(y, x, conv, dx, gradient); }));
}

// FLOPs of the delta rule in chunks of n, a token and value head: the state read twice and written once (6·K·V), the
// chunk's own tokens (2·n·K + 2·n·V). Backward does them again, and twice as many.
void bench_delta_rule() {
  constexpr std::int64_t kTokens = 2048;
  constexpr std::int64_t kSize = 128;
  for (const auto& [key_heads, value_heads] : {std::pair{2, 4}, {4, 4}}) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      const Tensor q = at::randn({kTokens, key_heads, kSize}, dtype);
      const Tensor v = at::randn({kTokens, value_heads, kSize}, dtype);
      const bool is_by_channel = key_heads == value_heads;
      const Tensor decay = is_by_channel ? at::full({kTokens, value_heads, kSize}, -0.1, at::kFloat)
                                         : at::full({kTokens, value_heads}, -0.1, at::kFloat);
      const ops::DeltaRule rule{.q_TGK = q,
                                .k_TGK = at::randn({kTokens, key_heads, kSize}, dtype),
                                .v_TAV = v,
                                .log_decay = decay,
                                .beta_TA = at::full({kTokens, value_heads}, 0.5, at::kFloat),
                                .seq_length = kTokens,
                                .first_key_BS = {}};
      Tensor y = at::empty_like(v);
      ops::DeltaRuleGradient gradient{at::empty_like(q), at::empty_like(q), at::empty_like(v), at::empty_like(decay),
                                      at::empty_like(rule.beta_TA)};
      const auto size = static_cast<double>(kSize);
      const double flops = static_cast<double>(kTokens * value_heads) *
                           (6 * size * size + 4 * static_cast<double>(rule.chunk_size) * size);
      const std::string shape = fmt::format("T {} G {} A {} {}/{} {} {}", kTokens, key_heads, value_heads, kSize, kSize,
                                            is_by_channel ? "channel" : "head", c10::toString(dtype));
      report("delta_rule_forward", shape, flops, "FLOP", measure([&] { ops::delta_rule_forward(rule, y); }));
      report("delta_rule_backward", shape, 3 * flops, "FLOP",
             measure([&] { ops::delta_rule_backward(y, rule, gradient); }));
      const ops::ShortConv conv{.weight_C1K = at::randn({value_heads * kSize, 1, 4}, dtype),
                                .bias_C = {},
                                .seq_length = kTokens,
                                .first_key_BS = {}};
      bench_short_conv(v.flatten(1), conv,
                       fmt::format("T {} C {} {}", kTokens, value_heads * kSize, c10::toString(dtype)));
    }
  }
}

// FLOPs of the products of the indexer's heads with the keys in sight; the loss has them four times, and attention's
// scores besides.
void bench_indexer() {
  constexpr std::int64_t kSequence = 2048, kHeads = 16, kSize = 64, kAttentionHeads = 8, kQuerySize = 96;
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const auto normal = [&](std::initializer_list<std::int64_t> shape) { return at::randn(shape, dtype); };
    const ops::IndexerInput in{normal({1, kSequence, kHeads, kSize}), normal({1, kSequence, kSize}),
                               normal({1, kSequence, kHeads})};
    const Tensor q = normal({1, kSequence, kAttentionHeads, kQuerySize});
    const Tensor k = normal({1, kSequence, kAttentionHeads, kQuerySize});
    const ops::IndexerOptions options{.top_k = kSequence / 4, .scale = 0.03};
    Tensor selected = at::empty({1, kSequence, kSequence / 32}, at::kInt);
    Tensor loss = at::empty({1, kSequence}, at::kFloat);
    ops::IndexerInput gradient{at::empty_like(in.q_BSID), at::empty_like(in.k_BSD), at::empty_like(in.weight_BSI)};
    const double keys = static_cast<double>(kSequence) * static_cast<double>(kSequence) / 2.0;
    const double products = 2.0 * keys * static_cast<double>(kHeads * kSize);
    const double attention = 2.0 * keys * static_cast<double>(kAttentionHeads * kQuerySize);
    const std::string shape =
        fmt::format("S {} I {} D {} k {} {}", kSequence, kHeads, kSize, options.top_k, c10::toString(dtype));
    report("indexer_select", shape, products, "FLOP", measure([&] { ops::indexer_select(in, options, {}, selected); }));
    report("indexer_loss", shape, 4.0 * products + attention, "FLOP",
           measure([&] { ops::indexer_loss(in, options, q, k, {.scale = 0.1}, 1.0, loss, gradient); }));
  }
}

// Bytes that must move: all streams once for each of what reads or writes them, and the sublayer's tensors.
void bench_hyper_connection() {
  constexpr std::int64_t kTokens = 2048, kStreams = 4, kHidden = 512;
  constexpr std::int64_t kLogits = model::HyperCuts::num_logits(kStreams);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const Tensor x = at::randn({kTokens, kStreams * kHidden}, dtype);
    const Tensor y = at::randn({kTokens, kHidden}, dtype);
    const ops::HyperConnection hyper{.num_streams = kStreams,
                                     .weight_MC = at::randn({kLogits, kStreams * kHidden}, at::kFloat),
                                     .bias_M = at::randn({kLogits}, at::kFloat),
                                     .scale_G = at::randn({3}, at::kFloat)};
    Tensor mix = at::empty({kTokens, kLogits}, at::kFloat);
    Tensor dweight = at::empty_like(mix);
    Tensor z = at::empty_like(y);
    Tensor streams = at::empty_like(x);
    ops::HyperConnectionGradient gradient{at::zeros_like(hyper.weight_MC), at::zeros_like(hyper.bias_M),
                                          at::zeros_like(hyper.scale_G)};
    const auto all = static_cast<double>(x.nbytes());
    const auto one = static_cast<double>(y.nbytes());
    const std::string shape = fmt::format("T {} N {} H {} {}", kTokens, kStreams, kHidden, c10::toString(dtype));
    report("hyper_mix", shape, all, "B", measure([&] { ops::hyper_mix(x, hyper, mix); }));
    report("hyper_read_forward", shape, all + one, "B", measure([&] { ops::hyper_read_forward(x, mix, hyper, z); }));
    report("hyper_write_forward", shape, 2 * all + one, "B",
           measure([&] { ops::hyper_write_forward(x, y, mix, hyper, streams); }));
    report("hyper_write_backward", shape, 3 * all + 2 * one, "B",
           measure([&] { ops::hyper_write_backward(x, y, mix, hyper, streams, z, dweight); }));
    report("hyper_read_backward", shape, 3 * all + one, "B",
           measure([&] { ops::hyper_read_backward(y, x, mix, hyper, dweight, streams, gradient); }));
  }
}

// Bytes that must move: forward reads every block and writes the mean, backward reads the blocks and their gradients
// and writes the latter.
void bench_residual_attention() {
  constexpr std::int64_t kTokens = 2048, kHidden = 2048;
  for (const std::size_t num_blocks : {2U, 9U}) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      std::vector<Tensor> blocks;
      std::vector<Tensor> gradients;
      for (std::size_t n = 0; n < num_blocks; ++n) {
        blocks.push_back(at::randn({kTokens, kHidden}, dtype));
        gradients.push_back(at::zeros({kTokens, kHidden}, dtype));
      }
      const ops::ResidualAttention attention{at::ones({kHidden}, dtype), at::randn({kHidden}, dtype)};
      Tensor weights = at::empty({kTokens, static_cast<std::int64_t>(num_blocks)}, at::kFloat);
      Tensor y = at::empty_like(blocks[0]);
      Tensor norm_sum = at::zeros({kHidden}, at::kFloat);
      Tensor query_sum = at::zeros({kHidden}, at::kFloat);
      const auto bytes = static_cast<double>(y.nbytes());
      const auto count = static_cast<double>(num_blocks);
      const std::string shape = fmt::format("T {} H {} N {} {}", kTokens, kHidden, num_blocks, c10::toString(dtype));
      report("residual_attention_forward", shape, (count + 1) * bytes, "B",
             measure([&] { ops::residual_attention_forward(blocks, attention, weights, y); }));
      report("residual_attention_backward", shape, (3 * count + 1) * bytes, "B", measure([&] {
               ops::residual_attention_backward(y, blocks, attention, weights, gradients, norm_sum, query_sum);
             }));
    }
  }
}

constexpr std::array<Benchmark, 9> kBenchmarks = {{{"gemm", bench_gemm},
                                                   {"grouped", bench_grouped},
                                                   {"rms_norm", bench_rms_norm},
                                                   {"rope", bench_rope},
                                                   {"attention", bench_attention},
                                                   {"delta_rule", bench_delta_rule},
                                                   {"indexer", bench_indexer},
                                                   {"hyper_connection", bench_hyper_connection},
                                                   {"residual_attention", bench_residual_attention}}};

}  // namespace
}  // namespace primus::bench

int main(int argc, char** argv) {
  return primus::bench::run_benchmarks("ops_bench", primus::bench::kBenchmarks, argc, argv);
}
