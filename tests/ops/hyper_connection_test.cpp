// Hyper-connections against autograd of the formulas in the contract, and against transformers' DeepSeek-V4 (golden).
#include "ops/hyper_connection/hyper_connection.hpp"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/einsum.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/softmax.h>
#include <gtest/gtest.h>

#include "data/golden_file.hpp"
#include "model/op_scratch.hpp"
#include "ops/allocator.hpp"
#include "support/tensors.hpp"

namespace primus {
namespace {

using at::Tensor;
using namespace primus::test;

struct Shape {
  std::int64_t tokens, streams, hidden;
  int iterations;
};

// No token, one, one stream, blocks of tokens and columns that do not come out even, more columns than a block.
constexpr Shape kShapes[] = {{0, 2, 3, 2},   {1, 1, 1, 1},   {1, 4, 9, 20},   {16, 2, 64, 0},
                             {37, 3, 43, 3}, {5, 1, 130, 2}, {300, 4, 33, 2}, {17, 8, 150, 4}};

std::int64_t logits_of(const Shape& shape, bool writes) {
  return writes ? model::HyperCuts::num_logits(shape.streams) : shape.streams;
}

ops::HyperConnection random_connection(const Shape& shape, bool writes, at::ScalarType dtype,
                                       std::mt19937_64& generator) {
  const at::ScalarType sums = ops::accumulator_type(dtype);
  const std::int64_t logits = logits_of(shape, writes);
  return {.num_streams = shape.streams,
          .weight_MC = random_normal({logits, shape.streams * shape.hidden}, sums, generator, 0.4),
          .bias_M = random_normal({logits}, sums, generator),
          .scale_G = random_normal({writes ? 3 : 1}, sums, generator),
          .norm_epsilon = 1e-3,
          .norm_epsilon_at = generator() % 2 == 0 ? ops::RootEpsilon::kInside : ops::RootEpsilon::kOutside,
          .epsilon = 1e-2,
          .sinkhorn_iterations = shape.iterations};
}

/// Parameters and inputs in fp64 under autograd, and what the formulas make of them.
struct Reference {
  Tensor x, y, weight, bias, scale, z, out;
  Reference(const Tensor& x_TC, const Tensor& y_TH, const ops::HyperConnection& hyper)
      : x(leaf64(x_TC)), weight(leaf64(hyper.weight_MC)), bias(leaf64(hyper.bias_M)), scale(leaf64(hyper.scale_G)) {
    const std::int64_t n = hyper.num_streams;
    const bool is_inside = hyper.norm_epsilon_at == ops::RootEpsilon::kInside;
    const Tensor mean = x.pow(2).mean(-1, true);
    const Tensor root = is_inside ? (mean + hyper.norm_epsilon).sqrt() : mean.sqrt() + hyper.norm_epsilon;
    const Tensor mix = (x / root).matmul(weight.t());
    const auto logit = [&](std::int64_t first, std::int64_t count, std::int64_t group) {
      return mix.narrow(1, first, count) * scale.select(0, group) + bias.narrow(0, first, count);
    };
    const Tensor streams = x.unflatten(1, {n, x.size(1) / n});
    z = ((at::sigmoid(logit(0, n, 0)) + hyper.epsilon).unsqueeze(-1) * streams).sum(1);
    if (!y_TH.defined()) return;
    y = leaf64(y_TH);
    Tensor exchange = at::softmax(logit(2 * n, n * n, 2).unflatten(1, {n, n}), -1) + hyper.epsilon;
    for (int i = 0; i < hyper.sinkhorn_iterations; ++i) {
      if (i > 0) exchange = exchange / (exchange.sum(2, true) + hyper.epsilon);
      exchange = exchange / (exchange.sum(1, true) + hyper.epsilon);
    }
    out = ((2 * at::sigmoid(logit(n, n, 1))).unsqueeze(-1) * y.unsqueeze(1) +
           at::einsum("tjk,tjh->tkh", {exchange, streams}))
              .flatten(1);
  }
};

struct Output {
  Tensor mix, z, out, dx, dy;
  ops::HyperConnectionGradient gradient;  // begins at one: it is added to
};

Output run(const Tensor& x, const Tensor& y, const Tensor& dz, const Tensor& dout, const ops::HyperConnection& hyper) {
  const auto like = [](const Tensor& t) { return poisoned(t.sizes().vec(), t.scalar_type()); };
  Output result{
      .mix = poisoned({x.size(0), hyper.bias_M.numel()}, hyper.bias_M.scalar_type()),
      .z = like(dz),
      .out = {},
      .dx = dout.defined() ? dout.clone() : at::zeros_like(x),
      .dy = {},
      .gradient = {at::ones_like(hyper.weight_MC), at::ones_like(hyper.bias_M), at::ones_like(hyper.scale_G)}};
  ops::hyper_mix(x, hyper, result.mix);
  ops::hyper_read_forward(x, result.mix, hyper, result.z);
  Tensor dweight = like(result.mix);
  if (y.defined()) {
    result.out = like(x);
    result.dy = like(y);
    ops::hyper_write_forward(x, y, result.mix, hyper, result.out);
    ops::hyper_write_backward(x, y, result.mix, hyper, result.dx, result.dy, dweight);
  }
  ops::hyper_read_backward(dz, x, result.mix, hyper, dweight, result.dx, result.gradient);
  return result;
}

void expect_matches(const Shape& shape, bool writes, at::ScalarType dtype, std::mt19937_64& generator) {
  SCOPED_TRACE(fmt::format("T {} N {} H {} iterations {} {} {}", shape.tokens, shape.streams, shape.hidden,
                           shape.iterations, writes ? "writes" : "reads", c10::toString(dtype)));
  const ops::HyperConnection hyper = random_connection(shape, writes, dtype, generator);
  const auto hidden = [&] { return random_normal({shape.tokens, shape.hidden}, dtype, generator); };
  const auto streams = [&] { return random_normal({shape.tokens, shape.streams * shape.hidden}, dtype, generator); };
  const Tensor x = streams();
  const Tensor dz = hidden();
  const Tensor y = writes ? hidden() : Tensor();
  const Tensor dout = writes ? streams() : Tensor();
  const Output result = run(x, y, dz, dout, hyper);
  const Reference expected(x, y, hyper);
  Tensor loss = (expected.z * dz.to(at::kDouble)).sum();
  if (writes) loss = loss + (expected.out * dout.to(at::kDouble)).sum();
  loss.backward();
  const double bound = tolerance(dtype);
  EXPECT_LE(relative_error(result.z, expected.z), bound);
  EXPECT_LE(relative_error(result.dx, expected.x.grad()), bound);
  EXPECT_LE(relative_error(result.gradient.weight_MC - 1, expected.weight.grad()), 10 * bound);
  if (dtype == at::kDouble) {
    EXPECT_LE(relative_error(result.gradient.bias_M, expected.bias.grad() + 1), bound);
    EXPECT_LE(relative_error(result.gradient.scale_G, expected.scale.grad() + 1), bound);
  } else {
    // A scale's gradient is one sum over tokens and logits, whose terms cancel: it stands beside the biases'.
    EXPECT_LE(relative_error(at::cat({result.gradient.bias_M, result.gradient.scale_G}),
                             at::cat({expected.bias.grad(), expected.scale.grad()}) + 1),
              bound);
  }
  if (!writes) return;
  EXPECT_LE(relative_error(result.out, expected.out), bound);
  EXPECT_LE(relative_error(result.dy, expected.y.grad()), bound);
}

TEST(HyperConnectionTest, MatchesAutograd) {
  std::mt19937_64 generator(1);
  for (const Shape& shape : kShapes) {
    for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
      expect_matches(shape, true, dtype, generator);
    }
  }
}

TEST(HyperConnectionTest, ReadingAloneMatchesAutograd) {
  std::mt19937_64 generator(2);
  for (const Shape& shape : kShapes) {
    for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
      expect_matches(shape, false, dtype, generator);
    }
  }
}

