#include "ops/indexer/indexer.hpp"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/einsum.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/xlogy.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "ops/windows.hpp"

// libtorch's CPU allocator fills what it hands out with NaN when this is set: the ops' own scratch is poisoned too.
extern bool FLAGS_caffe2_cpu_allocator_do_junk_fill;

namespace primus {
namespace {

using at::Tensor;
using namespace primus::test;
using Scoring = ops::IndexerOptions::Scoring;

struct Shape {
  std::int64_t batch, sequence, heads, size, attention_heads, query_size;
};

struct Case {
  Shape shape;
  ops::IndexerOptions options;
  ops::AttentionOptions attention;
};

struct Inputs {
  ops::IndexerInput indexer;
  Tensor q, k;
};

Inputs random_inputs(const Shape& shape, at::ScalarType dtype, std::mt19937_64& generator) {
  const auto normal = [&](std::vector<std::int64_t> sizes) {
    return random_normal(std::move(sizes), dtype, generator);
  };
  return {{normal({shape.batch, shape.sequence, shape.heads, shape.size}),
           normal({shape.batch, shape.sequence, shape.size}), normal({shape.batch, shape.sequence, shape.heads})},
          normal({shape.batch, shape.sequence, shape.attention_heads, shape.query_size}),
          normal({shape.batch, shape.sequence, shape.attention_heads, shape.query_size})};
}

/// Keys that a query does not see, [B, S, S].
Tensor hidden_keys(const Case& c) {
  Tensor hidden = at::ones({c.shape.batch, c.shape.sequence, c.shape.sequence}, at::kBool);
  bool* values = hidden.data_ptr<bool>();
  for (std::int64_t b = 0; b < c.shape.batch; ++b) {
    for (std::int64_t s = 0; s < c.shape.sequence; ++s) {
      std::int64_t first = c.attention.window == 0 ? 0 : std::max<std::int64_t>(0, s - c.attention.window + 1);
      if (c.attention.first_key_BS.defined()) {
        first = std::max<std::int64_t>(first, c.attention.first_key_BS[b][s].item<std::int32_t>());
      }
      for (std::int64_t t = first; t <= s; ++t) values[(b * c.shape.sequence + s) * c.shape.sequence + t] = false;
    }
  }
  return hidden;
}

/// The words of a selection as a mask [B, S, S].
Tensor mask_of(const Tensor& selected_BSW, std::int64_t sequence) {
  const Tensor bit = at::arange(32, at::kLong);
  const Tensor words = selected_BSW.to(at::kLong).bitwise_and(0xFFFFFFFFLL).unsqueeze(3);
  return words.bitwise_right_shift(bit).bitwise_and(1).to(at::kBool).flatten(2, 3).narrow(2, 0, sequence);
}

Tensor scores64(const Tensor& q, const Tensor& k, const Tensor& w, const ops::IndexerOptions& options) {
  Tensor products = at::einsum("bsid,btd->bsit", {q, k}).mul(options.scale);
  if (options.scoring == Scoring::kRelu) products = at::relu(products);
  return at::einsum("bsit,bsi->bst", {products, w});
}

/// The heads' weights, added up and divided by their sum.
Tensor target64(const Inputs& inputs, const Case& c, const Tensor& hidden) {
  Tensor logits = at::einsum("bsad,btad->bast", {inputs.q.to(at::kDouble), inputs.k.to(at::kDouble)});
  logits = logits.mul(c.attention.scale);
  if (c.attention.softcap > 0) logits = logits.div(c.attention.softcap).tanh().mul(c.attention.softcap);
  logits = logits.masked_fill(hidden.unsqueeze(1), -INFINITY);
  if (c.attention.sink_A.defined()) {
    const Tensor sink = c.attention.sink_A.to(at::kDouble).view({1, -1, 1, 1});
    logits = at::cat({logits, sink.expand({logits.size(0), logits.size(1), logits.size(2), 1})}, 3);
  }
  const Tensor sum = at::softmax(logits, -1).narrow(3, 0, c.shape.sequence).sum(1);
  return sum.div(sum.sum(-1, true));
}

/// KL divergence a query.
Tensor divergence64(const Tensor& target, const Tensor& scores, const Tensor& hidden) {
  const Tensor log_q = at::log_softmax(scores.masked_fill(hidden, -INFINITY), -1).masked_fill(hidden, 0.0);
  return at::xlogy(target, target).sub(target.mul(log_q)).sum(-1);
}

Tensor documents(const Shape& shape, std::int64_t longest, std::mt19937_64& generator) {
  Tensor first = at::empty({shape.batch, shape.sequence}, at::kInt);
  for (std::int64_t b = 0; b < shape.batch; ++b) {
    std::int64_t begin = 0;
    std::int64_t left = 0;
    for (std::int64_t s = 0; s < shape.sequence; ++s, --left) {
      if (left == 0) {
        begin = s;
        left = std::uniform_int_distribution<std::int64_t>(1, longest)(generator);
      }
      first[b][s] = begin;
    }
  }
  return first;
}

Tensor select(const Inputs& inputs, const Case& c) {
  Tensor selected = poisoned({c.shape.batch, c.shape.sequence, (c.shape.sequence + 31) / 32}, at::kInt);
  ops::indexer_select(inputs.indexer, c.options, c.attention, selected);
  return selected;
}

struct Gradients {
  Tensor loss;
  ops::IndexerInput d;
};

Gradients loss_of(const Inputs& inputs, const Case& c, double factor) {
  const at::ScalarType dtype = inputs.q.scalar_type();
  const auto& in = inputs.indexer;
  Gradients out{poisoned({c.shape.batch, c.shape.sequence}, ops::accumulator_type(dtype)),
                {poisoned(in.q_BSID.sizes().vec(), dtype), poisoned(in.k_BND.sizes().vec(), dtype),
                 poisoned(in.weight_BSI.sizes().vec(), dtype)}};
  ops::indexer_loss(in, c.options, inputs.q, inputs.k, c.attention, factor, out.loss, out.d);
  return out;
}

/// Every option in turn, over shapes with one token, odd sizes, and more than one block of queries and panel of keys.
std::vector<Case> cases(std::mt19937_64& generator) {
  std::vector<Case> all;
  const std::vector<Shape> shapes = {{1, 1, 1, 1, 1, 1},    {2, 1, 3, 4, 2, 3},   {2, 7, 2, 5, 3, 4},
                                     {1, 33, 4, 16, 2, 24}, {3, 50, 5, 9, 3, 17}, {1, 131, 3, 32, 4, 40},
                                     {2, 211, 8, 24, 2, 20}};
  for (const Shape& shape : shapes) {
    for (int variant = 0; variant < 6; ++variant) {
      Case c{shape, {.top_k = 1 + (variant * 7) % 40, .scale = 0.4}, {.scale = 0.3}};
      if (variant % 3 == 2) c.options.scoring = Scoring::kLinear;
      if (variant == 1 || variant == 4) c.attention.window = 1 + shape.sequence / 3;
      if (variant == 2 || variant == 4) c.attention.first_key_BS = documents(shape, 40, generator);
      if (variant == 3) c.attention.softcap = 1.5;
      if (variant >= 4) c.attention.sink_A = random_normal({shape.attention_heads}, at::kDouble, generator);
      all.push_back(c);
    }
  }
  return all;
}

class IndexerTest : public ::testing::Test {
 protected:
  void SetUp() override { FLAGS_caffe2_cpu_allocator_do_junk_fill = true; }
  void TearDown() override { FLAGS_caffe2_cpu_allocator_do_junk_fill = false; }
};

TEST_F(IndexerTest, SelectsTheBestKeysOfThoseInSight) {
  std::mt19937_64 generator(1);
  for (const Case& c : cases(generator)) {
    const Inputs inputs = random_inputs(c.shape, at::kDouble, generator);
    const Tensor mask = mask_of(select(inputs, c), c.shape.sequence);
    const Tensor hidden = hidden_keys(c);
    EXPECT_FALSE(mask.logical_and(hidden).any().item<bool>());
    const Tensor seen = hidden.logical_not().sum(-1);
    EXPECT_TRUE(at::equal(mask.sum(-1), seen.clamp_max(c.options.top_k)));
    const Tensor scores = scores64(inputs.indexer.q_BSID, inputs.indexer.k_BND, inputs.indexer.weight_BSI, c.options);
    const Tensor worst_in = scores.masked_fill(mask.logical_not(), INFINITY).amin(-1);
    const Tensor best_out = scores.masked_fill(mask.logical_or(hidden), -INFINITY).amax(-1);
    EXPECT_TRUE(worst_in.ge(best_out.sub(1e-12)).all().item<bool>()) << c.shape.sequence;
  }
}

TEST_F(IndexerTest, LowerPrecisionsSelectByTheirOwnScores) {
  std::mt19937_64 generator(2);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const Case c{{2, 150, 4, 32, 1, 1}, {.top_k = 20, .scale = 0.4}, {}};
    const Inputs inputs = random_inputs(c.shape, dtype, generator);
    const Tensor mask = mask_of(select(inputs, c), c.shape.sequence);
    const Tensor scores = scores64(inputs.indexer.q_BSID.to(at::kDouble), inputs.indexer.k_BND.to(at::kDouble),
                                   inputs.indexer.weight_BSI.to(at::kDouble), c.options);
    const Tensor worst_in = scores.masked_fill(mask.logical_not(), INFINITY).amin(-1);
    const Tensor best_out = scores.masked_fill(mask.logical_or(hidden_keys(c)), -INFINITY).amax(-1);
    EXPECT_TRUE(worst_in.ge(best_out.sub(1e-4)).all().item<bool>());
  }
}

// With relu, keys against whom every head is silent have the same score: zero.
TEST_F(IndexerTest, OfEqualScoresTheEarlierKeysAreSelected) {
  const Case c{{1, 70, 2, 4, 1, 1}, {.top_k = 5}, {}};
  const Inputs inputs{
      {at::ones({1, 70, 2, 4}, at::kFloat), at::ones({1, 70, 4}, at::kFloat).neg(), at::ones({1, 70, 2}, at::kFloat)},
      {},
      {}};
  const Tensor mask = mask_of(select(inputs, c), 70);
  EXPECT_TRUE(mask.narrow(1, 5, 65).narrow(2, 0, 5).all().item<bool>());
  EXPECT_FALSE(mask.narrow(2, 5, 65).any().item<bool>());
}

// A key that is no number is the last to be taken, and leaves the others' order alone.
TEST_F(IndexerTest, ScoresThatAreNoNumbersComeLast) {
  std::mt19937_64 generator(3);
  const Case c{{1, 60, 3, 8, 1, 1}, {.top_k = 6}, {}};
  Inputs inputs = random_inputs(c.shape, at::kFloat, generator);
  inputs.indexer.k_BND.select(1, 10).fill_(NAN);
  const Tensor mask = mask_of(select(inputs, c), 60);
  EXPECT_FALSE(mask.narrow(1, 12, 48).select(2, 10).any().item<bool>());
  EXPECT_TRUE(mask.sum(-1).narrow(1, 6, 54).eq(6).all().item<bool>());
}

TEST_F(IndexerTest, LossAndGradientsMatchAutograd) {
  std::mt19937_64 generator(4);
  for (Case c : cases(generator)) {
    for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
      for (const bool is_sparse : {false, true}) {
        SCOPED_TRACE(fmt::format("S {} window {} sparse {} {}", c.shape.sequence, c.attention.window, is_sparse,
                                 c10::toString(dtype)));
        const Inputs inputs = random_inputs(c.shape, dtype, generator);
        Case with = c;
        if (c.attention.sink_A.defined()) {
          with.attention.sink_A = c.attention.sink_A.to(ops::accumulator_type(dtype));
        }
        Tensor hidden = hidden_keys(c);
        if (is_sparse) {
          with.attention.selected_BSW = select(inputs, with);
          hidden = hidden.logical_or(mask_of(with.attention.selected_BSW, c.shape.sequence).logical_not());
        }
        const Gradients out = loss_of(inputs, with, 0.25);
        const Tensor q = leaf64(inputs.indexer.q_BSID);
        const Tensor k = leaf64(inputs.indexer.k_BND);
        const Tensor w = leaf64(inputs.indexer.weight_BSI);
        const Tensor loss = divergence64(target64(inputs, with, hidden), scores64(q, k, w, c.options), hidden);
        loss.sum().mul(0.25).backward();
        // Of one key there is nothing to learn: the divergence is a difference of equal numbers.
        const double bound = dtype == at::kDouble ? 1e-11 : 2e-5;
        EXPECT_LE(out.loss.to(at::kDouble).sub(loss.detach()).abs().max().item<double>(), bound);
        if (loss.detach().max().item<double>() < 1e-12) {
          EXPECT_LE(out.d.q_BSID.abs().max().item<double>(), 1e-5);
          continue;
        }
        EXPECT_LE(relative_error(out.d.q_BSID, q.grad()), tolerance(dtype));
        EXPECT_LE(relative_error(out.d.k_BND, k.grad()), tolerance(dtype));
        EXPECT_LE(relative_error(out.d.weight_BSI, w.grad()), tolerance(dtype));
      }
    }
  }
}

