#include "ops/bias/bias.hpp"

#include <ATen/ops/sum.h>
#include <gtest/gtest.h>

#include "support/tensors.hpp"

namespace primus {
namespace {

using at::Tensor;
using namespace primus::test;

Tensor int_tensor(const std::vector<std::int64_t>& values) {
  Tensor tensor = at::empty({std::ssize(values)}, at::kInt);
  for (std::size_t i = 0; i < values.size(); ++i) tensor.data_ptr<int>()[i] = static_cast<int>(values[i]);
  return tensor;
}

struct Case {
  std::vector<std::int64_t> offsets;  // empty: one bias for all rows
  std::int64_t rows, width;
};

class BiasTest : public ::testing::TestWithParam<std::tuple<Case, bool>> {};

TEST_P(BiasTest, MatchesAutograd) {
  const auto& [shape, has_scale] = GetParam();
  const bool is_grouped = !shape.offsets.empty();
  const std::int64_t experts = is_grouped ? std::ssize(shape.offsets) - 1 : 1;
  const std::int64_t used = is_grouped ? shape.offsets.back() : shape.rows;
  const Tensor offsets = is_grouped ? int_tensor(shape.offsets) : Tensor();
  std::mt19937_64 generator(41);
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
    const at::ScalarType statistics = ops::accumulator_type(dtype);
    const Tensor bias = random_normal({experts, shape.width}, dtype, generator);
    const Tensor scale = has_scale ? random_normal({shape.rows}, statistics, generator) : Tensor();
    const Tensor y = random_normal({shape.rows, shape.width}, dtype, generator);
    const Tensor dy = random_normal({shape.rows, shape.width}, dtype, generator);
    Tensor sum = y.clone();
    ops::bias_add(bias, offsets, scale, sum);

    Tensor expert_of = at::zeros({used}, at::kLong);
    for (std::int64_t e = 0; is_grouped && e < experts; ++e) {
      expert_of
          .narrow(0, shape.offsets[static_cast<std::size_t>(e)],
                  shape.offsets[static_cast<std::size_t>(e) + 1] - shape.offsets[static_cast<std::size_t>(e)])
          .fill_(e);
    }
    const Tensor bias64 = leaf64(bias);
    const Tensor scale64 = leaf64(has_scale ? scale : at::ones({shape.rows}, at::kDouble));
    const Tensor added = bias64.index_select(0, expert_of).mul(scale64.narrow(0, 0, used).unsqueeze(1));
    EXPECT_LE(relative_error(sum.narrow(0, 0, used), added.add(y.narrow(0, 0, used))), tolerance(dtype));
    EXPECT_TRUE(at::equal(sum.narrow(0, used, shape.rows - used), y.narrow(0, used, shape.rows - used)));
    at::sum(added.mul(dy.narrow(0, 0, used).to(at::kDouble))).backward();

    const Tensor before = random_normal({experts, shape.width}, statistics, generator);
    Tensor grad = before.clone();
    ops::bias_gradient(dy, offsets, scale, grad);
    EXPECT_LE(relative_error(grad.sub(before), bias64.grad()), dtype == at::kDouble ? 1e-9 : 1e-4);
    if (!has_scale) continue;
    Tensor dscale = at::ones({shape.rows}, statistics);
    ops::bias_scale_gradient(dy, bias, offsets, dscale);
    EXPECT_LE(relative_error(dscale, scale64.grad().add(1.0)), tolerance(statistics));
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, BiasTest,
                         ::testing::Combine(::testing::Values(Case{{}, 1, 1}, Case{{}, 0, 5}, Case{{}, 130, 300},
                                                              Case{{0, 3, 3, 10}, 10, 129}, Case{{0, 0, 0}, 4, 7},
                                                              Case{{0, 5, 9}, 12, 33}, Case{{0, 0, 64, 64}, 64, 5}),
                                            ::testing::Bool()));

TEST(BiasTest, SameBitsWithAnyNumberOfThreads) {
  std::mt19937_64 generator(42);
  const Tensor dy = random_normal({901, 517}, at::kFloat, generator);
  const Tensor offsets = int_tensor({0, 400, 400, 901});
  std::vector<Tensor> results;
  for (const int threads : {1, 2}) {
    at::set_num_threads(threads);
    Tensor grad = at::zeros({3, 517}, at::kFloat);
    ops::bias_gradient(dy, offsets, {}, grad);
    results.push_back(grad);
  }
  EXPECT_TRUE(at::equal(results[0], results[1]));
}

TEST(BiasTest, RefusesWhatDoesNotFit) {
  Tensor y = at::zeros({4, 6}, at::kFloat);
  EXPECT_THROW(ops::bias_add(at::zeros({2, 6}, at::kFloat), {}, {}, y), InternalError);
  EXPECT_THROW(ops::bias_add(at::zeros({1, 5}, at::kFloat), {}, {}, y), InternalError);
  EXPECT_THROW(ops::bias_add(at::zeros({2, 6}, at::kFloat), int_tensor({0, 2, 5}), {}, y), InternalError);
  EXPECT_THROW(ops::bias_add(at::zeros({1, 6}, at::kFloat), {}, at::zeros({3}, at::kFloat), y), InternalError);
}

}  // namespace
}  // namespace primus
