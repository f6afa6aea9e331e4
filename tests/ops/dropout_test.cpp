// Dropout of hidden states and of attention's weights: numbers by global place, the same in backward, frequencies, cuts
// of the batch; attention with dropped weights against autograd and finite differences.
#include "ops/dropout/dropout.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <gtest/gtest.h>

#include "ops/attention/attention.hpp"
#include "ops/attention/max_logit.hpp"
#include "support/tensors.hpp"

namespace primus::ops {
namespace {

using namespace primus::test;

TEST(DropoutTest, TakesTheNumbersOfItsPlacesAndIsItsOwnBackward) {
  const Philox philox(7, std::uint64_t{11});
  for (const double probability : {0.0, 0.1, 0.5, 0.97}) {
    const Tensor x = at::ones({9, 13}, at::kDouble);
    Tensor y = poisoned({9, 13}, at::kDouble);
    token_dropout(x, {.seed = 7, .stream = 11, .first_token = 5}, probability, y, Write::kOverwrite);
    for (std::int64_t t = 0; t < 9; ++t) {
      for (std::int64_t h = 0; h < 13; ++h) {
        const bool is_kept = philox.uniform(static_cast<std::uint64_t>((5 + t) * 13 + h)) > probability;
        EXPECT_EQ(y[t][h].item<double>(), is_kept ? 1.0 / (1.0 - probability) : 0.0);
      }
    }
    Tensor sum = at::full({9, 13}, 2.0, at::kDouble);
    token_dropout(x, {.seed = 7, .stream = 11, .first_token = 5}, probability, sum, Write::kAccumulate);
    EXPECT_TRUE(at::equal(sum, y + 2.0));
    Tensor tail = poisoned({4, 13}, at::kDouble);
    token_dropout(x.narrow(0, 5, 4), {.seed = 7, .stream = 11, .first_token = 10}, probability, tail,
                  Write::kOverwrite);
    EXPECT_TRUE(at::equal(tail, y.narrow(0, 5, 4)));
  }
}

TEST(DropoutTest, KeepsTheShareThatItSays) {
  const Tensor x = at::ones({1000, 64}, at::kFloat);
  Tensor y = poisoned({1000, 64}, at::kFloat);
  token_dropout(x, {.seed = 3, .stream = 1}, 0.3, y, Write::kOverwrite);
  // 64,000 draws: four standard deviations are 0.0072.
  EXPECT_NEAR(y.ne(0.0).to(at::kDouble).mean().item<double>(), 0.7, 0.0072);
}

TEST(DropoutTest, WritesNarrowValuesIntoAWideSum) {
  std::mt19937_64 generator(1);
  const Tensor x = random_normal({6, 5}, at::kBFloat16, generator);
  Tensor wide = at::ones({6, 5}, at::kFloat);
  token_dropout(x, {.seed = 3, .stream = 1}, 0.5, wide, Write::kAccumulate);
  Tensor mask = poisoned({6, 5}, at::kFloat);
  token_dropout(at::ones({6, 5}, at::kFloat), {.seed = 3, .stream = 1}, 0.5, mask, Write::kOverwrite);
  EXPECT_TRUE(at::equal(wide, x.to(at::kFloat) * mask + 1.0));
}

struct Shape {
  std::int64_t batch, seq, heads, groups, size;
};

Tensor weight_factors(const Shape& s, const AttentionDropout& dropout) {
  const Philox philox(dropout.seed, dropout.stream);
  const std::int64_t count = s.batch * s.heads * s.seq * s.seq;
  Tensor factors = at::zeros({count}, at::kDouble);
  const auto first = static_cast<std::uint64_t>(dropout.first_sequence * s.heads * s.seq * s.seq);
  for (std::int64_t i = 0; i < count; ++i) {
    const bool is_kept = philox.uniform(first + static_cast<std::uint64_t>(i)) > dropout.probability;
    factors.data_ptr<double>()[i] = is_kept ? 1.0 / (1.0 - dropout.probability) : 0.0;
  }
  return factors.view({s.batch, s.heads, s.seq, s.seq});
}

Tensor expected_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Shape& s,
                          const AttentionOptions& options, const Tensor& factors) {
  const std::int64_t repeats = s.heads / s.groups;
  const Tensor keys = k.repeat_interleave(repeats, 2).transpose(1, 2);
  const Tensor values = v.repeat_interleave(repeats, 2).transpose(1, 2);
  Tensor scores = q.transpose(1, 2).matmul(keys.transpose(-2, -1)) * options.scale;
  if (options.softcap > 0.0) scores = (scores / options.softcap).tanh() * options.softcap;
  const Tensor row = at::arange(s.seq, at::kDouble).view({s.seq, 1});
  const Tensor column = at::arange(s.seq, at::kDouble).view({1, s.seq});
  Tensor hidden = column.gt(row);
  if (options.window > 0) hidden = hidden.logical_or(row.sub(column).ge(options.window));
  scores = scores.masked_fill(hidden, -std::numeric_limits<double>::infinity());
  if (options.sink_A.defined()) {
    const Tensor sink = options.sink_A.to(at::kDouble).view({1, -1, 1, 1}).expand({s.batch, s.heads, s.seq, 1});
    scores = at::cat({scores, sink}, -1);
  }
  return (scores.softmax(-1).narrow(-1, 0, s.seq) * factors).matmul(values).transpose(1, 2);
}

TEST(AttentionDropoutTest, MatchesAutogradOverKindsOfAttention) {
  std::mt19937_64 generator(17);
  constexpr Shape kShapes[] = {{1, 1, 1, 1, 4}, {2, 37, 4, 2, 6}, {1, 300, 2, 1, 8}, {3, 9, 6, 6, 5}};
  for (const Shape& s : kShapes) {
    for (const int kind : {0, 1, 2, 3}) {
      AttentionOptions options{.scale = 0.4, .first_key_BS = {}, .sink_A = {}};
      options.dropout = {.probability = 0.35, .seed = 5, .stream = 77, .first_sequence = 4};
      if (kind == 1) options.window = 5;
      if (kind == 2) options.softcap = 1.5;
      for (const at::ScalarType dtype : {at::kDouble, at::kFloat}) {
        if (kind == 3) options.sink_A = random_normal({s.heads}, dtype, generator);
        const Tensor q = random_normal({s.batch, s.seq, s.heads, s.size}, dtype, generator);
        const Tensor k = random_normal({s.batch, s.seq, s.groups, s.size}, dtype, generator);
        const Tensor v = random_normal({s.batch, s.seq, s.groups, s.size}, dtype, generator);
        const Tensor dcontext = random_normal(q.sizes().vec(), dtype, generator);
        Tensor context = poisoned(q.sizes().vec(), dtype);
        Tensor lse = poisoned({s.batch, s.heads, s.seq}, dtype);
        attention_forward(q, k, v, options, context, lse);
        Tensor dq = poisoned(q.sizes().vec(), dtype);
        Tensor dk = poisoned(k.sizes().vec(), dtype);
        Tensor dv = poisoned(v.sizes().vec(), dtype);
        attention_backward(dcontext, q, k, v, context, lse, options, dq, dk, dv);
        const Tensor q64 = leaf64(q);
        const Tensor k64 = leaf64(k);
        const Tensor v64 = leaf64(v);
        const Tensor expected = expected_attention(q64, k64, v64, s, options, weight_factors(s, options.dropout));
        (expected * dcontext.to(at::kDouble)).sum().backward();
        EXPECT_LE(relative_error(context, expected.detach()), tolerance(dtype));
        // A single query has one weight: its gradient is zero.
        if (s.seq > 1) {
          EXPECT_LE(relative_error(dq, q64.grad()), tolerance(dtype)) << kind;
          EXPECT_LE(relative_error(dk, k64.grad()), tolerance(dtype)) << kind;
        }
        EXPECT_LE(relative_error(dv, v64.grad()), tolerance(dtype)) << kind;
      }
    }
  }
}

TEST(AttentionDropoutTest, ASequenceMeetsTheSameNumbersInAnyCut) {
  std::mt19937_64 generator(23);
  const Tensor q = random_normal({3, 20, 2, 4}, at::kFloat, generator);
  AttentionOptions options{.scale = 0.5, .first_key_BS = {}, .sink_A = {}};
  options.dropout = {.probability = 0.5, .seed = 1, .stream = 2, .first_sequence = 0};
  Tensor whole = poisoned({3, 20, 2, 4}, at::kFloat);
  Tensor lse = poisoned({3, 2, 20}, at::kFloat);
  attention_forward(q, q, q, options, whole, lse);
  for (std::int64_t b = 0; b < 3; ++b) {
    options.dropout.first_sequence = b;
    const Tensor one = q.narrow(0, b, 1);
    Tensor context = poisoned({1, 20, 2, 4}, at::kFloat);
    Tensor own_lse = poisoned({1, 2, 20}, at::kFloat);
    attention_forward(one, one, one, options, context, own_lse);
    EXPECT_TRUE(at::equal(context, whole.narrow(0, b, 1)));
  }
}

TEST(MaxLogitTest, IsTheLargestOfThePairsThatSeeEachOther) {
  std::mt19937_64 generator(29);
  const Shape s{2, 19, 4, 2, 3};
  const Tensor q = random_normal({s.batch, s.seq, s.heads, s.size}, at::kDouble, generator);
  const Tensor k = random_normal({s.batch, s.seq, s.groups, s.size}, at::kDouble, generator);
  const AttentionOptions options{.scale = 0.7, .window = 4, .first_key_BS = {}, .sink_A = {}};
  const Tensor scores = q.transpose(1, 2).matmul(k.repeat_interleave(2, 2).transpose(1, 2).transpose(-2, -1)) * 0.7;
  const Tensor row = at::arange(s.seq, at::kDouble).view({s.seq, 1});
  const Tensor column = at::arange(s.seq, at::kDouble).view({1, s.seq});
  const Tensor hidden = column.gt(row).logical_or(row.sub(column).ge(4));
  const Tensor expected = scores.masked_fill(hidden, -1e30).transpose(0, 1).reshape({s.heads, -1});
  Tensor highest = at::full({s.heads}, -1e30, at::kDouble);
  attention_max_logit(q, k, options, highest);
  EXPECT_LE(relative_error(highest, std::get<0>(expected.max(1))), 1e-12);
  Tensor kept = at::full({s.heads}, 1e3, at::kDouble);
  attention_max_logit(q, k, options, kept);
  EXPECT_TRUE(at::equal(kept, at::full({s.heads}, 1e3, at::kDouble)));
}

}  // namespace
}  // namespace primus::ops