// Keys that are entries: one for all heads, a part of a softmax that is over other keys too.
TEST_F(IndexerTest, EntriesAreSelectedAndTaughtLikeTokens) {
  std::mt19937_64 generator(8);
  for (const auto& [batch, sequence, ratio, heads] : std::vector<std::array<std::int64_t, 4>>{
           {1, 3, 4, 2}, {2, 9, 4, 2}, {2, 120, 4, 3}, {1, 77, 1, 4}, {3, 50, 7, 1}}) {
    for (const bool is_packed : {false, true}) {
      const std::int64_t capacity = sequence / ratio;
      ops::Windowing windowing{ratio};
      if (is_packed) windowing.first_key_BS = random_documents(batch, sequence, 9 * ratio, generator);
      const ops::IndexerOptions options{.top_k = 3, .scale = 0.4, .entries = windowing};
      const Tensor hidden = hidden_entries(windowing, batch, sequence);
      const Tensor seen = hidden.logical_not().sum(-1);
      for (const at::ScalarType dtype : {at::kDouble, at::kFloat}) {
        const auto normal = [&](std::vector<std::int64_t> shape) { return random_normal(shape, dtype, generator); };
        const ops::IndexerInput in{normal({batch, sequence, heads, 6}), normal({batch, capacity, 6}),
                                   normal({batch, sequence, heads})};
        const Tensor q = normal({batch, sequence, 2, 5});
        const Tensor k = normal({batch, capacity, 1, 5});
        Tensor selected = poisoned({batch, sequence, (capacity + 31) / 32}, at::kInt);
        ops::AttentionOptions attention{.scale = 0.3};
        ops::indexer_select(in, options, attention, selected);
        const Tensor mask = mask_of(selected, capacity);
        const Tensor iq = leaf64(in.q_BSID);
        const Tensor ik = leaf64(in.k_BND);
        const Tensor iw = leaf64(in.weight_BSI);
        const Tensor scores = scores64(iq, ik, iw, options);
        EXPECT_FALSE(mask.logical_and(hidden).any().item<bool>());
        EXPECT_TRUE(at::equal(mask.sum(-1), seen.clamp_max(3)));
        if (capacity == 0) continue;
        const Tensor worst_in = scores.detach().masked_fill(mask.logical_not(), INFINITY).amin(-1);
        const Tensor best_out = scores.detach().masked_fill(mask.logical_or(hidden), -INFINITY).amax(-1);
        EXPECT_TRUE(worst_in.ge(best_out.sub(1e-5)).all().item<bool>());

        attention.selected_BSW = selected;
        const Tensor logits = at::einsum("bsad,bcd->basc", {q.to(at::kDouble), k.to(at::kDouble).squeeze(2)}).mul(0.3);
        const Tensor shown = logits.masked_fill(mask.logical_not().unsqueeze(1), -INFINITY);
        const Tensor others = random_normal({batch, 2, sequence, 1}, at::kDouble, generator);
        const Tensor lse = at::cat({shown, others}, -1).logsumexp(-1);
        const Tensor sum = shown.sub(lse.unsqueeze(-1)).exp().sum(1);
        const Tensor target = sum.div(sum.sum(-1, true).clamp_min(1e-300));
        const Tensor loss = divergence64(target, scores.masked_fill(seen.eq(0).unsqueeze(-1), 0.0),
                                         mask.logical_not().logical_and(seen.ne(0).unsqueeze(-1)))
                                .masked_fill(seen.eq(0), 0.0);
        loss.sum().mul(0.25).backward();
        const at::ScalarType sums = ops::accumulator_type(dtype);
        Tensor loss_BS = poisoned({batch, sequence}, sums);
        ops::IndexerInput gradient{poisoned(in.q_BSID.sizes().vec(), dtype), poisoned(in.k_BND.sizes().vec(), dtype),
                                   poisoned(in.weight_BSI.sizes().vec(), dtype)};
        ops::indexer_loss(in, options, q, k, attention, 0.25, loss_BS, gradient, lse.to(sums));
        EXPECT_LE(loss_BS.to(at::kDouble).sub(loss.detach()).abs().max().item<double>(), 2e-5);
        if (loss.detach().max().item<double>() < 1e-12) continue;
        EXPECT_LE(relative_error(gradient.q_BSID, iq.grad()), tolerance(dtype));
        EXPECT_LE(relative_error(gradient.k_BND, ik.grad()), tolerance(dtype));
        EXPECT_LE(relative_error(gradient.weight_BSI, iw.grad()), tolerance(dtype));
      }
    }
  }
}