TEST(HyperConnectionTest, MatchesFiniteDifferences) {
  std::mt19937_64 generator(3);
  const Shape shape{3, 3, 4, 2};
  const ops::HyperConnection hyper = random_connection(shape, true, at::kDouble, generator);
  const Tensor x = random_normal({3, 12}, at::kDouble, generator);
  const Tensor y = random_normal({3, 4}, at::kDouble, generator);
  const Tensor dz = random_normal({3, 4}, at::kDouble, generator);
  const Tensor dout = random_normal({3, 12}, at::kDouble, generator);
  const Output result = run(x, y, dz, dout, hyper);
  const auto loss = [&](const Tensor& streams, const ops::HyperConnection& at_point) {
    const Output output = run(streams, y, dz, dout, at_point);
    return (output.z * dz).sum().item<double>() + (output.out * dout).sum().item<double>();
  };
  EXPECT_LE(relative_error(result.dx, finite_difference([&](const Tensor& p) { return loss(p, hyper); }, x)), 1e-6);
  const auto of_parameter = [&](Tensor ops::HyperConnection::*member) {
    return finite_difference(
        [&](const Tensor& point) {
          ops::HyperConnection moved = hyper;
          moved.*member = point;
          return loss(x, moved);
        },
        hyper.*member);
  };
  EXPECT_LE(relative_error(result.gradient.weight_MC - 1, of_parameter(&ops::HyperConnection::weight_MC)), 1e-6);
  EXPECT_LE(relative_error(result.gradient.bias_M - 1, of_parameter(&ops::HyperConnection::bias_M)), 1e-6);
  EXPECT_LE(relative_error(result.gradient.scale_G - 1, of_parameter(&ops::HyperConnection::scale_G)), 1e-6);
}

