#include "ops/rope/rope.hpp"

#include <ATen/ops/stack.h>
#include <gtest/gtest.h>

#include "support/tensors.hpp"

namespace primus {
namespace {

using at::Tensor;
using ops::RopeDirection;
using ops::RopeLayout;
using namespace primus::test;

struct Shape {
  std::int64_t batch, sequence, heads, nope, pairs, value;
  std::int64_t tokens() const { return batch * sequence; }
  std::int64_t rotary() const { return 2 * pairs; }
};

struct Tables {
  Tensor cos, sin;
};

Tables random_tables(const Shape& shape, at::ScalarType dtype, std::mt19937_64& generator) {
  const Tensor angle = random_normal({shape.sequence, shape.pairs}, at::kDouble, generator, 3.0);
  return {angle.cos().to(ops::accumulator_type(dtype)), angle.sin().to(ops::accumulator_type(dtype))};
}

// The rotation written with whole tensors, in fp64: x [T, A, P].
Tensor rotated64(const Tensor& x, const Tables& tables, RopeLayout layout, const Shape& shape) {
  const auto of_tokens = [&](const Tensor& table) {
    return table.to(at::kDouble).repeat({shape.batch, 1}).unsqueeze(1);
  };
  const Tensor cos = of_tokens(tables.cos);
  const Tensor sin = of_tokens(tables.sin);
  if (layout == RopeLayout::kHalves) {
    const Tensor first = x.narrow(2, 0, shape.pairs);
    const Tensor second = x.narrow(2, shape.pairs, shape.pairs);
    return at::cat({first.mul(cos).sub(second.mul(sin)), second.mul(cos).add(first.mul(sin))}, 2);
  }
  const Tensor pairs = x.reshape({x.size(0), x.size(1), shape.pairs, 2});
  const Tensor first = pairs.select(3, 0);
  const Tensor second = pairs.select(3, 1);
  return at::stack({first.mul(cos).sub(second.mul(sin)), second.mul(cos).add(first.mul(sin))}, 3)
      .reshape({x.size(0), x.size(1), shape.rotary()});
}

// [T, A, width] as a view of a wider, poisoned tensor: heads and rows both have gaps.
Tensor with_gaps(const Tensor& values) {
  Tensor wide = poisoned({values.size(0), values.size(1) + 1, values.size(2) + 3}, values.scalar_type());
  Tensor view = wide.narrow(1, 0, values.size(1)).narrow(2, 2, values.size(2));
  view.copy_(values);
  return view;
}

void check_mla(const Shape& shape, at::ScalarType dtype, RopeLayout layout, std::mt19937_64& generator) {
  SCOPED_TRACE(fmt::format("B {} S {} A {} N {} P/2 {} V {} {} layout {}", shape.batch, shape.sequence, shape.heads,
                           shape.nope, shape.pairs, shape.value, c10::toString(dtype), static_cast<int>(layout)));
  const std::int64_t tokens = shape.tokens();
  const std::int64_t query = shape.nope + shape.rotary();
  const Tables tables = random_tables(shape, dtype, generator);
  const Tensor kv = with_gaps(random_normal({tokens, shape.heads, shape.nope + shape.value}, dtype, generator));
  const Tensor k_pe = with_row_stride(random_normal({tokens, shape.rotary()}, dtype, generator), 5);
  Tensor q = with_gaps(random_normal({tokens, shape.heads, query}, dtype, generator));
  const Tensor q64 = leaf64(q);
  const Tensor kv64 = leaf64(kv);
  const Tensor k_pe64 = leaf64(k_pe);
  Tensor k = poisoned({tokens, shape.heads, query}, dtype);
  Tensor v = poisoned({tokens, shape.heads, shape.value}, dtype);
  ops::mla_assemble_forward(kv, k_pe, tables.cos, tables.sin, layout, q, k, v);

  const Tensor q_out = at::cat(
      {q64.narrow(2, 0, shape.nope), rotated64(q64.narrow(2, shape.nope, shape.rotary()), tables, layout, shape)}, 2);
  const Tensor pe_out = rotated64(k_pe64.unsqueeze(1), tables, layout, shape).expand({-1, shape.heads, -1});
  const Tensor k_out = at::cat({kv64.narrow(2, 0, shape.nope), pe_out}, 2);
  const Tensor v_out = kv64.narrow(2, shape.nope, shape.value);
  EXPECT_LE(relative_error(q, q_out), tolerance(dtype));
  EXPECT_LE(relative_error(k, k_out), tolerance(dtype));
  EXPECT_EQ(relative_error(v, v_out), 0.0);

  Tensor dq = with_gaps(random_normal({tokens, shape.heads, query}, dtype, generator));
  const Tensor dk = with_gaps(random_normal({tokens, shape.heads, query}, dtype, generator));
  const Tensor dv = random_normal({tokens, shape.heads, shape.value}, dtype, generator);
  if (tokens > 0) {
    q_out.backward(dq.to(at::kDouble));
    k_out.mul(dk.to(at::kDouble)).sum().add(v_out.mul(dv.to(at::kDouble)).sum()).backward();
  }
  Tensor dkv = poisoned({tokens, shape.heads, shape.nope + shape.value}, dtype);
  Tensor dk_pe = with_row_stride(poisoned({tokens, shape.rotary()}, dtype), 3);
  ops::mla_assemble_backward(dk, dv, tables.cos, tables.sin, layout, dq, dkv, dk_pe);
  if (tokens == 0) return;
  EXPECT_LE(relative_error(dq, q64.grad()), tolerance(dtype));
  EXPECT_LE(relative_error(dkv, kv64.grad()), tolerance(dtype));
  EXPECT_LE(relative_error(dk_pe, k_pe64.grad()), tolerance(dtype));
}

const std::vector<at::ScalarType> kDtypes = {at::kDouble, at::kFloat, at::kBFloat16};
const std::vector<RopeLayout> kLayouts = {RopeLayout::kHalves, RopeLayout::kInterleaved};

TEST(RopeTest, MlaAssemblyMatchesAutograd) {
  std::mt19937_64 generator(31);
  const std::vector<Shape> shapes = {{1, 1, 1, 1, 1, 1},     {0, 4, 2, 8, 4, 8},  {2, 5, 3, 7, 3, 11},
                                     {3, 33, 4, 64, 16, 64}, {1, 17, 2, 0, 5, 4}, {2, 1, 8, 16, 8, 4}};
  for (const Shape& shape : shapes) {
    for (const at::ScalarType dtype : kDtypes) {
      for (const RopeLayout layout : kLayouts) check_mla(shape, dtype, layout, generator);
    }
  }
}

TEST(RopeTest, MlaAssemblyMatchesAutogradOverRandomShapes) {
  for (unsigned seed = 0; seed < 30; ++seed) {
    std::mt19937_64 generator(seed);
    std::uniform_int_distribution<std::int64_t> size(1, 20);
    const Shape shape{1 + size(generator) % 3, size(generator), 1 + size(generator) % 6,
                      size(generator),         size(generator), size(generator)};
    check_mla(shape, kDtypes[seed % 3], kLayouts[seed % 2], generator);
  }
}

TEST(RopeTest, ApplyMatchesAutogradAndLeavesTheRest) {
  std::mt19937_64 generator(32);
  const std::vector<Shape> shapes = {{1, 1, 1, 0, 1, 0}, {2, 9, 3, 5, 4, 0}, {0, 3, 2, 1, 2, 0}, {2, 40, 4, 32, 32, 0}};
  for (const Shape& shape : shapes) {
    for (const at::ScalarType dtype : kDtypes) {
      for (const RopeLayout layout : kLayouts) {
        const std::int64_t width = shape.rotary() + shape.nope;
        const Tables tables = random_tables(shape, dtype, generator);
        Tensor x = with_gaps(random_normal({shape.tokens(), shape.heads, width}, dtype, generator));
        const Tensor before = x.clone();
        const Tensor x64 = leaf64(x);
        const Tensor y64 = at::cat({rotated64(x64.narrow(2, 0, shape.rotary()), tables, layout, shape),
                                    x64.narrow(2, shape.rotary(), shape.nope)},
                                   2);
        ops::rope_apply(tables.cos, tables.sin, layout, RopeDirection::kForward, x);
        EXPECT_LE(relative_error(x, y64), tolerance(dtype));
        EXPECT_TRUE(at::equal(x.narrow(2, shape.rotary(), shape.nope), before.narrow(2, shape.rotary(), shape.nope)));

        Tensor dy = with_gaps(random_normal({shape.tokens(), shape.heads, width}, dtype, generator));
        if (shape.tokens() == 0) continue;
        y64.backward(dy.to(at::kDouble));
        ops::rope_apply(tables.cos, tables.sin, layout, RopeDirection::kBackward, dy);
        EXPECT_LE(relative_error(dy, x64.grad()), tolerance(dtype));
        // A rotation keeps lengths: going back restores x.
        ops::rope_apply(tables.cos, tables.sin, layout, RopeDirection::kBackward, x);
        EXPECT_LE(relative_error(x, before), tolerance(dtype));
      }
    }
  }
}

TEST(RopeTest, ASecondSequenceStartsAtPositionZero) {
  std::mt19937_64 generator(33);
  const Shape shape{2, 6, 2, 0, 4, 0};
  const Tables tables = random_tables(shape, at::kFloat, generator);
  const Tensor one = random_normal({6, 2, 8}, at::kFloat, generator);
  Tensor both = at::cat({one, one});
  ops::rope_apply(tables.cos, tables.sin, RopeLayout::kHalves, RopeDirection::kForward, both);
  EXPECT_TRUE(at::equal(both.narrow(0, 0, 6), both.narrow(0, 6, 6)));
}

TEST(RopeTest, RefusesTablesOfAnotherSizeOrType) {
  Tensor x = at::zeros({4, 2, 8}, at::kFloat);
  const Tensor wide = at::zeros({4, 5}, at::kFloat);
  EXPECT_THROW(ops::rope_apply(wide, wide, RopeLayout::kHalves, RopeDirection::kForward, x), InternalError);
  const Tensor wrong = at::zeros({4, 2}, at::kDouble);
  EXPECT_THROW(ops::rope_apply(wrong, wrong, RopeLayout::kHalves, RopeDirection::kForward, x), InternalError);
}

}  // namespace
}  // namespace primus
