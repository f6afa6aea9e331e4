#include "ops/short_conv/short_conv.hpp"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/stack.h>
#include <gtest/gtest.h>

#include "support/tensors.hpp"

namespace primus {
namespace {

using at::Tensor;
using namespace primus::test;

enum class Around { kGates, kSilu };

struct Shape {
  std::int64_t sequences, length, channels, taps;
  bool has_bias, has_documents;
};

// Awkward ones: a single token, fewer tokens than taps, channels and tokens around the op's blocks of 64.
constexpr Shape kShapes[] = {{1, 1, 1, 1, false, false},  {2, 1, 5, 4, true, false},     {1, 2, 3, 7, true, true},
                             {2, 7, 9, 3, true, true},    {1, 64, 64, 4, false, true},   {2, 65, 65, 3, true, true},
                             {1, 131, 70, 4, true, true}, {3, 33, 129, 2, false, false}, {1, 80, 3, 70, true, true}};

struct Case {
  Tensor in, dy, weight, bias;
  ops::ShortConv conv;
};

/// The first token that each one sees: documents of random lengths.
Tensor random_documents(const Shape& shape, std::mt19937_64& generator) {
  Tensor first = at::empty({shape.sequences, shape.length}, at::kInt);
  for (std::int64_t b = 0; b < shape.sequences; ++b) {
    std::int32_t begin = 0;
    for (std::int64_t s = 0; s < shape.length; ++s) {
      if (std::uniform_int_distribution<int>(0, 5)(generator) == 0) begin = static_cast<std::int32_t>(s);
      first[b][s] = begin;
    }
  }
  return first;
}

Case random_case(const Shape& shape, Around around, at::ScalarType dtype, std::mt19937_64& generator) {
  const std::int64_t tokens = shape.sequences * shape.length;
  Case result;
  const std::int64_t width = (around == Around::kGates ? 3 : 1) * shape.channels;
  result.in = with_row_stride(random_normal({tokens, width}, dtype, generator), 3);
  result.dy = with_row_stride(random_normal({tokens, shape.channels}, dtype, generator), 5);
  result.weight = random_normal({shape.channels, 1, shape.taps}, dtype, generator);
  if (shape.has_bias) result.bias = random_normal({shape.channels}, dtype, generator);
  result.conv = {.weight_C1K = result.weight, .bias_C = result.bias, .seq_length = shape.length, .first_key_BS = {}};
  if (shape.has_documents) result.conv.first_key_BS = random_documents(shape, generator);
  return result;
}

/// Tap by tap in plain formulas, for autograd.
Tensor reference(const Tensor& in, const Tensor& weight, const Tensor& bias, const Case& c, Around around) {
  const std::int64_t channels = weight.size(0);
  const std::int64_t taps = weight.size(2);
  const std::int64_t length = c.conv.seq_length;
  const Tensor x = around == Around::kSilu ? in : in.narrow(1, 0, channels) * in.narrow(1, 2 * channels, channels);
  std::vector<Tensor> rows;
  for (std::int64_t t = 0; t < in.size(0); ++t) {
    const std::int64_t s = t % length;
    const std::int64_t first =
        c.conv.first_key_BS.defined() ? c.conv.first_key_BS.flatten()[t].item<std::int32_t>() : 0;
    Tensor z = bias.defined() ? bias.clone() : at::zeros({channels}, at::kDouble);
    for (std::int64_t back = 0; back < taps && s - back >= first; ++back) {
      z = z + weight.select(2, taps - 1 - back).select(1, 0) * x[t - back];
    }
    rows.push_back(z);
  }
  const Tensor z = at::stack(rows);
  return around == Around::kSilu ? at::silu(z) : in.narrow(1, channels, channels) * z;
}

struct Output {
  Tensor y, din;
  ops::ShortConvGradient gradient;
};

void forward(const Case& c, Around around, const Tensor& in, Tensor& y) {
  around == Around::kGates ? ops::gated_conv_forward(in, c.conv, y) : ops::silu_conv_forward(in, c.conv, y);
}

/// Gradients begin at one: they are added to.
Output run(const Case& c, Around around) {
  const at::ScalarType dtype = c.in.scalar_type();
  const auto sums = c.weight.options().dtype(ops::accumulator_type(dtype));
  Output out{.y = poisoned({c.dy.size(0), c.dy.size(1)}, dtype), .din = poisoned({c.in.size(0), c.in.size(1)}, dtype)};
  out.gradient = {at::ones(c.weight.sizes(), sums), c.bias.defined() ? at::ones(c.bias.sizes(), sums) : Tensor()};
  forward(c, around, c.in, out.y);
  if (around == Around::kGates) {
    ops::gated_conv_backward(c.dy, c.in, c.conv, out.din, out.gradient);
  } else {
    ops::silu_conv_backward(c.dy, c.in, c.conv, out.din, out.gradient);
  }
  return out;
}

void expect_matches_autograd(const Case& c, Around around) {
  const at::ScalarType dtype = c.in.scalar_type();
  const Output out = run(c, around);
  const Tensor in64 = leaf64(c.in);
  const Tensor weight64 = leaf64(c.weight);
  const Tensor bias64 = c.bias.defined() ? leaf64(c.bias) : Tensor();
  const Tensor y64 = reference(in64, weight64, bias64, c, around);
  y64.backward(c.dy.to(at::kDouble));
  EXPECT_LE(relative_error(out.y, y64), tolerance(dtype));
  EXPECT_LE(relative_error(out.din, in64.grad()), tolerance(dtype));
  EXPECT_LE(relative_error(out.gradient.weight_C1K, weight64.grad() + 1), tolerance(dtype));
  if (!c.bias.defined()) return;
  EXPECT_LE(relative_error(out.gradient.bias_C, bias64.grad() + 1), tolerance(dtype));
}

TEST(ShortConvTest, MatchesAutograd) {
  std::mt19937_64 generator(1);
  for (const Shape& shape : kShapes) {
    for (const Around around : {Around::kGates, Around::kSilu}) {
      for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
        SCOPED_TRACE(fmt::format("B {} S {} C {} K {} {} {}", shape.sequences, shape.length, shape.channels, shape.taps,
                                 around == Around::kGates ? "gates" : "silu", c10::toString(dtype)));
        expect_matches_autograd(random_case(shape, around, dtype, generator), around);
      }
    }
  }
}

TEST(ShortConvTest, MatchesFiniteDifferences) {
  std::mt19937_64 generator(2);
  for (const Around around : {Around::kGates, Around::kSilu}) {
    const Case c = random_case({2, 6, 3, 4, true, true}, around, at::kDouble, generator);
    const auto loss = [&](const Tensor& point) {
      Tensor y = poisoned({c.dy.size(0), c.dy.size(1)}, at::kDouble);
      forward(c, around, point, y);
      return y.mul(c.dy).sum().item<double>();
    };
    EXPECT_LE(relative_error(run(c, around).din, finite_difference(loss, c.in.contiguous())), 1e-7);
  }
}

TEST(ShortConvTest, TheSameBitsWithOneThreadAndInPlace) {
  std::mt19937_64 generator(3);
  for (const Around around : {Around::kGates, Around::kSilu}) {
    const Case c = random_case({2, 150, 200, 4, true, true}, around, at::kFloat, generator);
    const Output two = run(c, around);
    const int threads = at::get_num_threads();
    at::set_num_threads(1);
    const Output one = run(c, around);
    at::set_num_threads(threads);
    EXPECT_TRUE(at::equal(one.y, two.y));
    EXPECT_TRUE(at::equal(one.din, two.din));
    EXPECT_TRUE(at::equal(one.gradient.weight_C1K, two.gradient.weight_C1K));
    if (around == Around::kGates) continue;
    Case in_place = c;
    Tensor dy = c.dy.clone();
    ops::ShortConvGradient gradient = one.gradient;
    ops::silu_conv_backward(dy, c.in, c.conv, dy, gradient);
    EXPECT_TRUE(at::equal(dy, two.din));
  }
}

// A document in a packed sequence is convolved as if it stood alone.
TEST(ShortConvTest, DocumentsAreApart) {
  std::mt19937_64 generator(4);
  Case whole = random_case({1, 12, 5, 4, true, false}, Around::kSilu, at::kFloat, generator);
  Tensor first = at::zeros({1, 12}, at::kInt);
  first.narrow(1, 7, 5).fill_(7);
  whole.conv.first_key_BS = first;
  const Output packed = run(whole, Around::kSilu);
  for (const auto& [begin, length] : {std::pair{0, 7}, {7, 5}}) {
    Case alone = whole;
    alone.in = whole.in.narrow(0, begin, length);
    alone.dy = whole.dy.narrow(0, begin, length);
    alone.conv.first_key_BS = Tensor();
    alone.conv.seq_length = length;
    const Output out = run(alone, Around::kSilu);
    EXPECT_TRUE(at::equal(out.y, packed.y.narrow(0, begin, length)));
    EXPECT_TRUE(at::equal(out.din, packed.din.narrow(0, begin, length)));
  }
}

TEST(ShortConvTest, RefusesShapesThatDoNotAgree) {
  std::mt19937_64 generator(5);
  const Case c = random_case({2, 6, 3, 4, true, false}, Around::kSilu, at::kFloat, generator);
  Tensor y = at::zeros({12, 4}, at::kFloat);
  EXPECT_THROW(ops::silu_conv_forward(c.in, c.conv, y), InternalError);
  Case odd = c;
  odd.conv.seq_length = 5;
  Tensor fitting = at::zeros({12, 3}, at::kFloat);
  EXPECT_THROW(ops::silu_conv_forward(odd.in, odd.conv, fitting), InternalError);
  odd = c;
  odd.conv.bias_C = at::zeros({4}, at::kFloat);
  EXPECT_THROW(ops::silu_conv_forward(odd.in, odd.conv, fitting), InternalError);
  EXPECT_THROW(ops::gated_conv_forward(c.in, c.conv, fitting), InternalError);
}

}  // namespace
}  // namespace primus