/// Rows and columns of what the streams exchange add up to one behind many iterations: equal streams stay as they are.
TEST(HyperConnectionTest, EqualStreamsThatNothingIsWrittenToStayAsTheyAre) {
  std::mt19937_64 generator(4);
  const Shape shape{9, 4, 6, 200};
  ops::HyperConnection hyper = random_connection(shape, true, at::kDouble, generator);
  hyper.epsilon = 1e-12;
  const Tensor x = random_normal({9, 6}, at::kDouble, generator).repeat({1, 4});
  const Output result =
      run(x, at::zeros({9, 6}, at::kDouble), at::zeros({9, 6}, at::kDouble), at::zeros_like(x), hyper);
  EXPECT_LE(relative_error(result.out, x), 1e-9);
}

/// Logits far apart: the largest takes all, and nothing overflows.
TEST(HyperConnectionTest, LargeLogitsStayFinite) {
  std::mt19937_64 generator(5);
  const Shape shape{20, 3, 8, 20};
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    ops::HyperConnection hyper = random_connection(shape, true, dtype, generator);
    hyper.bias_M.mul_(200);
    hyper.epsilon = 1e-6;
    const Tensor x = random_normal({20, 24}, dtype, generator, 100.0);
    const Tensor y = random_normal({20, 8}, dtype, generator);
    const Output result = run(x, y, y, x, hyper);
    for (const Tensor& tensor : {result.z, result.out, result.dx, result.dy, result.gradient.weight_MC}) {
      EXPECT_TRUE(tensor.isfinite().all().item<bool>());
    }
  }
}

