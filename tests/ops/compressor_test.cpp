#include "ops/compressor/compressor.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "ops/windows.hpp"

namespace primus {
namespace {

using at::Tensor;
using ops::WindowOverlap;
using namespace primus::test;

struct Case {
  std::int64_t batch, sequence, size;
  ops::Windowing windowing;
  WindowOverlap overlap;

  std::int64_t width() const { return overlap == WindowOverlap::kPrevious ? 2 * size : size; }
  std::int64_t capacity() const { return sequence / windowing.ratio; }
};

/// Sequences shorter than a window, of just one, with a rest; whole and packed; both kinds.
std::vector<Case> cases(std::mt19937_64& generator) {
  std::vector<Case> all;
  for (const auto& [batch, sequence, ratio, size] : std::vector<std::array<std::int64_t, 4>>{{1, 1, 1, 1},
                                                                                             {2, 3, 4, 3},
                                                                                             {1, 4, 4, 5},
                                                                                             {2, 19, 4, 7},
                                                                                             {3, 41, 8, 6},
                                                                                             {1, 130, 16, 33},
                                                                                             {2, 6, 1, 4},
                                                                                             {2, 77, 3, 16}}) {
    for (const WindowOverlap overlap : {WindowOverlap::kNone, WindowOverlap::kPrevious}) {
      all.push_back({batch, sequence, size, {ratio}, overlap});
      all.push_back(
          {batch, sequence, size, {ratio, random_documents(batch, sequence, 4 * ratio + 1, generator)}, overlap});
    }
  }
  return all;
}

ops::CompressorInput random_input(const Case& c, at::ScalarType dtype, std::mt19937_64& generator) {
  return {random_normal({c.batch, c.sequence, c.width()}, dtype, generator),
          random_normal({c.batch, c.sequence, c.width()}, dtype, generator),
          random_normal({c.windowing.ratio, c.width()}, ops::accumulator_type(dtype), generator)};
}

/// Window by window, from tensors that autograd follows.
Tensor reference(const Case& c, const Tensor& key, const Tensor& gate, const Tensor& bias) {
  const std::int64_t ratio = c.windowing.ratio;
  std::vector<Tensor> sequences;
  for (std::int64_t b = 0; b < c.batch; ++b) {
    std::vector<Tensor> rows;
    const std::vector<Entry> entries = entries_of(c.windowing, b, c.sequence);
    for (const Entry& entry : entries) {
      const auto part = [&](const Tensor& x, std::int64_t token, std::int64_t column) {
        return x[b].narrow(0, token, ratio).narrow(1, column, c.size);
      };
      const std::int64_t own = c.width() - c.size;
      Tensor keys = part(key, entry.token, own);
      Tensor logits = part(gate, entry.token, own) + bias.narrow(1, own, c.size);
      if (c.overlap == WindowOverlap::kPrevious && entry.token > entry.document) {
        keys = at::cat({part(key, entry.token - ratio, 0), keys});
        logits = at::cat({part(gate, entry.token - ratio, 0) + bias.narrow(1, 0, c.size), logits});
      }
      rows.push_back((logits.softmax(0) * keys).sum(0));
    }
    while (std::ssize(rows) < c.capacity()) rows.push_back(at::zeros({c.size}, at::kDouble));
    sequences.push_back(rows.empty() ? at::zeros({0, c.size}, at::kDouble) : at::stack(rows));
  }
  return at::stack(sequences);
}

Tensor forward(const Case& c, const ops::CompressorInput& in) {
  Tensor entry = poisoned({c.batch, c.capacity(), c.size}, in.key_BSE.scalar_type());
  ops::compressor_forward(in, c.windowing, c.overlap, entry);
  return entry;
}

ops::CompressorInput backward(const Case& c, const Tensor& dentry, const ops::CompressorInput& in) {
  const at::ScalarType dtype = in.key_BSE.scalar_type();
  ops::CompressorInput gradient{poisoned({c.batch, c.sequence, c.width()}, dtype),
                                poisoned({c.batch, c.sequence, c.width()}, dtype), at::ones_like(in.bias_RE)};
  ops::compressor_backward(dentry, in, c.windowing, c.overlap, gradient);
  return gradient;
}

TEST(CompressorTest, EntriesAndGradientsMatchAutograd) {
  std::mt19937_64 generator(1);
  for (const Case& c : cases(generator)) {
    for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
      SCOPED_TRACE(fmt::format("S {} R {} {}", c.sequence, c.windowing.ratio, c10::toString(dtype)));
      const ops::CompressorInput in = random_input(c, dtype, generator);
      const Tensor key = leaf64(in.key_BSE);
      const Tensor gate = leaf64(in.gate_BSE);
      const Tensor bias = leaf64(in.bias_RE);
      const Tensor expected = reference(c, key, gate, bias);
      const Tensor entry = forward(c, in);
      EXPECT_LE(relative_error(entry, expected), tolerance(dtype));
      if (!expected.requires_grad()) continue;  // no window is whole
      // Rows that are no entry must not be read.
      Tensor dentry = random_normal({c.batch, c.capacity(), c.size}, dtype, generator);
      (expected * dentry.to(at::kDouble)).sum().backward();
      for (std::int64_t b = 0; b < c.batch; ++b) {
        const auto num = std::ssize(entries_of(c.windowing, b, c.sequence));
        dentry[b].narrow(0, num, c.capacity() - num).fill_(NAN);
      }
      const ops::CompressorInput gradient = backward(c, dentry, in);
      EXPECT_LE(relative_error(gradient.key_BSE, key.grad()), tolerance(dtype));
      // Of a window of one token the weight is 1 whatever the gate.
      const double size = gate.grad().norm().item<double>();
      EXPECT_LE(gradient.gate_BSE.to(at::kDouble).sub(gate.grad()).norm().item<double>(),
                tolerance(dtype) * std::max(size, 1e-2));
      EXPECT_LE(gradient.bias_RE.to(at::kDouble).sub(1.0).sub(bias.grad()).norm().item<double>(),
                tolerance(dtype) * std::max(bias.grad().norm().item<double>(), 1.0));
    }
  }
}

TEST(CompressorTest, GradientsMatchFiniteDifferences) {
  std::mt19937_64 generator(2);
  const Case c{1, 9, 2, {2, random_documents(1, 9, 7, generator)}, WindowOverlap::kPrevious};
  const ops::CompressorInput in = random_input(c, at::kDouble, generator);
  const Tensor dentry = random_normal({c.batch, c.capacity(), c.size}, at::kDouble, generator);
  const ops::CompressorInput gradient = backward(c, dentry, in);
  const auto loss = [&](const ops::CompressorInput& point) {
    return (forward(c, point) * dentry).sum().item<double>();
  };
  const auto of_key = [&](const Tensor& x) { return loss({x, in.gate_BSE, in.bias_RE}); };
  const auto of_gate = [&](const Tensor& x) { return loss({in.key_BSE, x, in.bias_RE}); };
  const auto of_bias = [&](const Tensor& x) { return loss({in.key_BSE, in.gate_BSE, x}); };
  EXPECT_LE(relative_error(gradient.key_BSE, finite_difference(of_key, in.key_BSE)), 1e-7);
  EXPECT_LE(relative_error(gradient.gate_BSE, finite_difference(of_gate, in.gate_BSE)), 1e-7);
  EXPECT_LE(relative_error(gradient.bias_RE.sub(1.0), finite_difference(of_bias, in.bias_RE)), 1e-7);
}

/// Weights that stand apart in wider rows, as halves of one projection.
TEST(CompressorTest, ReadsAndWritesHalvesOfWiderRows) {
  std::mt19937_64 generator(3);
  const Case c{2, 23, 5, {4}, WindowOverlap::kPrevious};
  const ops::CompressorInput in = random_input(c, at::kFloat, generator);
  const Tensor fused = at::cat({in.key_BSE, in.gate_BSE}, 2);
  const ops::CompressorInput halves{fused.narrow(2, 0, 10), fused.narrow(2, 10, 10), in.bias_RE};
  EXPECT_TRUE(at::equal(forward(c, in), forward(c, halves)));
  const Tensor dentry = random_normal({2, 5, 5}, at::kFloat, generator);
  const ops::CompressorInput expected = backward(c, dentry, in);
  Tensor dfused = poisoned({2, 23, 20}, at::kFloat);
  ops::CompressorInput gradient{dfused.narrow(2, 0, 10), dfused.narrow(2, 10, 10), at::ones_like(in.bias_RE)};
  ops::compressor_backward(dentry, halves, c.windowing, c.overlap, gradient);
  EXPECT_TRUE(at::equal(dfused, at::cat({expected.key_BSE, expected.gate_BSE}, 2)));
}

TEST(CompressorTest, SameBitsWithAnyNumberOfThreads) {
  std::mt19937_64 generator(4);
  const Case c{2, 300, 24, {4}, WindowOverlap::kPrevious};
  const ops::CompressorInput in = random_input(c, at::kFloat, generator);
  const Tensor dentry = random_normal({2, 75, 24}, at::kFloat, generator);
  at::set_num_threads(1);
  const Tensor entry = forward(c, in);
  const ops::CompressorInput one = backward(c, dentry, in);
  for (const int threads : {2, 3}) {
    at::set_num_threads(threads);
    EXPECT_TRUE(at::equal(entry, forward(c, in)));
    const ops::CompressorInput other = backward(c, dentry, in);
    EXPECT_TRUE(at::equal(one.key_BSE, other.key_BSE));
    EXPECT_TRUE(at::equal(one.gate_BSE, other.gate_BSE));
    EXPECT_TRUE(at::equal(one.bias_RE, other.bias_RE));
  }
  at::set_num_threads(2);
}

}  // namespace
}  // namespace primus
