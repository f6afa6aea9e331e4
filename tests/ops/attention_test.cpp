#include "ops/attention/attention.hpp"

#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "ops/simd_math.hpp"
#include "support/tensors.hpp"

// libtorch's CPU allocator fills what it hands out with NaN when this is set: the ops' own scratch is poisoned too.
extern bool FLAGS_caffe2_cpu_allocator_do_junk_fill;

namespace primus {
namespace {

using at::Tensor;
using namespace primus::test;

struct Shape {
  std::int64_t batch, sequence, heads, groups, query_size, value_size;
};

std::string name_of(const Shape& shape, at::ScalarType dtype) {
  return fmt::format("B {} S {} A {} G {} D {} V {} {}", shape.batch, shape.sequence, shape.heads, shape.groups,
                     shape.query_size, shape.value_size, c10::toString(dtype));
}

// [B, S, H, W] as it lies in a wider, poisoned buffer: gaps after each head, each token and each batch.
Tensor with_gaps(const Tensor& values) {
  const Tensor wide =
      poisoned({values.size(0) + 1, values.size(1) + 1, values.size(2) + 1, values.size(3) + 3}, values.scalar_type());
  Tensor view = wide.narrow(0, 0, values.size(0)).narrow(1, 0, values.size(1));
  view = view.narrow(2, 1, values.size(2)).narrow(3, 2, values.size(3));
  view.copy_(values);
  return view;
}

// [B, S, H, W] stored as [B, H, S, W].
Tensor heads_outside(const Tensor& values) {
  return values.transpose(1, 2).contiguous().transpose(1, 2);
}

using Layout = Tensor (*)(const Tensor&);
Tensor dense(const Tensor& values) {
  return values.contiguous();
}
const std::vector<Layout> kLayouts = {dense, with_gaps, heads_outside};

// An explicit masked softmax in fp64, written from the definition: every option is one more line.
struct Expected {
  Tensor context, lse;
};

bool has_bit(const Tensor& words, std::int64_t key) {
  return (static_cast<std::uint32_t>(words[key / 32].item<std::int32_t>()) >> (key % 32) & 1U) != 0;
}

Tensor hidden_keys(const ops::AttentionOptions& options, const Shape& shape) {
  Tensor hidden = at::ones({shape.batch, 1, shape.sequence, shape.sequence}, at::kBool);
  bool* masked = hidden.data_ptr<bool>();
  for (std::int64_t b = 0; b < shape.batch; ++b) {
    for (std::int64_t i = 0; i < shape.sequence; ++i) {
      const std::int64_t first = options.first_key_BS.defined() ? options.first_key_BS[b][i].item<std::int32_t>() : 0;
      for (std::int64_t j = first; j <= i; ++j) {
        const bool is_near = options.window == 0 || i - j < options.window;
        const bool is_picked = !options.selected_BSW.defined() || has_bit(options.selected_BSW[b][i], j);
        if (is_near && is_picked) masked[(b * shape.sequence + i) * shape.sequence + j] = false;
      }
    }
  }
  return hidden;
}

Expected attention64(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& sink,
                     const ops::AttentionOptions& options, const Shape& shape) {
  const std::int64_t repeats = shape.heads / shape.groups;
  const Tensor queries = q.transpose(1, 2);
  const Tensor keys = k.transpose(1, 2).repeat_interleave(repeats, 1);
  const Tensor values = v.transpose(1, 2).repeat_interleave(repeats, 1);
  Tensor scores = at::matmul(queries, keys.transpose(2, 3)).mul(options.scale);
  if (options.softcap > 0.0) scores = scores.div(options.softcap).tanh().mul(options.softcap);
  scores = scores.masked_fill(hidden_keys(options, shape), -INFINITY);
  if (sink.defined()) {
    const Tensor column = sink.view({1, shape.heads, 1, 1}).expand({shape.batch, shape.heads, shape.sequence, 1});
    scores = at::cat({scores, column}, 3);
  }
  const Tensor weights = at::softmax(scores, -1).narrow(3, 0, shape.sequence);
  return {at::matmul(weights, values).transpose(1, 2), at::logsumexp(scores, {-1})};
}

struct Inputs {
  Tensor q, k, v, dcontext;
};

Inputs random_inputs(const Shape& shape, at::ScalarType dtype, double magnitude, std::mt19937_64& generator) {
  const auto heads = [&](std::int64_t count, std::int64_t width, double scale) {
    return random_normal({shape.batch, shape.sequence, count, width}, dtype, generator, scale);
  };
  return {heads(shape.heads, shape.query_size, magnitude), heads(shape.groups, shape.query_size, magnitude),
          heads(shape.groups, shape.value_size, 1.0), heads(shape.heads, shape.value_size, 1.0)};
}

struct Outputs {
  Tensor context, lse, dq, dk, dv, dsink;
};

Outputs run(const Inputs& inputs, const ops::AttentionOptions& options, Layout layout) {
  const at::ScalarType dtype = inputs.q.scalar_type();
  const at::ScalarType wide = ops::accumulator_type(dtype);
  const auto output = [&](const Tensor& like) { return layout(poisoned(like.sizes().vec(), dtype)); };
  const Inputs in{layout(inputs.q), layout(inputs.k), layout(inputs.v), layout(inputs.dcontext)};
  Outputs out{output(in.dcontext), poisoned({in.q.size(0), in.q.size(2), in.q.size(1)}, wide),
              output(in.q),        output(in.k),
              output(in.v),        {}};
  ops::attention_forward(in.q, in.k, in.v, options, out.context, out.lse);
  ops::attention_backward(in.dcontext, in.q, in.k, in.v, out.context, out.lse, options, out.dq, out.dk, out.dv);
  if (options.sink_A.defined()) {
    out.dsink = at::ones({in.q.size(2)}, wide);  // what other micro-batches left there
    ops::attention_sink_backward(in.dcontext, out.context, out.lse, options.sink_A, out.dsink);
    out.dsink.sub_(1.0);
  }
  return out;
}

bool same_bits(const Outputs& a, const Outputs& b) {
  const bool same_sinks = a.dsink.defined() == b.dsink.defined() && (!a.dsink.defined() || at::equal(a.dsink, b.dsink));
  return at::equal(a.context, b.context) && at::equal(a.lse, b.lse) && at::equal(a.dq, b.dq) && at::equal(a.dk, b.dk) &&
         at::equal(a.dv, b.dv) && same_sinks;
}

/// Packed documents of random lengths: for each token the first of its document.
Tensor random_documents(const Shape& shape, std::int64_t longest, std::mt19937_64& generator) {
  Tensor first = at::empty({shape.batch, shape.sequence}, at::kInt);
  auto* values = first.data_ptr<std::int32_t>();
  for (std::int64_t b = 0; b < shape.batch; ++b) {
    std::int64_t begin = 0;
    std::int64_t end = 0;
    for (std::int64_t s = 0; s < shape.sequence; ++s) {
      if (s == end) {
        begin = s;
        end = s + std::uniform_int_distribution<std::int64_t>(1, longest)(generator);
      }
      values[b * shape.sequence + s] = static_cast<std::int32_t>(begin);
    }
  }
  return first;
}

/// Bits of a share of the keys at random, and of each query itself.
Tensor random_selection(const Shape& shape, double share, std::mt19937_64& generator) {
  const std::int64_t num_words = (shape.sequence + 31) / 32;
  Tensor selected = at::zeros({shape.batch, shape.sequence, num_words}, at::kInt);
  auto* words = selected.data_ptr<std::int32_t>();
  std::bernoulli_distribution is_picked(share);
  for (std::int64_t row = 0; row < shape.batch * shape.sequence; ++row) {
    for (std::int64_t key = 0; key < shape.sequence; ++key) {
      const bool is_self = key == row % shape.sequence;
      if (!is_self && !is_picked(generator)) continue;
      std::int32_t& word = words[row * num_words + key / 32];
      word = static_cast<std::int32_t>(static_cast<std::uint32_t>(word) | 1U << (key % 32));
    }
  }
  return selected;
}

class AttentionTest : public ::testing::Test {
 protected:
  void SetUp() override { FLAGS_caffe2_cpu_allocator_do_junk_fill = true; }
  void TearDown() override { FLAGS_caffe2_cpu_allocator_do_junk_fill = false; }

