#include "ops/output_gate/output_gate.hpp"

#include <ATen/ops/sigmoid.h>
#include <gtest/gtest.h>

#include "support/tensors.hpp"

namespace primus {
namespace {

using at::Tensor;
using namespace primus::test;

// The gates of a fused projection: every other head of a wider, poisoned tensor.
Tensor every_other_head(const Tensor& values) {
  Tensor wide = poisoned({values.size(0), 2 * values.size(1) + 1, values.size(2)}, values.scalar_type());
  Tensor view = wide.narrow(1, 0, 2 * values.size(1)).unflatten(1, {values.size(1), 2}).select(2, 1);
  view.copy_(values);
  return view;
}

TEST(OutputGateTest, MatchesAutogradAndFiniteDifferences) {
  std::mt19937_64 generator(1);
  for (const auto& [tokens, heads, width] : {std::tuple{1, 1, 1}, {5, 3, 7}, {90, 4, 64}, {33, 2, 129}}) {
    for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
      SCOPED_TRACE(fmt::format("T {} A {} V {} {}", tokens, heads, width, c10::toString(dtype)));
      const std::vector<std::int64_t> shape = {tokens, heads, width};
      const Tensor x = random_normal(shape, dtype, generator);
      const Tensor gate = every_other_head(random_normal(shape, dtype, generator, 2.0));
      const Tensor dy = random_normal(shape, dtype, generator);
      Tensor y = poisoned(shape, dtype);
      ops::output_gate_forward(x, gate, y);
      const Tensor x64 = leaf64(x);
      const Tensor gate64 = leaf64(gate);
      const Tensor y64 = x64.mul(at::sigmoid(gate64));
      y64.backward(dy.to(at::kDouble));
      EXPECT_LE(relative_error(y, y64), tolerance(dtype));
      Tensor dx = poisoned(shape, dtype);
      Tensor dgate = every_other_head(poisoned(shape, dtype));
      ops::output_gate_backward(dy, x, gate, dx, dgate);
      EXPECT_LE(relative_error(dx, x64.grad()), tolerance(dtype));
      EXPECT_LE(relative_error(dgate, gate64.grad()), tolerance(dtype));
      Tensor in_place = dy.clone();
      ops::output_gate_backward(in_place, x, gate, in_place, dgate);
      EXPECT_TRUE(at::equal(in_place, dx));
      if (dtype != at::kDouble || tokens > 5) continue;
      const auto loss = [&](const Tensor& point) {
        Tensor out = poisoned(shape, dtype);
        ops::output_gate_forward(x, point, out);
        return out.mul(dy).sum().item<double>();
      };
      EXPECT_LE(relative_error(dgate, finite_difference(loss, gate)), 1e-7);
    }
  }
}

TEST(OutputGateTest, RefusesShapesThatDoNotAgree) {
  const Tensor x = at::zeros({2, 3, 4}, at::kFloat);
  Tensor y = at::zeros({2, 3, 5}, at::kFloat);
  EXPECT_THROW(ops::output_gate_forward(x, x, y), InternalError);
  EXPECT_THROW(ops::output_gate_forward(x, y, y), InternalError);
}

}  // namespace
}  // namespace primus
