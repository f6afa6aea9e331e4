// Position, loss, embedding and optimizer on the workload's shapes.
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>

#include <set>

#include "cuda_bench.hpp"
#include "ops/adamw/adamw.hpp"
#include "ops/cross_entropy/cross_entropy.hpp"
#include "ops/cuda_ops.hpp"
#include "ops/embedding/embedding.hpp"
#include "ops/rope/rope.hpp"
#include "ops/update/update.hpp"

namespace primus::bench {
namespace {

constexpr std::int64_t kSequence = 4096;
constexpr std::int64_t kHeads = 16;
constexpr std::int64_t kNope = 128;
constexpr std::int64_t kRotary = 64;
constexpr std::int64_t kValue = 128;

Tensor random_labels(std::int64_t tokens, std::int64_t vocabulary) {
  return at::randint(vocabulary, {tokens}, at::TensorOptions(at::kCUDA).dtype(at::kLong));
}

/// About as often as words are: the id's logarithm is uniform.
Tensor zipf_ids() {
  return at::rand({kTokens}, at::TensorOptions(at::kCUDA).dtype(at::kFloat))
      .mul(std::log(static_cast<double>(kVocabulary)))
      .exp()
      .sub(1.0)
      .clamp(0, kVocabulary - 1)
      .to(at::kLong);
}

std::int64_t count_distinct(const Tensor& ids_T) {
  const Tensor ids = ids_T.cpu();
  const auto* id = ids.data_ptr<std::int64_t>();
  return static_cast<std::int64_t>(std::set<std::int64_t>(id, id + ids.numel()).size());
}

void bench_loss_of(std::int64_t tokens, std::int64_t vocabulary, at::ScalarType dtype) {
  struct Buffers {
    Tensor logits, label, grad, loss;
  };
  const double pass = static_cast<double>(tokens * vocabulary) * (dtype == at::kFloat ? 4.0 : 2.0);
  auto sets = sets_of(num_buffer_sets(2 * pass), [&] {
    return Buffers{cuda_randn({tokens, vocabulary}, dtype), random_labels(tokens, vocabulary),
                   cuda_randn({tokens}, at::kFloat), cuda_randn({tokens}, at::kFloat)};
  });
  const std::string shape = fmt::format("T {} V {} {}", tokens, vocabulary, dtype == at::kFloat ? "fp32" : "bf16");
  report_bytes("cross_entropy", shape, pass,
               measure_sets(sets, [](Buffers& b) { ops::cross_entropy_forward(b.logits, b.label, b.loss); }));
  report_bytes("cross_entropy + grad", shape, 2 * pass, measure_sets(sets, [](Buffers& b) {
                 ops::cross_entropy_forward_backward(b.logits, b.label, b.grad, b.loss);
               }));
}

/// Throws where the table has no matrix products.
void bench_linear_loss() {
  const Tensor x = cuda_randn({kTokens, kHidden});
  const Tensor w = cuda_randn({kVocabulary, kHidden}).mul(0.02);
  const Tensor label = random_labels(kTokens, kVocabulary);
  const Tensor grad = cuda_randn({kTokens}, at::kFloat).mul(1e-4);
  Tensor loss = cuda_randn({kTokens}, at::kFloat);
  Tensor dx = cuda_randn({kTokens, kHidden});
  Tensor main_grad = at::zeros({kVocabulary, kHidden}, loss.options());
  Tensor product = cuda_randn({128, 128});
  ops::cuda_ops().linear_forward(product.clone(), product.clone(), product, ops::Write::kOverwrite);
  for (const std::int64_t chunk : {1280, 2048, 4096}) {
    const CudaTiming timing = measure_cuda(
        [&](int) { ops::linear_cross_entropy(x, w, label, grad, chunk, loss, dx, main_grad); }, /*repetitions=*/5,
        /*calls=*/2);
    const double flops = 6.0 * kTokens * kHidden * kVocabulary;
    fmt::print("linear_cross_entropy T {} H {} V {} chunk {}: {:.2f} ± {:.2f} ms, {:.0f} TFLOP/s, host {:.0f} µs\n",
               kTokens, kHidden, kVocabulary, chunk, 1e-3 * timing.median_us, 1e-3 * timing.deviation_us,
               1e-6 * flops / timing.median_us, timing.host_us);
  }
}

}  // namespace

void bench_rope() {
  struct Buffers {
    Tensor q, kv, k_pe, k, v;
  };
  const Tensor cos = cuda_randn({kSequence, kRotary / 2}, at::kFloat);
  const Tensor sin = cuda_randn({kSequence, kRotary / 2}, at::kFloat);
  auto sets = sets_of(2, [] {
    return Buffers{cuda_randn({kTokens, kHeads, kNope + kRotary}), cuda_randn({kTokens, kHeads, kNope + kValue}),
                   cuda_randn({kTokens, kRotary}), cuda_randn({kTokens, kHeads, kNope + kRotary}),
                   cuda_randn({kTokens, kHeads, kValue})};
  });
  constexpr double rows = 2.0 * kTokens * kHeads;
  constexpr double shared = 2.0 * kTokens * kRotary;
  const std::string shape = fmt::format("T {} A {} {}+{}/{} bf16", kTokens, kHeads, kNope, kRotary, kValue);
  for (const ops::RopeLayout layout : {ops::RopeLayout::kHalves, ops::RopeLayout::kInterleaved}) {
    const std::string kind = layout == ops::RopeLayout::kHalves ? " halves" : " pairs";
    report_bytes("mla_assemble_forward", shape + kind, rows * (2 * kRotary + 2 * (kNope + kValue) + kRotary) + shared,
                 measure_sets(sets, [&](Buffers& b) {
                   ops::mla_assemble_forward(b.kv, b.k_pe, cos, sin, layout, b.q, b.k, b.v);
                 }));
    report_bytes("mla_assemble_backward", shape + kind, rows * (2 * kRotary + 2 * (kNope + kValue) + kRotary) + shared,
                 measure_sets(sets, [&](Buffers& b) {
                   ops::mla_assemble_backward(b.k, b.v, cos, sin, layout, b.q, b.kv, b.k_pe);
                 }));
    report_bytes("rope_apply", fmt::format("T {} A {} D {} of {}", kTokens, kHeads, kRotary, kNope + kRotary) + kind,
                 rows * 2 * kRotary, measure_sets(sets, [&](Buffers& b) {
                   Tensor rotary = b.q.narrow(2, kNope, kRotary);
                   ops::rope_apply(cos, sin, layout, ops::RopeDirection::kForward, rotary);
                 }));
  }
}

void bench_cross_entropy() {
  bench_loss_of(4096, kVocabulary, at::kBFloat16);
  bench_loss_of(1280, kVocabulary, at::kBFloat16);
  bench_loss_of(4096, 151936, at::kBFloat16);
  bench_loss_of(2048, kVocabulary, at::kFloat);
  try {
    bench_linear_loss();
  } catch (const InternalError& error) {
    fmt::print("linear_cross_entropy: {}\n", error.what());
  }
}

void bench_embedding() {
  const Tensor w = cuda_randn({kVocabulary, kHidden});
  Tensor grad = at::zeros({kVocabulary, kHidden}, at::TensorOptions(at::kCUDA).dtype(at::kFloat));
  auto sets = sets_of(4, [] { return cuda_randn({kTokens, kHidden}); });
  constexpr double pass = 2.0 * kTokens * kHidden;
  const Tensor one = at::full({kTokens}, 7, at::TensorOptions(at::kCUDA).dtype(at::kLong));
  const std::array<std::pair<const char*, Tensor>, 3> texts = {
      {{"uniform", random_labels(kTokens, kVocabulary)}, {"zipf", zipf_ids()}, {"one id", one}}};
  for (const auto& [name, ids] : texts) {
    const std::int64_t distinct = count_distinct(ids);
    const std::string shape = fmt::format("T {} H {} {} ({})", kTokens, kHidden, name, distinct);
    const double row = static_cast<double>(distinct * kHidden);
    report_bytes("embedding_forward", shape, pass + std::min(pass, 2.0 * row),
                 measure_sets(sets, [&](Tensor& x) { ops::embedding_forward(ids, w, x); }));
    report_bytes("embedding_backward", shape, pass + 8.0 * row,
                 measure_sets(sets, [&](Tensor& x) { ops::embedding_backward(ids, x, grad); }));
  }
}

void bench_adamw() {
  constexpr std::int64_t n = std::int64_t{256} << 20;
  const Tensor grad = cuda_randn({n}, at::kFloat);
  Tensor master = cuda_randn({n}, at::kFloat);
  Tensor m = cuda_randn({n}, at::kFloat);
  Tensor v = cuda_randn({n}, at::kFloat).abs();
  Tensor weight = master.to(at::kBFloat16);
  ops::UpdateGate gate = ops::make_update_gate(at::kCUDA);
  gate.rates_2.fill_(1e-4);
  Tensor one = at::ones({1}, gate.rates_2.options());
  const auto step = [&](Tensor& to) {
    return measure_cuda([&](int) { ops::adamw_step({}, gate, ops::Decays::kYes, grad, master, m, v, to); }, 10, 3);
  };
  ops::close_gate(one, one, 1.0, gate);
  report_bytes("adamw_step", fmt::format("{} M bf16 + fp32 master", n >> 20), 30.0 * n, step(weight));
  report_bytes("adamw_step", fmt::format("{} M fp32", n >> 20), 28.0 * n, step(master));
  Tensor low_bits = at::zeros({n}, weight.options().dtype(at::kShort));
  report_bytes(
      "adamw_halves_step", fmt::format("{} M bf16 + low 16 bits", n >> 20), 28.0 * n,
      measure_cuda([&](int) { ops::adamw_halves_step({}, gate, ops::Decays::kYes, grad, low_bits, m, v, weight); }, 10,
                   3));
  ops::UpdateState state{.master = {}, .low_bits = low_bits, .first_moment = {}, .second_moment = {}};
  for (const DType type : {DType::kFloat8, DType::kBFloat16}) {
    const ops::StateForm root = type == DType::kFloat8 ? ops::StateForm::kRoot : ops::StateForm::kPlain;
    state.first_moment = ops::make_state(weight, type);
    state.second_moment = ops::make_state(weight, type, root);
    const Tensor narrow_grad = grad.to(at::kBFloat16);
    report_bytes("stored_update", fmt::format("{} M bf16 + low 16 bits, {} moments", n >> 20, name(type)),
                 (10.0 + 4.0 * static_cast<double>(size_bytes(type))) * n,
                 measure_cuda(
                     [&](int) {
                       ops::stored_update(ops::UpdateRule::kAdamW, {}, gate, ops::Decays::kYes, narrow_grad, state,
                                          weight);
                     },
                     10, 3));
  }
  report_bytes("add_sum_of_squares", fmt::format("{} M fp32", n >> 20), 4.0 * n,
               measure_cuda([&](int) { ops::add_sum_of_squares(grad, one); }, 10, 3));
  report_bytes("add_sum_of_squares", fmt::format("{} M bf16", n >> 20), 2.0 * n,
               measure_cuda([&](int) { ops::add_sum_of_squares(weight, one); }, 10, 3));
  report_bytes("close_gate", "", 64.0, measure_cuda([&](int) { ops::close_gate(one, one, 1.0, gate); }));
}

}  // namespace primus::bench