TEST_F(IndexerTest, LossMatchesFiniteDifferences) {
  std::mt19937_64 generator(5);
  Case c{{1, 6, 2, 3, 2, 4}, {.top_k = 3, .scale = 0.6}, {.scale = 0.7}};
  const Inputs inputs = random_inputs(c.shape, at::kDouble, generator);
  c.attention.selected_BSW = select(inputs, c);
  const Gradients out = loss_of(inputs, c, 1.0);
  const auto loss = [&](const Tensor& q, const Tensor& k, const Tensor& w) {
    return loss_of({{q, k, w}, inputs.q, inputs.k}, c, 1.0).loss.sum().item<double>();
  };
  const auto& [q, k, w] = inputs.indexer;
  EXPECT_LE(
      relative_error(out.d.q_BSID,
                     finite_difference(
                         [&](const Tensor& x) { return loss(x, inputs.indexer.k_BND, inputs.indexer.weight_BSI); }, q)),
      1e-7);
  EXPECT_LE(relative_error(
                out.d.k_BND,
                finite_difference(
                    [&](const Tensor& x) { return loss(inputs.indexer.q_BSID, x, inputs.indexer.weight_BSI); }, k)),
            1e-7);
  EXPECT_LE(
      relative_error(
          out.d.weight_BSI,
          finite_difference([&](const Tensor& x) { return loss(inputs.indexer.q_BSID, inputs.indexer.k_BND, x); }, w)),
      1e-7);
}