TEST(HyperConnectionTest, TheSameBitsWithOneThreadAndTheDeclaredScratch) {
  ops::install_allocator();
  std::mt19937_64 generator(6);
  const int threads = at::get_num_threads();
  for (const Shape& shape : {Shape{300, 4, 70, 5}, {5, 2, 600, 3}}) {
    for (const bool writes : {true, false}) {
      const ops::HyperConnection hyper = random_connection(shape, writes, at::kFloat, generator);
      const auto normal = [&](std::int64_t width) {
        return random_normal({shape.tokens, width}, at::kFloat, generator);
      };
      const Tensor x = normal(shape.streams * shape.hidden);
      const Tensor dz = normal(shape.hidden);
      const Tensor y = writes ? normal(shape.hidden) : Tensor();
      const Tensor dout = writes ? normal(shape.streams * shape.hidden) : Tensor();
      const Output two = run(x, y, dz, dout, hyper);
      at::set_num_threads(1);
      ops::reset_peak();
      const Output one = run(x, y, dz, dout, hyper);
      const model::HyperCuts cuts{shape.streams, logits_of(shape, writes),
                                  model::HyperCuts::sinkhorn_steps(shape.iterations)};
      const model::OpScratch scratch;
      const std::int64_t backward = scratch.hyper_backward(shape.tokens, shape.hidden, cuts, DType::kFloat32);
      EXPECT_EQ(ops::memory_report().scratch_peak_bytes, backward);
      ops::reset_peak();
      Tensor out = writes ? at::empty_like(x) : at::empty_like(dz);
      if (writes) {
        ops::hyper_write_forward(x, y, one.mix, hyper, out);
      } else {
        ops::hyper_read_forward(x, one.mix, hyper, out);
      }
      EXPECT_EQ(ops::memory_report().scratch_peak_bytes, scratch.hyper_forward(shape.tokens, cuts, DType::kFloat32));
      at::set_num_threads(threads);
      EXPECT_TRUE(at::equal(one.z, two.z));
      EXPECT_TRUE(at::equal(one.dx, two.dx));
      EXPECT_TRUE(at::equal(one.gradient.weight_MC, two.gradient.weight_MC));
      EXPECT_TRUE(at::equal(one.gradient.bias_M, two.gradient.bias_M));
      if (writes) {
        EXPECT_TRUE(at::equal(one.out, two.out));
      }
    }
  }
}

/// A golden case's numbers, and the chain of connections that it describes.
class GoldenChain {
 public:
  explicit GoldenChain(const data::GoldenCase& golden)
      : golden_(golden),
        tokens_(golden.integer("tokens")),
        streams_(golden.integer("streams")),
        hidden_(golden.integer("hidden")) {}

  Tensor tensor(const std::string& key, std::vector<std::int64_t> shape) const {
    std::vector<double> values;
    for (const std::string& word : golden_.words(key)) values.push_back(std::stod(word));
    return at::tensor(values, at::kDouble).view(shape);
  }
  Tensor hidden(const std::string& key) const { return tensor(key, {tokens_, hidden_}); }
  Tensor streams(const std::string& key) const { return tensor(key, {tokens_, streams_ * hidden_}); }

  ops::HyperConnection connection(const std::string& part) const {
    const Tensor bias = tensor(part + ".base", {-1});
    return {.num_streams = streams_,
            .weight_MC = tensor(part + ".fn", {bias.numel(), streams_ * hidden_}),
            .bias_M = bias,
            .scale_G = tensor(part + ".scale", {-1}),
            .norm_epsilon = std::stod(golden_.words("norm_epsilon").at(0)),
            .epsilon = std::stod(golden_.words("epsilon").at(0)),
            .sinkhorn_iterations = static_cast<int>(golden_.integer("iterations"))};
  }
  void expect_gradient(const std::string& part, const ops::HyperConnectionGradient& gradient) const {
    for (const auto& [key, values] : {std::pair<const char*, const Tensor&>{".fn", gradient.weight_MC},
                                      {".base", gradient.bias_M},
                                      {".scale", gradient.scale_G}}) {
      expect_near(values.flatten(), tensor("d" + part + key, {-1}), part + key);
    }
  }
  /// transformers computes in fp32.
  static void expect_near(const Tensor& a, const Tensor& b, const std::string& what) {
    EXPECT_LE(relative_error(a, b), 5e-6) << what;
  }

 private:
  const data::GoldenCase& golden_;
  std::int64_t tokens_, streams_, hidden_;
};

