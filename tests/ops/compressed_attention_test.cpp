#include "ops/compressed_attention/compressed_attention.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bernoulli.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/einsum.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "ops/attention/attention.hpp"
#include "ops/windows.hpp"

extern bool FLAGS_caffe2_cpu_allocator_do_junk_fill;

namespace primus {
namespace {

using at::Tensor;
using namespace primus::test;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Attention over a window with sinks, and over entries.
struct Case {
  std::int64_t batch, sequence, heads, size;
  ops::Windowing windowing;
  std::int64_t window = 0;
  Tensor is_selected_BSC = {};  // bool

  std::int64_t capacity() const { return sequence / windowing.ratio; }
};

struct Inputs {
  Tensor q, key, entry, sink;
};

Inputs random_inputs(const Case& c, at::ScalarType dtype, std::mt19937_64& generator) {
  return {random_normal({c.batch, c.sequence, c.heads, c.size}, dtype, generator),
          random_normal({c.batch, c.sequence, 1, c.size}, dtype, generator),
          random_normal({c.batch, c.capacity(), c.size}, dtype, generator),
          random_normal({c.heads}, ops::accumulator_type(dtype), generator)};
}

/// A mask [B, S, C] as words of bits.
Tensor words_of(const Tensor& mask) {
  const std::int64_t capacity = mask.size(2);
  const std::int64_t num_words = (capacity + 31) / 32;
  Tensor words = at::zeros({mask.size(0), mask.size(1), num_words}, at::kInt);
  for (std::int64_t b = 0; b < mask.size(0); ++b) {
    for (std::int64_t s = 0; s < mask.size(1); ++s) {
      auto* row = words.data_ptr<std::int32_t>() + (b * mask.size(1) + s) * num_words;
      for (std::int64_t c = 0; c < capacity; ++c) {
        if (!mask[b][s][c].item<bool>()) continue;
        row[c / 32] = static_cast<std::int32_t>(static_cast<std::uint32_t>(row[c / 32]) | 1U << (c % 32));
      }
    }
  }
  return words;
}

ops::AttentionOptions window_options(const Case& c, const Inputs& in) {
  return {.scale = 0.6, .window = c.window, .first_key_BS = c.windowing.first_key_BS, .sink_A = in.sink};
}

ops::CompressedAttentionOptions options_of(const Case& c) {
  return {.scale = 0.6,
          .windowing = c.windowing,
          .selected_BSW = c.is_selected_BSC.defined() ? words_of(c.is_selected_BSC) : Tensor()};
}

struct Result {
  Tensor context, lse;
};

Result run(const Case& c, const Inputs& in) {
  Result result{poisoned({c.batch, c.sequence, c.heads, c.size}, in.q.scalar_type()),
                poisoned({c.batch, c.heads, c.sequence}, ops::accumulator_type(in.q.scalar_type()))};
  ops::attention_forward(in.q, in.key, in.key, window_options(c, in), result.context, result.lse);
  ops::compressed_attention_forward(in.q, in.entry, options_of(c), result.context, result.lse);
  return result;
}

Inputs gradients(const Case& c, const Inputs& in, const Result& result, const Tensor& dcontext) {
  const at::ScalarType dtype = in.q.scalar_type();
  Inputs gradient{poisoned(in.q.sizes().vec(), dtype), poisoned(in.key.sizes().vec(), dtype),
                  poisoned(in.entry.sizes().vec(), dtype), at::zeros_like(in.sink)};
  Tensor dvalue = poisoned(in.key.sizes().vec(), dtype);
  const ops::AttentionOptions options = window_options(c, in);
  ops::attention_sink_backward(dcontext, result.context, result.lse, options.sink_A, gradient.sink);
  ops::attention_backward(dcontext, in.q, in.key, in.key, result.context, result.lse, options, gradient.q, gradient.key,
                          dvalue);
  gradient.key.add_(dvalue);
  ops::compressed_attention_backward(dcontext, in.q, in.entry, result.context, result.lse, options_of(c), gradient.q,
                                     gradient.entry);
  return gradient;
}

/// One softmax over all tokens, all entries and the sink, in fp64.
Result reference(const Case& c, const Tensor& q, const Tensor& key, const Tensor& entry, const Tensor& sink) {
  Tensor hidden = at::ones({c.batch, c.sequence, c.sequence}, at::kBool);
  for (std::int64_t b = 0; b < c.batch; ++b) {
    for (std::int64_t s = 0; s < c.sequence; ++s) {
      std::int64_t first = c.window == 0 ? 0 : std::max<std::int64_t>(0, s - c.window + 1);
      if (c.windowing.first_key_BS.defined()) {
        first = std::max(first, c.windowing.first_key_BS[b][s].item<std::int64_t>());
      }
      hidden[b][s].narrow(0, first, s - first + 1).fill_(false);
    }
  }
  Tensor hidden_entry = hidden_entries(c.windowing, c.batch, c.sequence);
  if (c.is_selected_BSC.defined()) hidden_entry = hidden_entry.logical_or(c.is_selected_BSC.logical_not());
  const Tensor keys = at::cat({key.squeeze(2), entry}, 1);
  const Tensor logits = at::einsum("bsad,btd->bast", {q, keys})
                            .mul(0.6)
                            .masked_fill(at::cat({hidden, hidden_entry}, 2).unsqueeze(1), -kInfinity);
  const Tensor with_sink = at::cat({logits, sink.view({1, -1, 1, 1}).expand({c.batch, c.heads, c.sequence, 1})}, 3);
  const Tensor weights = with_sink.softmax(-1).narrow(3, 0, keys.size(1));
  return {at::einsum("bast,btd->bsad", {weights, keys}), with_sink.logsumexp(-1)};
}

std::vector<Case> cases(std::mt19937_64& generator) {
  std::vector<Case> all;
  for (const auto& [batch, sequence, heads, size, ratio] :
       std::vector<std::array<std::int64_t, 5>>{{1, 1, 1, 1, 1},
                                                {2, 3, 3, 4, 4},
                                                {2, 4, 2, 5, 4},
                                                {1, 37, 4, 16, 4},
                                                {3, 50, 3, 9, 7},
                                                {1, 150, 2, 33, 2},
                                                {2, 211, 2, 24, 1}}) {
    for (int variant = 0; variant < 4; ++variant) {
      Case c{batch, sequence, heads, size, {ratio}, 1 + sequence / 5};
      if (variant % 2 == 1) c.windowing.first_key_BS = random_documents(batch, sequence, 6 * ratio, generator);
      if (variant >= 2) {
        c.is_selected_BSC = random_normal({batch, sequence, sequence / ratio}, at::kDouble, generator).gt(0.3);
      }
      all.push_back(c);
    }
  }
  return all;
}

class CompressedAttentionTest : public ::testing::Test {
 protected:
  void SetUp() override { FLAGS_caffe2_cpu_allocator_do_junk_fill = true; }
  void TearDown() override { FLAGS_caffe2_cpu_allocator_do_junk_fill = false; }
};

TEST_F(CompressedAttentionTest, OneSoftmaxSpansWindowEntriesAndSink) {
  std::mt19937_64 generator(1);
  for (const Case& c : cases(generator)) {
    for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
      SCOPED_TRACE(fmt::format("S {} R {} documents {} selected {} {}", c.sequence, c.windowing.ratio,
                               c.windowing.first_key_BS.defined(), c.is_selected_BSC.defined(), c10::toString(dtype)));
      const Inputs in = random_inputs(c, dtype, generator);
      const Tensor q = leaf64(in.q);
      const Tensor key = leaf64(in.key);
      const Tensor entry = leaf64(in.entry);
      const Tensor sink = leaf64(in.sink);
      const Result expected = reference(c, q, key, entry, sink);
      const Result result = run(c, in);
      EXPECT_LE(relative_error(result.context, expected.context), tolerance(dtype));
      EXPECT_LE(relative_error(result.lse, expected.lse), tolerance(dtype));
      const Tensor dcontext = random_normal(in.q.sizes().vec(), dtype, generator);
      (expected.context * dcontext.to(at::kDouble)).sum().backward();
      const Inputs gradient = gradients(c, in, result, dcontext);
      // bf16 rounds context and dq twice.
      const double bound = dtype == at::kBFloat16 ? 2e-2 : tolerance(dtype);
      EXPECT_LE(relative_error(gradient.q, q.grad()), bound);
      EXPECT_LE(relative_error(gradient.key, key.grad()), bound);
      EXPECT_LE(relative_error(gradient.entry, entry.grad()), bound);
      EXPECT_LE(gradient.sink.to(at::kDouble).sub(sink.grad()).norm().item<double>(),
                bound * std::max(sink.grad().norm().item<double>(), 1.0));
    }
  }
}

TEST_F(CompressedAttentionTest, GradientsMatchFiniteDifferences) {
  std::mt19937_64 generator(2);
  Case c{1, 9, 2, 3, {2}, 3};
  c.is_selected_BSC = random_normal({1, 9, 4}, at::kDouble, generator).gt(-0.5);
  const Inputs in = random_inputs(c, at::kDouble, generator);
  const Tensor dcontext = random_normal(in.q.sizes().vec(), at::kDouble, generator);
  const Inputs gradient = gradients(c, in, run(c, in), dcontext);
  const auto loss = [&](const Inputs& point) { return (run(c, point).context * dcontext).sum().item<double>(); };
  const auto of_query = [&](const Tensor& x) { return loss({x, in.key, in.entry, in.sink}); };
  const auto of_entry = [&](const Tensor& x) { return loss({in.q, in.key, x, in.sink}); };
  EXPECT_LE(relative_error(gradient.q, finite_difference(of_query, in.q)), 1e-7);
  EXPECT_LE(relative_error(gradient.entry, finite_difference(of_entry, in.entry)), 1e-7);
}

// Scores far apart: one of them alone carries a softmax, whichever part it is in.
TEST_F(CompressedAttentionTest, LargeScoresStayFinite) {
  std::mt19937_64 generator(3);
  const Case c{2, 40, 3, 8, {4}, 6};
  Inputs in = random_inputs(c, at::kFloat, generator);
  in.q.mul_(60.0);
  const Result expected =
      reference(c, in.q.to(at::kDouble), in.key.to(at::kDouble), in.entry.to(at::kDouble), in.sink.to(at::kDouble));
  const Result result = run(c, in);
  EXPECT_LE(relative_error(result.context, expected.context), 1e-4);
  EXPECT_LE(relative_error(result.lse, expected.lse), 1e-6);
}

TEST_F(CompressedAttentionTest, SameBitsWithAnyNumberOfThreads) {
  std::mt19937_64 generator(4);
  const Case c{2, 300, 4, 24, {4}, 20};
  const Inputs in = random_inputs(c, at::kFloat, generator);
  const Tensor dcontext = random_normal(in.q.sizes().vec(), at::kFloat, generator);
  at::set_num_threads(1);
  const Result one = run(c, in);
  const Inputs gradient = gradients(c, in, one, dcontext);
  for (const int threads : {2, 3}) {
    at::set_num_threads(threads);
    const Result other = run(c, in);
    EXPECT_TRUE(at::equal(one.context, other.context));
    EXPECT_TRUE(at::equal(one.lse, other.lse));
    const Inputs again = gradients(c, in, other, dcontext);
    EXPECT_TRUE(at::equal(gradient.q, again.q));
    EXPECT_TRUE(at::equal(gradient.entry, again.entry));
  }
  at::set_num_threads(2);
}

}  // namespace
}  // namespace primus