  // Against autograd; from a context in bf16, whose rounding the sum over all tokens gathers while its terms cancel,
  // against the definition on that same context.
  static void check_sink_gradient(const Inputs& inputs, const Outputs& outputs, const ops::AttentionOptions& options,
                                  const Tensor& expected_A) {
    const at::ScalarType dtype = inputs.q.scalar_type();
    if (dtype != at::kBFloat16) {
      EXPECT_LE(relative_error(outputs.dsink, expected_A), tolerance(dtype));
      return;
    }
    const Tensor delta_BAS =
        inputs.dcontext.to(at::kDouble).mul(outputs.context.to(at::kDouble)).sum(3).transpose(1, 2);
    const Tensor weight_BAS = options.sink_A.to(at::kDouble).view({1, -1, 1}).sub(outputs.lse.to(at::kDouble)).exp();
    const Tensor terms_BAS = weight_BAS.mul(delta_BAS).neg();
    const Tensor difference_A = outputs.dsink.to(at::kDouble).sub(terms_BAS.sum(at::IntArrayRef({0, 2}))).abs();
    EXPECT_TRUE(difference_A.le(terms_BAS.abs().sum(at::IntArrayRef({0, 2})).mul(1e-5)).all().item<bool>())
        << difference_A;
  }

  static void check(const Shape& shape, at::ScalarType dtype, double magnitude, Layout layout, unsigned seed,
                    ops::AttentionOptions options = {}) {
    SCOPED_TRACE(fmt::format("{} magnitude {} seed {} window {} softcap {} documents {} sinks {} selected {}",
                             name_of(shape, dtype), magnitude, seed, options.window, options.softcap,
                             options.first_key_BS.defined(), options.sink_A.defined(), options.selected_BSW.defined()));
    std::mt19937_64 generator(seed);
    options.scale = 1.0 / std::sqrt(static_cast<double>(shape.query_size));
    if (options.sink_A.defined()) options.sink_A = options.sink_A.to(ops::accumulator_type(dtype));
    const Inputs inputs = random_inputs(shape, dtype, magnitude, generator);
    const Outputs outputs = run(inputs, options, layout);
    const Tensor q64 = leaf64(inputs.q);
    const Tensor k64 = leaf64(inputs.k);
    const Tensor v64 = leaf64(inputs.v);
    const Tensor sink64 = options.sink_A.defined() ? leaf64(options.sink_A) : Tensor();
    const Expected expected = attention64(q64, k64, v64, sink64, options, shape);
    EXPECT_LE(relative_error(outputs.context, expected.context), tolerance(dtype));
    // fp32 statistics: one query has lse near 0 when it sees one key of score near 0, so the bound is absolute there.
    const Tensor lse_difference = outputs.lse.to(at::kDouble).sub(expected.lse.detach()).abs();
    const double lse_bound = dtype == at::kDouble ? 1e-9 : 1e-5 * std::max(1.0, magnitude * magnitude);
    if (lse_difference.numel() > 0) {
      EXPECT_LE(lse_difference.max().item<double>(), lse_bound);
    }
    if (expected.context.numel() == 0) return;
    expected.context.backward(inputs.dcontext.to(at::kDouble));
    EXPECT_LE(relative_error(outputs.dv, v64.grad()), tolerance(dtype));
    if (sink64.defined()) check_sink_gradient(inputs, outputs, options, sink64.grad());
    if (shape.sequence == 1 || options.window == 1) {
      if (sink64.defined()) return;
      // softmax of one score is 1: the gradients of q and k are differences of equal numbers.
      EXPECT_LE(outputs.dq.abs().max().item<double>(), 100 * tolerance(dtype));
      EXPECT_LE(outputs.dk.abs().max().item<double>(), 100 * tolerance(dtype));
      return;
    }
    EXPECT_LE(relative_error(outputs.dq, q64.grad()), tolerance(dtype));
    EXPECT_LE(relative_error(outputs.dk, k64.grad()), tolerance(dtype));
  }
};

const std::vector<at::ScalarType> kDtypes = {at::kDouble, at::kFloat, at::kBFloat16};

TEST_F(AttentionTest, MatchesAutograd) {
  // One token, tails of every tile, groups of every kind, D and V equal, larger and smaller, several tiles.
  const std::vector<Shape> shapes = {{1, 1, 1, 1, 1, 1},     {0, 4, 2, 1, 8, 8},   {2, 0, 2, 1, 8, 8},
                                     {2, 1, 4, 4, 24, 16},   {2, 7, 3, 3, 5, 9},   {1, 16, 2, 2, 16, 16},
                                     {2, 33, 8, 2, 48, 32},  {1, 97, 4, 1, 17, 5}, {1, 300, 2, 1, 96, 64},
                                     {3, 193, 2, 2, 33, 40}, {1, 577, 1, 1, 24, 8}};
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    for (const at::ScalarType dtype : kDtypes) {
      check(shapes[i], dtype, 1.0, kLayouts[i % kLayouts.size()], static_cast<unsigned>(i));
    }
  }
}

TEST_F(AttentionTest, MatchesAutogradOverRandomShapes) {
  for (unsigned seed = 0; seed < 60; ++seed) {
    std::mt19937_64 generator(1000 + seed);
    const auto size = [&](std::int64_t low, std::int64_t high) {
      return std::uniform_int_distribution<std::int64_t>(low, high)(generator);
    };
    const std::int64_t groups = size(1, 3);
    const Shape shape{size(1, 2), size(2, 260), groups * size(1, 3), groups, size(1, 50), size(1, 50)};
    check(shape, kDtypes[seed % 3], 1.0, kLayouts[seed % kLayouts.size()], seed);
  }
}

TEST_F(AttentionTest, HeadSizesOfDeepSeek) {
  check({1, 160, 2, 2, 192, 128}, at::kFloat, 1.0, dense, 3);
  check({1, 160, 2, 2, 192, 128}, at::kBFloat16, 1.0, dense, 4);
}

// Pairs enough for each thread to take whole ones; then, for more threads than that, more packed operands than are held
// at a time: several waves of pairs, forward and backward.
TEST_F(AttentionTest, ManyPairsGoToThreadsWholeOrInWaves) {
  const int threads = at::get_num_threads();
  for (const int count : {2, 40}) {
    at::set_num_threads(count);
    check({16, 250, 4, 4, 192, 128}, at::kFloat, 1.0, dense, 12);
  }
  at::set_num_threads(threads);
}

// Scores of thousands: exp would overflow, and most weights vanish, unless the maximum is taken out. The winner's
// weight is then a difference of large scores, so only fp64 keeps the usual bound.
TEST_F(AttentionTest, LargeScoresDoNotOverflow) {
  const Shape shape{1, 130, 2, 1, 16, 8};
  check(shape, at::kDouble, 30.0, dense, 5);
  std::mt19937_64 generator(6);
  for (const double magnitude : {30.0, 1e4}) {
    const Outputs outputs = run(random_inputs(shape, at::kFloat, magnitude, generator), {.scale = 0.25}, dense);
    for (const Tensor& x : {outputs.context, outputs.lse, outputs.dq, outputs.dk, outputs.dv}) {
      EXPECT_TRUE(x.isfinite().all().item<bool>());
    }
  }
}

// A key later than a query has no part in it: garbage there changes nothing, not even a bit.
TEST_F(AttentionTest, LaterKeysAreNotSeen) {
  const Shape shape{1, 120, 2, 2, 24, 16};
  std::mt19937_64 generator(7);
  Inputs inputs = random_inputs(shape, at::kFloat, 1.0, generator);
  const Tensor before = run(inputs, {.scale = 0.2}, dense).context.narrow(1, 0, 50).clone();
  inputs.k.narrow(1, 50, 70).fill_(1e3);
  inputs.v.narrow(1, 50, 70).fill_(-1e3);
  EXPECT_TRUE(at::equal(run(inputs, {.scale = 0.2}, dense).context.narrow(1, 0, 50), before));
}

TEST_F(AttentionTest, MatchesFiniteDifferences) {
  const Shape shape{1, 5, 4, 2, 3, 2};
  std::mt19937_64 generator(8);
  const Inputs inputs = random_inputs(shape, at::kDouble, 1.0, generator);
  const Tensor sinks = random_normal({4}, at::kDouble, generator);
  const Tensor documents = at::tensor({0, 0, 2, 2, 2}, at::kInt).view({1, 5});
  const std::vector<ops::AttentionOptions> all = {
      {.scale = 0.7},
      {.scale = 0.7, .window = 2},
      {.scale = 0.7, .softcap = 1.5},
      {.scale = 0.7, .first_key_BS = documents},
      {.scale = 0.7, .sink_A = sinks},
      {.scale = 0.7, .window = 2, .softcap = 1.5, .first_key_BS = documents, .sink_A = sinks},
      {.scale = 0.7, .selected_BSW = random_selection(shape, 0.5, generator)}};
  for (const ops::AttentionOptions& options : all) {
    const auto loss = [&](const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& sink) {
      Tensor context = poisoned({1, 5, 4, 2}, at::kDouble);
      Tensor lse = poisoned({1, 4, 5}, at::kDouble);
      ops::AttentionOptions with = options;
      if (options.sink_A.defined()) with.sink_A = sink;
      ops::attention_forward(q, k, v, with, context, lse);
      return context.mul(inputs.dcontext).sum().item<double>();
    };
    const Outputs outputs = run(inputs, options, dense);
    const auto [q, k, v, dcontext] = inputs;
    const Tensor dq = finite_difference([&](const Tensor& x) { return loss(x, inputs.k, inputs.v, sinks); }, q);
    const Tensor dk = finite_difference([&](const Tensor& x) { return loss(inputs.q, x, inputs.v, sinks); }, k);
    const Tensor dv = finite_difference([&](const Tensor& x) { return loss(inputs.q, inputs.k, x, sinks); }, v);
    EXPECT_LE(relative_error(outputs.dq, dq), 1e-7);
    EXPECT_LE(relative_error(outputs.dk, dk), 1e-7);
    EXPECT_LE(relative_error(outputs.dv, dv), 1e-7);
    if (!options.sink_A.defined()) continue;
    const Tensor dsink =
        finite_difference([&](const Tensor& x) { return loss(inputs.q, inputs.k, inputs.v, x); }, sinks);
    EXPECT_LE(relative_error(outputs.dsink, dsink), 1e-7);
  }
}

// Windows below, at and above the tile sizes and the sequence; documents shorter than a panel and longer than a tile.
std::vector<ops::AttentionOptions> all_options(const Shape& shape, std::mt19937_64& generator) {
  const Tensor sinks = random_normal({shape.heads}, at::kDouble, generator);
  std::vector<ops::AttentionOptions> all;
  for (const std::int64_t window : {0, 1, 2, 7, 16, 128, 241, 512, 5000}) {
    for (const std::int64_t longest : {0, 1, 9, 150, 700}) {
      ops::AttentionOptions options{.window = window};
      if (longest > 0) options.first_key_BS = random_documents(shape, longest, generator);
      const bool has_softcap = (window + longest) % 2 == 1;
      if (has_softcap) options.softcap = 2.0;
      if ((window / 2 + longest) % 2 == 0) options.sink_A = sinks;
      if ((window + longest) % 3 == 0)
        options.selected_BSW = random_selection(shape, longest == 9 ? 0.02 : 0.4, generator);
      all.push_back(options);
    }
  }
  return all;
}

TEST_F(AttentionTest, EveryOptionAndPairOfOptionsMatchesAutograd) {
  const std::vector<Shape> shapes = {{2, 37, 4, 2, 8, 5}, {1, 300, 2, 1, 24, 16}, {2, 611, 1, 1, 16, 9}};
  unsigned seed = 0;
  for (const Shape& shape : shapes) {
    std::mt19937_64 generator(40 + static_cast<unsigned>(shape.sequence));
    for (const ops::AttentionOptions& options : all_options(shape, generator)) {
      check(shape, kDtypes[seed % 3], 1.0, kLayouts[seed % kLayouts.size()], seed, options);
      ++seed;
    }
  }
}

TEST_F(AttentionTest, OptionsMatchAutogradOverRandomShapes) {
  for (unsigned seed = 0; seed < 60; ++seed) {
    std::mt19937_64 generator(3000 + seed);
    const auto size = [&](std::int64_t low, std::int64_t high) {
      return std::uniform_int_distribution<std::int64_t>(low, high)(generator);
    };
    const std::int64_t groups = size(1, 3);
    const Shape shape{size(1, 2), size(2, 560), groups * size(1, 3), groups, size(1, 40), size(1, 40)};
    ops::AttentionOptions options;
    if (size(0, 1) == 1) options.window = size(2, 600);
    if (size(0, 1) == 1) options.softcap = 0.5 * static_cast<double>(size(1, 40));
    if (size(0, 1) == 1) options.first_key_BS = random_documents(shape, size(2, 400), generator);
    if (size(0, 1) == 1) options.sink_A = random_normal({shape.heads}, at::kDouble, generator);
    if (size(0, 1) == 1)
      options.selected_BSW = random_selection(shape, 0.01 * static_cast<double>(size(0, 90)), generator);
    check(shape, kDtypes[seed % 3], 1.0, kLayouts[seed % kLayouts.size()], seed, options);
  }
}

// The head sizes of the presets, from multi-query to multi-head.
TEST_F(AttentionTest, HeadSizesOfThePresets) {
  const std::vector<Shape> shapes = {{1, 130, 8, 1, 64, 64},   {1, 130, 4, 4, 80, 80},   {1, 130, 6, 2, 96, 64},
                                     {1, 130, 4, 2, 128, 128}, {1, 130, 2, 2, 192, 128}, {1, 130, 4, 1, 256, 256},
                                     {1, 130, 2, 2, 256, 64},  {1, 130, 2, 2, 48, 32}};
  for (const Shape& shape : shapes) {
    for (const at::ScalarType dtype : kDtypes) check(shape, dtype, 1.0, dense, 21);
  }
}

// What an option at its limit leaves is plain attention, to the bit.
TEST_F(AttentionTest, OptionsAtTheirLimitsAreNone) {
  const Shape shape{2, 530, 4, 2, 24, 16};
  std::mt19937_64 generator(22);
  for (const at::ScalarType dtype : kDtypes) {
    const Inputs inputs = random_inputs(shape, dtype, 1.0, generator);
    Outputs plain = run(inputs, {.scale = 0.2}, dense);
    EXPECT_TRUE(same_bits(plain, run(inputs, {.scale = 0.2, .window = 530}, dense)));
    EXPECT_TRUE(same_bits(plain, run(inputs, {.scale = 0.2, .window = 100'000}, dense)));
    const Tensor one_document = at::zeros({2, 530}, at::kInt);
    EXPECT_TRUE(same_bits(plain, run(inputs, {.scale = 0.2, .first_key_BS = one_document}, dense)));
    const Tensor no_sinks = at::full({4}, -INFINITY, ops::accumulator_type(dtype));
    const Outputs without = run(inputs, {.scale = 0.2, .sink_A = no_sinks}, dense);
    EXPECT_EQ(without.dsink.abs().max().item<double>(), 0.0);
    plain.dsink = without.dsink;
    EXPECT_TRUE(same_bits(plain, without));
    // A bound far above every score: tanh(x) is x.
    const Outputs loose = run(inputs, {.scale = 0.2, .softcap = 1e6}, dense);
    EXPECT_LE(relative_error(loose.dk, plain.dk), tolerance(dtype));
  }
}

// Attention over packed documents is attention over each of them alone.
TEST_F(AttentionTest, PackedDocumentsAreAlone) {
  const Shape shape{1, 420, 2, 1, 24, 16};
  std::mt19937_64 generator(23);
  const Inputs packed = random_inputs(shape, at::kDouble, 1.0, generator);
  const std::vector<std::int64_t> starts = {0, 1, 18, 19, 250, 420};
  Tensor first_key = at::empty({1, 420}, at::kInt);
  for (std::size_t i = 0; i + 1 < starts.size(); ++i) {
    first_key.narrow(1, starts[i], starts[i + 1] - starts[i]).fill_(starts[i]);
  }
  const Outputs together = run(packed, {.scale = 0.2, .window = 90, .first_key_BS = first_key}, dense);
  for (std::size_t i = 0; i + 1 < starts.size(); ++i) {
    const auto cut = [&](const Tensor& x) { return x.narrow(1, starts[i], starts[i + 1] - starts[i]); };
    const Outputs alone =
        run({cut(packed.q), cut(packed.k), cut(packed.v), cut(packed.dcontext)}, {.scale = 0.2, .window = 90}, dense);
    EXPECT_LE(relative_error(cut(together.context), alone.context), 1e-13);
    EXPECT_LE(relative_error(cut(together.dk), alone.dk), 1e-13);
    EXPECT_LE(relative_error(cut(together.dv), alone.dv), 1e-13);
  }
}

// Garbage in keys that a window or a document hides changes nothing, not even a bit.
TEST_F(AttentionTest, HiddenKeysAreNotSeen) {
  const Shape shape{1, 700, 2, 2, 24, 16};
  std::mt19937_64 generator(24);
  Inputs inputs = random_inputs(shape, at::kFloat, 1.0, generator);
  const Tensor documents = at::zeros({1, 700}, at::kInt);
  documents.narrow(1, 300, 400).fill_(300);
  const std::vector<ops::AttentionOptions> hiding = {{.scale = 0.2, .window = 40},
                                                     {.scale = 0.2, .first_key_BS = documents}};
  for (const ops::AttentionOptions& options : hiding) {
    const std::int64_t last = options.window > 0 ? 339 : 300;
    const Tensor before = run(inputs, options, dense).context.narrow(1, last, 700 - last).clone();
    Inputs spoilt{inputs.q, inputs.k.clone(), inputs.v.clone(), inputs.dcontext};
    spoilt.k.narrow(1, 0, 300).fill_(1e3);
    spoilt.v.narrow(1, 0, 300).fill_(-1e3);
    EXPECT_TRUE(at::equal(run(spoilt, options, dense).context.narrow(1, last, 700 - last), before));
  }
}

// Nor do keys that no query has selected, whose scores are infinite here: also not in the gradients.
TEST_F(AttentionTest, KeysThatAreNotSelectedAreNotSeen) {
  const Shape shape{1, 700, 2, 2, 24, 16};
  std::mt19937_64 generator(25);
  const Inputs inputs = random_inputs(shape, at::kFloat, 1.0, generator);
  ops::AttentionOptions options{.scale = 0.2, .selected_BSW = random_selection(shape, 0.05, generator)};
  // Each query's own key is selected: all before the last two words are not, for the queries from there on.
  options.selected_BSW.narrow(1, 640, 60).narrow(2, 0, 20).zero_();
  const Outputs before = run(inputs, options, dense);
  Inputs spoilt{inputs.q, inputs.k.clone(), inputs.v.clone(), inputs.dcontext.clone()};
  spoilt.k.narrow(1, 0, 640).mul_(30.0);
  spoilt.v.narrow(1, 0, 640).fill_(-1e3);
  spoilt.dcontext.narrow(1, 0, 640).zero_();
  const Outputs after = run(spoilt, options, dense);
  EXPECT_TRUE(at::equal(after.context.narrow(1, 640, 60), before.context.narrow(1, 640, 60)));
  EXPECT_TRUE(at::equal(after.dq.narrow(1, 640, 60), before.dq.narrow(1, 640, 60)));
  EXPECT_EQ(after.dv.narrow(1, 0, 640).abs().max().item<double>(), 0.0);
}

TEST_F(AttentionTest, SameBitsWithAnyNumberOfThreads) {
  // One pair, cut into slices of keys; several heads to a pair; more pairs than slices are made for.
  for (const Shape& shape : {Shape{1, 700, 1, 1, 40, 24}, Shape{1, 300, 8, 2, 32, 16}, Shape{5, 130, 4, 4, 24, 16}}) {
    std::mt19937_64 generator(9);
    const Inputs inputs = random_inputs(shape, at::kFloat, 1.0, generator);
    const ops::AttentionOptions every{.scale = 0.2,
                                      .window = 100,
                                      .softcap = 5.0,
                                      .first_key_BS = random_documents(shape, 250, generator),
                                      .sink_A = random_normal({shape.heads}, at::kFloat, generator),
                                      .selected_BSW = random_selection(shape, 0.3, generator)};
    for (const ops::AttentionOptions& options : std::vector<ops::AttentionOptions>{{.scale = 0.2}, every}) {
      at::set_num_threads(1);
      const Outputs one = run(inputs, options, dense);
      for (const int threads : {2, 3}) {
        at::set_num_threads(threads);
        EXPECT_TRUE(same_bits(one, run(inputs, options, dense)));
      }
    }
    at::set_num_threads(2);
  }
}

TEST_F(AttentionTest, FastTanhIsTanh) {
  double worst = 0.0;
  for (double x = -12.0; x < 12.0; x += 1.0 / 4099) {
    const auto narrow = static_cast<float>(x);
    const double exact = std::tanh(static_cast<double>(narrow));
    if (exact != 0.0) worst = std::max(worst, std::abs(ops::fast_tanh(narrow) - exact) / std::abs(exact));
  }
  EXPECT_LE(worst, 4 * 1.2e-7);
  EXPECT_EQ(ops::fast_tanh(INFINITY), 1.0F);
  EXPECT_EQ(ops::fast_tanh(-INFINITY), -1.0F);
  EXPECT_TRUE(std::isnan(ops::fast_tanh(NAN)));
}

TEST_F(AttentionTest, ANanIsNotHidden) {
  const Shape shape{1, 40, 1, 1, 8, 8};
  std::mt19937_64 generator(10);
  Inputs inputs = random_inputs(shape, at::kFloat, 1.0, generator);
  inputs.k[0][3][0][0].fill_(NAN);
  const Outputs outputs = run(inputs, {.scale = 0.2}, dense);
  EXPECT_FALSE(outputs.context.narrow(1, 0, 3).isnan().any().item<bool>());
  EXPECT_TRUE(outputs.context.narrow(1, 3, 37).isnan().all().item<bool>());
}

TEST_F(AttentionTest, RefusesShapesThatDoNotAgree) {
  std::mt19937_64 generator(11);
  const Shape shape{1, 4, 3, 2, 8, 8};
  EXPECT_THROW(run(random_inputs(shape, at::kFloat, 1.0, generator), {.scale = 0.2}, dense), InternalError);
  const Inputs fine = random_inputs({1, 4, 2, 2, 8, 8}, at::kFloat, 1.0, generator);
  for (const Tensor& documents : {at::tensor({0, 0, 3, 0}, at::kInt).view({1, 4}),   // after itself
                                  at::tensor({0, 1, 0, 0}, at::kInt).view({1, 4}),   // falling
                                  at::tensor({0, 0, 0, 0}, at::kLong).view({1, 4}),  // 64 bits
                                  at::tensor({0, 0, 0}, at::kInt).view({1, 3})}) {
    EXPECT_THROW(run(fine, {.scale = 0.2, .first_key_BS = documents}, dense), InternalError);
  }
  EXPECT_THROW(run(fine, {.scale = 0.2, .sink_A = at::zeros({3}, at::kFloat)}, dense), InternalError);
  EXPECT_THROW(run(fine, {.scale = 0.2, .sink_A = at::zeros({2}, at::kDouble)}, dense), InternalError);
  Inputs mixed = random_inputs({1, 4, 2, 2, 8, 8}, at::kFloat, 1.0, generator);
  mixed.k = mixed.k.to(at::kBFloat16);
  EXPECT_THROW(run(mixed, {.scale = 0.2}, dense), InternalError);
}

}  // namespace
}  // namespace primus