TEST(HyperConnectionTest, MatchesDeepSeekV4OfTransformers) {
  for (const data::GoldenCase& golden : data::golden_cases("hyper_connection.txt", "")) {
    SCOPED_TRACE(golden.name);
    const GoldenChain chain(golden);
    const ops::HyperConnection first = chain.connection("first");
    const ops::HyperConnection second = chain.connection("second");
    const ops::HyperConnection head = chain.connection("head");
    const auto mix = [](const Tensor& x, const ops::HyperConnection& hyper) {
      Tensor result = poisoned({x.size(0), hyper.bias_M.numel()}, at::kDouble);
      ops::hyper_mix(x, hyper, result);
      return result;
    };
    const auto read = [&](const Tensor& x, const ops::HyperConnection& hyper) {
      Tensor z = poisoned({x.size(0), x.size(1) / hyper.num_streams}, at::kDouble);
      ops::hyper_read_forward(x, mix(x, hyper), hyper, z);
      return z;
    };
    const auto written = [&](const Tensor& x, const Tensor& y, const ops::HyperConnection& hyper) {
      Tensor out = poisoned(x.sizes().vec(), at::kDouble);
      ops::hyper_write_forward(x, y, mix(x, hyper), hyper, out);
      return out;
    };
    const Tensor x = chain.streams("x");
    const Tensor z1 = read(x, first);
    const Tensor middle = written(x, z1.tanh(), first);
    const Tensor z2 = read(middle, second);
    const Tensor out = written(middle, (2 * z2).sin(), second);
    GoldenChain::expect_near(out, chain.streams("out"), "out");
    GoldenChain::expect_near(read(out, head), chain.hidden("z"), "z");

    Tensor gradient = at::zeros_like(out);
    const auto backward = [&](const std::string& part, const Tensor& at_x, const Tensor& y, const Tensor& dz_or_slope,
                              const ops::HyperConnection& hyper) {
      ops::HyperConnectionGradient sums{at::zeros_like(hyper.weight_MC), at::zeros_like(hyper.bias_M),
                                        at::zeros_like(hyper.scale_G)};
      const Tensor mixed = mix(at_x, hyper);
      Tensor dweight = poisoned(mixed.sizes().vec(), at::kDouble);
      Tensor dz = dz_or_slope;
      if (y.defined()) {
        Tensor dy = poisoned(y.sizes().vec(), at::kDouble);
        ops::hyper_write_backward(at_x, y, mixed, hyper, gradient, dy, dweight);
        dz = dy * dz_or_slope;
      }
      ops::hyper_read_backward(dz, at_x, mixed, hyper, dweight, gradient, sums);
      chain.expect_gradient(part, sums);
    };
    backward("head", out, {}, chain.hidden("dz"), head);
    backward("second", middle, (2 * z2).sin(), 2 * (2 * z2).cos(), second);
    backward("first", x, z1.tanh(), 1 - z1.tanh().pow(2), first);
    GoldenChain::expect_near(gradient, chain.streams("dx"), "dx");
  }
}

TEST(HyperConnectionTest, RefusesShapesThatDoNotAgree) {
  std::mt19937_64 generator(7);
  const Shape shape{2, 2, 3, 1};
  const ops::HyperConnection hyper = random_connection(shape, true, at::kFloat, generator);
  const Tensor x = at::zeros({2, 6}, at::kFloat);
  Tensor mix = at::zeros({2, 8}, at::kFloat);
  Tensor narrow_mix = at::zeros({2, 7}, at::kFloat);
  Tensor z = at::zeros({2, 3}, at::kFloat);
  Tensor wide_z = at::zeros({2, 4}, at::kFloat);
  EXPECT_THROW(ops::hyper_mix(x, hyper, narrow_mix), InternalError);
  EXPECT_THROW(ops::hyper_mix(x.to(at::kDouble), hyper, mix), InternalError);
  EXPECT_THROW(ops::hyper_read_forward(x, mix, hyper, wide_z), InternalError);
  const ops::HyperConnection head = random_connection(shape, false, at::kFloat, generator);
  Tensor out = at::zeros_like(x);
  EXPECT_THROW(ops::hyper_write_forward(x, z, at::zeros({2, 2}, at::kFloat), head, out), InternalError);
}

}  // namespace
}  // namespace primus
