#include "ops/attention/attention.hpp"

#include <ATen/ops/logsumexp.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/softmax.h>
#include <gtest/gtest.h>

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

struct Expected {
  Tensor context, lse;
};

// An explicit masked softmax, in fp64.
Expected attention64(const Tensor& q, const Tensor& k, const Tensor& v, double scale, const Shape& shape) {
  const std::int64_t repeats = shape.heads / shape.groups;
  const Tensor queries = q.transpose(1, 2);
  const Tensor keys = k.transpose(1, 2).repeat_interleave(repeats, 1);
  const Tensor values = v.transpose(1, 2).repeat_interleave(repeats, 1);
  const Tensor masked = at::ones({shape.sequence, shape.sequence}, at::kBool).triu(1);
  const Tensor scores = at::matmul(queries, keys.transpose(2, 3)).mul(scale).masked_fill(masked, -INFINITY);
  return {at::matmul(at::softmax(scores, -1), values).transpose(1, 2), at::logsumexp(scores, {-1})};
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
  Tensor context, lse, dq, dk, dv;
};

Outputs run(const Inputs& inputs, double scale, Layout layout) {
  const at::ScalarType dtype = inputs.q.scalar_type();
  const auto output = [&](const Tensor& like) { return layout(poisoned(like.sizes().vec(), dtype)); };
  const Inputs in{layout(inputs.q), layout(inputs.k), layout(inputs.v), layout(inputs.dcontext)};
  Outputs out{output(in.dcontext), poisoned({in.q.size(0), in.q.size(2), in.q.size(1)}, ops::accumulator_type(dtype)),
              output(in.q), output(in.k), output(in.v)};
  ops::attention_forward(in.q, in.k, in.v, scale, out.context, out.lse);
  ops::attention_backward(in.dcontext, in.q, in.k, in.v, out.context, out.lse, scale, out.dq, out.dk, out.dv);
  return out;
}

class AttentionTest : public ::testing::Test {
 protected:
  void SetUp() override { FLAGS_caffe2_cpu_allocator_do_junk_fill = true; }
  void TearDown() override { FLAGS_caffe2_cpu_allocator_do_junk_fill = false; }

  static void check(const Shape& shape, at::ScalarType dtype, double magnitude, Layout layout, unsigned seed) {
    SCOPED_TRACE(fmt::format("{} magnitude {} seed {}", name_of(shape, dtype), magnitude, seed));
    std::mt19937_64 generator(seed);
    const double scale = 1.0 / std::sqrt(static_cast<double>(shape.query_size));
    const Inputs inputs = random_inputs(shape, dtype, magnitude, generator);
    const Outputs outputs = run(inputs, scale, layout);
    const Tensor q64 = leaf64(inputs.q);
    const Tensor k64 = leaf64(inputs.k);
    const Tensor v64 = leaf64(inputs.v);
    const Expected expected = attention64(q64, k64, v64, scale, shape);
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
    if (shape.sequence == 1) {
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
    const Outputs outputs = run(random_inputs(shape, at::kFloat, magnitude, generator), 0.25, dense);
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
  const Tensor before = run(inputs, 0.2, dense).context.narrow(1, 0, 50).clone();
  inputs.k.narrow(1, 50, 70).fill_(1e3);
  inputs.v.narrow(1, 50, 70).fill_(-1e3);
  EXPECT_TRUE(at::equal(run(inputs, 0.2, dense).context.narrow(1, 0, 50), before));
}

TEST_F(AttentionTest, MatchesFiniteDifferences) {
  const Shape shape{1, 5, 4, 2, 3, 2};
  std::mt19937_64 generator(8);
  const Inputs inputs = random_inputs(shape, at::kDouble, 1.0, generator);
  const auto loss = [&](const Tensor& q, const Tensor& k, const Tensor& v) {
    Tensor context = poisoned({1, 5, 4, 2}, at::kDouble);
    Tensor lse = poisoned({1, 4, 5}, at::kDouble);
    ops::attention_forward(q, k, v, 0.7, context, lse);
    return context.mul(inputs.dcontext).sum().item<double>();
  };
  const Outputs outputs = run(inputs, 0.7, dense);
  const auto [q, k, v, dcontext] = inputs;
  const Tensor dq = finite_difference([&](const Tensor& x) { return loss(x, inputs.k, inputs.v); }, q);
  const Tensor dk = finite_difference([&](const Tensor& x) { return loss(inputs.q, x, inputs.v); }, k);
  const Tensor dv = finite_difference([&](const Tensor& x) { return loss(inputs.q, inputs.k, x); }, v);
  EXPECT_LE(relative_error(outputs.dq, dq), 1e-7);
  EXPECT_LE(relative_error(outputs.dk, dk), 1e-7);
  EXPECT_LE(relative_error(outputs.dv, dv), 1e-7);
}

TEST_F(AttentionTest, SameBitsWithAnyNumberOfThreads) {
  // One pair, cut into slices of keys; several heads to a pair; more pairs than slices are made for.
  for (const Shape& shape : {Shape{1, 700, 1, 1, 40, 24}, Shape{1, 300, 8, 2, 32, 16}, Shape{5, 130, 4, 4, 24, 16}}) {
    std::mt19937_64 generator(9);
    const Inputs inputs = random_inputs(shape, at::kFloat, 1.0, generator);
    at::set_num_threads(1);
    const Outputs one = run(inputs, 0.2, dense);
    for (const int threads : {2, 3}) {
      at::set_num_threads(threads);
      const Outputs many = run(inputs, 0.2, dense);
      EXPECT_TRUE(at::equal(one.context, many.context) && at::equal(one.lse, many.lse));
      EXPECT_TRUE(at::equal(one.dq, many.dq) && at::equal(one.dk, many.dk) && at::equal(one.dv, many.dv));
    }
    at::set_num_threads(2);
  }
}

TEST_F(AttentionTest, ANanIsNotHidden) {
  const Shape shape{1, 40, 1, 1, 8, 8};
  std::mt19937_64 generator(10);
  Inputs inputs = random_inputs(shape, at::kFloat, 1.0, generator);
  inputs.k[0][3][0][0].fill_(NAN);
  const Outputs outputs = run(inputs, 0.2, dense);
  EXPECT_FALSE(outputs.context.narrow(1, 0, 3).isnan().any().item<bool>());
  EXPECT_TRUE(outputs.context.narrow(1, 3, 37).isnan().all().item<bool>());
}

TEST_F(AttentionTest, RefusesShapesThatDoNotAgree) {
  std::mt19937_64 generator(11);
  const Shape shape{1, 4, 3, 2, 8, 8};
  EXPECT_THROW(run(random_inputs(shape, at::kFloat, 1.0, generator), 0.2, dense), InternalError);
  Inputs mixed = random_inputs({1, 4, 2, 2, 8, 8}, at::kFloat, 1.0, generator);
  mixed.k = mixed.k.to(at::kBFloat16);
  EXPECT_THROW(run(mixed, 0.2, dense), InternalError);
}

}  // namespace
}  // namespace primus
