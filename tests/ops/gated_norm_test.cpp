#include "ops/gated_norm/gated_norm.hpp"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>
#include <gtest/gtest.h>

#include "support/tensors.hpp"

namespace primus {
namespace {

using at::Tensor;
using namespace primus::test;

constexpr double kEpsilon = 1e-5;

/// Heads of a fused projection: a part of a wider, poisoned tensor.
Tensor part_of_wider(const Tensor& values) {
  Tensor wide = poisoned({values.size(0), values.size(1) + 2, values.size(2)}, values.scalar_type());
  Tensor view = wide.narrow(1, 2, values.size(1));
  view.copy_(values);
  return view;
}

struct Output {
  Tensor y, dx, dgate, dweight;
};

/// The weight's gradient begins at one: it is added to.
Output run(const Tensor& dy, const Tensor& x, const Tensor& gate, const ops::GatedNorm& norm) {
  const auto like = [](const Tensor& t) { return part_of_wider(poisoned(t.sizes().vec(), t.scalar_type())); };
  Output out{like(x), like(x), like(gate),
             at::ones({x.size(2)}, x.options().dtype(ops::accumulator_type(x.scalar_type())))};
  ops::gated_norm_forward(x, gate, norm, out.y);
  ops::gated_norm_backward(dy, x, gate, norm, out.dx, out.dgate, out.dweight);
  return out;
}

Tensor reference(const Tensor& x, const Tensor& gate, const Tensor& weight, ops::NormGate kind) {
  const Tensor normed = x * (x.pow(2).mean(-1, true) + kEpsilon).rsqrt() * weight;
  return normed * (kind == ops::NormGate::kSilu ? at::silu(gate) : at::sigmoid(gate));
}

TEST(GatedNormTest, MatchesAutogradAndFiniteDifferences) {
  std::mt19937_64 generator(1);
  for (const auto& [tokens, heads, width] : {std::tuple{1, 1, 1}, {5, 3, 7}, {300, 4, 16}, {33, 2, 129}}) {
    for (const ops::NormGate kind : {ops::NormGate::kSilu, ops::NormGate::kSigmoid}) {
      for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
        SCOPED_TRACE(fmt::format("T {} A {} V {} {}", tokens, heads, width, c10::toString(dtype)));
        const std::vector<std::int64_t> shape = {tokens, heads, width};
        const Tensor x = part_of_wider(random_normal(shape, dtype, generator));
        const Tensor gate = part_of_wider(random_normal(shape, dtype, generator, 2.0));
        const Tensor dy = part_of_wider(random_normal(shape, dtype, generator));
        const ops::GatedNorm norm{random_normal({width}, dtype, generator), kind, kEpsilon};
        const Output out = run(dy, x, gate, norm);
        const Tensor x64 = leaf64(x);
        const Tensor gate64 = leaf64(gate);
        const Tensor weight64 = leaf64(norm.weight_V);
        const Tensor y64 = reference(x64, gate64, weight64, kind);
        y64.backward(dy.to(at::kDouble));
        EXPECT_LE(relative_error(out.y, y64), tolerance(dtype));
        // Of one element the norm takes the length away: what is left is rounding, or epsilon's share.
        if (width > 1) {
          EXPECT_LE(relative_error(out.dx, x64.grad()), tolerance(dtype));
        }
        EXPECT_LE(relative_error(out.dgate, gate64.grad()), tolerance(dtype));
        EXPECT_LE(relative_error(out.dweight, weight64.grad() + 1), tolerance(dtype));
        Tensor in_place = dy.clone();
        Tensor dgate = poisoned(shape, dtype);
        Tensor dweight = at::ones({width}, out.dweight.options());
        ops::gated_norm_backward(in_place, x, gate, norm, in_place, dgate, dweight);
        EXPECT_TRUE(at::equal(in_place, out.dx));
        if (dtype != at::kDouble || tokens > 5) continue;
        const auto loss = [&](const Tensor& point) {
          Tensor y = poisoned(shape, dtype);
          ops::gated_norm_forward(point, gate, norm, y);
          return y.mul(dy).sum().item<double>();
        };
        EXPECT_LE(relative_error(out.dx, finite_difference(loss, x.contiguous())), 1e-4);
      }
    }
  }
}

TEST(GatedNormTest, TheSameBitsWithOneThread) {
  std::mt19937_64 generator(2);
  const Tensor x = random_normal({700, 3, 20}, at::kFloat, generator);
  const Tensor gate = random_normal({700, 3, 20}, at::kFloat, generator);
  const Tensor dy = random_normal({700, 3, 20}, at::kFloat, generator);
  const ops::GatedNorm norm{random_normal({20}, at::kFloat, generator), ops::NormGate::kSilu, kEpsilon};
  const Output two = run(dy, x, gate, norm);
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const Output one = run(dy, x, gate, norm);
  at::set_num_threads(threads);
  EXPECT_TRUE(at::equal(one.dx, two.dx));
  EXPECT_TRUE(at::equal(one.dweight, two.dweight));
}

TEST(GatedNormTest, RefusesShapesThatDoNotAgree) {
  const Tensor x = at::zeros({2, 3, 4}, at::kFloat);
  Tensor y = at::zeros({2, 3, 5}, at::kFloat);
  const ops::GatedNorm norm{at::ones({4}, at::kFloat), ops::NormGate::kSilu, kEpsilon};
  EXPECT_THROW(ops::gated_norm_forward(x, x, norm, y), InternalError);
  EXPECT_THROW(ops::gated_norm_forward(x, y, norm, y), InternalError);
  EXPECT_THROW(ops::gated_norm_forward(y, y, norm, y), InternalError);
}

}  // namespace
}  // namespace primus
