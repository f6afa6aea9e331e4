// Stored optimizer state: exact types are exact, narrow ones are near, unbiased, repeatable, and never lose what is not
// zero.
#include "ops/state/state.hpp"

#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include "model/optimizer_spec.hpp"
#include "support/tensors.hpp"

namespace primus {
namespace {

using at::Tensor;
using namespace primus::test;
using ops::StateForm;

struct Type {
  DType type;
  double step;  // relative distance of two neighbours
};
constexpr Type kNarrow[] = {{DType::kBFloat16, 0x1p-7}, {DType::kFloat16, 0x1p-10}, {DType::kFloat8, 0x1p-3}};

Tensor stored(const Tensor& values, DType type, StateForm form, std::uint64_t key) {
  ops::StoredState state = ops::make_state(values, type, form);
  ops::store_state(values.reshape({-1}), {key}, state);
  return ops::load_state(state).view(values.sizes());
}

TEST(StateTest, WideTypesAreExact) {
  std::mt19937_64 generator(1);
  for (const auto& [type, dtype] : {std::pair{DType::kFloat32, at::kFloat}, {DType::kFloat64, at::kDouble}}) {
    const Tensor values = random_normal({1000}, dtype, generator);
    EXPECT_TRUE(at::equal(stored(values, type, StateForm::kPlain, 3), values));
  }
}

TEST(StateTest, NarrowTypesRoundToANeighbour) {
  std::mt19937_64 generator(2);
  for (const auto& [type, step] : kNarrow) {
    for (const std::int64_t count : {1, 127, 128, 129, 5000}) {
      const Tensor values = random_normal({count}, at::kFloat, generator, 1e-3);
      const Tensor error = (stored(values, type, StateForm::kPlain, 7) - values).abs();
      // Below a block's smallest normal number steps no longer shrink: 2^-14 of the largest, for fp8 2^-9 of 448ths.
      const Tensor bound = (values.abs() * step).clamp_min(values.abs().max().item<float>() * 0x1p-14);
      EXPECT_TRUE(error.le(bound).all().item<bool>()) << name(type) << " " << count;
    }
  }
}

/// Every number of a type comes back as itself, whatever the chance, and numbers grow with their codes.
template <typename Code>
void expect_numbers_to_stay(std::uint32_t num_codes) {
  float before = -1.0F;
  for (std::uint32_t code = 0; code < num_codes; ++code) {
    const float x = Code::magnitude(code);
    EXPECT_GT(x, before);
    before = x;
    for (const std::uint32_t random : {0U, 0x80000000U, 0xFFFFFFFFU}) ASSERT_EQ(Code::code_of(x, random), code);
  }
}

TEST(StateTest, NumbersOfATypeStay) {
  expect_numbers_to_stay<ops::E4m3Code>(0x7F);
  expect_numbers_to_stay<ops::HalfCode>(0x7C00);
  EXPECT_EQ(ops::E4m3Code::magnitude(0x7E), 448.0F);
  EXPECT_EQ(ops::E4m3Code::magnitude(1), 0x1p-9F);
  EXPECT_EQ(ops::HalfCode::magnitude(0x7BFF), 65504.0F);
  EXPECT_EQ(ops::HalfCode::magnitude(1), 0x1p-24F);
}

/// The smallest power of two that lets the largest magnitude in, down to 2^-126.
TEST(StateTest, ScalesAreTheSmallestThatFit) {
  std::mt19937 generator(9);
  std::uniform_real_distribution<float> exponent(-149.0F, 127.9F);
  EXPECT_EQ(ops::E4m3Code::scale_of(0.0F), 0.0F);
  EXPECT_EQ(ops::E4m3Code::inverse_of(0.0F), 0.0F);
  for (int i = 0; i < 20000; ++i) {
    const float x = i % 7 == 0 ? std::ldexp(448.0F, i % 200 - 120) : std::exp2(exponent(generator));
    for (const auto& [scale, inverse, largest] :
         {std::tuple{ops::E4m3Code::scale_of(x), ops::E4m3Code::inverse_of(ops::E4m3Code::scale_of(x)), 448.0},
          {ops::HalfCode::scale_of(x), ops::HalfCode::inverse_of(ops::HalfCode::scale_of(x)), 65504.0}}) {
      ASSERT_LE(static_cast<double>(x), largest * scale) << x;
      ASSERT_TRUE(scale == 0x1p-126F || static_cast<double>(x) > largest * scale / 2) << x;
      ASSERT_EQ(scale * inverse, 1.0F) << x;
    }
  }
}

TEST(StateTest, ScalesOfBlocksAreTheirOwn) {
  Tensor values = at::ones({256}, at::kFloat);
  values.narrow(0, 128, 128).mul_(1e-20F);
  EXPECT_TRUE(
      at::equal(stored(values, DType::kFloat8, StateForm::kPlain, 1).narrow(0, 0, 128), values.narrow(0, 0, 128)));
  const Tensor small = stored(values, DType::kFloat8, StateForm::kPlain, 1).narrow(0, 128, 128);
  EXPECT_LT(relative_error(small, values.narrow(0, 128, 128)), 0.1);
}

TEST(StateTest, RoundingIsUnbiasedAndRepeatsItself) {
  for (const auto& [type, step] : kNarrow) {
    const double value = 1.0 + 0.3 * step;  // three tenths of the way to the next number
    Tensor values = at::full({1 << 16}, value, at::kFloat);
    const Tensor once = stored(values, type, StateForm::kPlain, 11);
    EXPECT_NEAR(once.to(at::kDouble).mean().item<double>(), value, 0.01 * step) << name(type);
    EXPECT_TRUE(at::equal(once, stored(values, type, StateForm::kPlain, 11)));
    EXPECT_FALSE(at::equal(once, stored(values, type, StateForm::kPlain, 12)));
  }
}

/// A second moment that shrinks by less than half a step a time must still shrink.
TEST(StateTest, SlowDecayIsNotLost) {
  for (const auto& [type, step] : kNarrow) {
    ops::StoredState state = ops::make_state(at::empty({1 << 12}, at::kFloat), type, StateForm::kRoot);
    Tensor values = at::ones({1 << 12}, at::kFloat);
    for (std::uint64_t t = 0; t < 1000; ++t) {
      ops::store_state(values, {t * 7919 + 1}, state);
      values = ops::load_state(state) * 0.999;
    }
    EXPECT_NEAR(values.mean().item<double>(), std::pow(0.999, 1000), 0.1) << name(type);
  }
}

TEST(StateTest, RootsAreNeverNegativeNorLost) {
  Tensor values = at::zeros({256}, at::kFloat);
  values.narrow(0, 0, 100).fill_(1e-30F);
  values[5].fill_(1.0F);
  for (const DType type : {DType::kFloat16, DType::kFloat8}) {
    const Tensor back = stored(values, type, StateForm::kRoot, 5);
    EXPECT_TRUE(back.narrow(0, 0, 100).gt(0.0).all().item<bool>()) << name(type);
    EXPECT_TRUE(back.narrow(0, 100, 156).eq(0.0).all().item<bool>()) << name(type);
  }
}

TEST(StateTest, Bf16WeightsAreExactInFp16Masters) {
  std::mt19937_64 generator(3);
  const Tensor weights = random_normal({4096}, at::kFloat, generator, 0.02).to(at::kBFloat16).to(at::kFloat);
  const Tensor back = stored(weights, DType::kFloat16, StateForm::kPlain, 9);
  // Numbers within 2^-13 of a block's largest keep all of bf16's eight bits.
  EXPECT_LT(relative_error(back, weights), 1e-4);
  const Tensor large = weights.abs().gt(weights.abs().max() * 0x1p-6);
  EXPECT_TRUE(at::equal(back.masked_select(large), weights.masked_select(large)));
}

TEST(StateTest, HeldBytesAreTheDeclaredOnes) {
  for (const DType type : {DType::kFloat32, DType::kFloat64, DType::kBFloat16, DType::kFloat16, DType::kFloat8}) {
    for (const std::int64_t count : {1, 128, 129, 1000}) {
      const ops::StoredState state = ops::make_state(at::empty({count}, at::kFloat), type);
      const auto bytes =
          static_cast<std::int64_t>(state.values.nbytes() + (state.scale_B.defined() ? state.scale_B.nbytes() : 0));
      EXPECT_EQ(bytes, model::state_bytes(type, count)) << name(type) << " " << count;
    }
  }
}

}  // namespace
}  // namespace primus