TEST_F(IndexerTest, SameBitsWithAnyNumberOfThreads) {
  std::mt19937_64 generator(6);
  Case c{{2, 300, 4, 24, 3, 20}, {.top_k = 40}, {.scale = 0.3, .window = 200}};
  const Inputs inputs = random_inputs(c.shape, at::kFloat, generator);
  at::set_num_threads(1);
  const Tensor selected = select(inputs, c);
  const Gradients one = loss_of(inputs, c, 1.0);
  for (const int threads : {2, 3}) {
    at::set_num_threads(threads);
    EXPECT_TRUE(at::equal(selected, select(inputs, c)));
    const Gradients other = loss_of(inputs, c, 1.0);
    EXPECT_TRUE(at::equal(one.loss, other.loss));
    EXPECT_TRUE(at::equal(one.d.q_BSID, other.d.q_BSID));
    EXPECT_TRUE(at::equal(one.d.k_BND, other.d.k_BND));
    EXPECT_TRUE(at::equal(one.d.weight_BSI, other.d.weight_BSI));
  }
  at::set_num_threads(2);
}

TEST_F(IndexerTest, NothingIsDoneForNothing) {
  std::mt19937_64 generator(7);
  for (const Shape& shape : {Shape{0, 5, 2, 3, 1, 2}, Shape{2, 0, 2, 3, 1, 2}}) {
    const Case c{shape, {.top_k = 4}, {}};
    const Inputs inputs = random_inputs(shape, at::kFloat, generator);
    EXPECT_EQ(select(inputs, c).numel(), 0);
    EXPECT_EQ(loss_of(inputs, c, 1.0).loss.numel(), 0);
  }
}

}  // namespace
}  // namespace primus
