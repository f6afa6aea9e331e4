// The norm and the search for what is not finite, over the parameters of random models.
#include "engine/gradients.hpp"

#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <limits>

#include "specs.hpp"
#include "support/tensors.hpp"

namespace primus::engine {
namespace {

nn::ParameterStore store_of(std::uint64_t seed) {
  return {model::model_parameters(test::random_spec(seed)), model::float64_policy(), seed};
}

void fill_gradients(nn::ParameterStore& parameters, std::mt19937_64& generator) {
  for (const auto& parameter : parameters.all()) {
    if (!parameter->main_grad.defined()) continue;
    parameter->main_grad.copy_(test::random_normal(parameter->main_grad.sizes().vec(), at::kDouble, generator));
  }
}

double norm_of(const nn::ParameterStore& parameters) {
  // It adds to what products have summed already.
  at::Tensor square_sum_1 = at::full({1}, 2.5, at::kDouble);
  global_gradient_square_sum(parameters, comm::Groups::single(), square_sum_1);
  return std::sqrt(square_sum_1.item<double>() - 2.5);
}

TEST(Gradients, NormIsThatOfAllElementsInARow) {
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    nn::ParameterStore parameters = store_of(seed);
    std::mt19937_64 generator(seed);
    fill_gradients(parameters, generator);
    std::vector<at::Tensor> flat;
    for (const auto& parameter : parameters.all()) {
      if (parameter->main_grad.defined()) flat.push_back(parameter->main_grad.reshape({-1}));
    }
    const double expected = at::cat(flat).norm().item<double>();
    EXPECT_NEAR(norm_of(parameters), expected, 1e-12 * expected);
  }
}

TEST(Gradients, ANonFiniteElementAnywhereIsFoundAndNamed) {
  for (const double value : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity(),
                             -std::numeric_limits<double>::infinity()}) {
    nn::ParameterStore parameters = store_of(3);
    std::mt19937_64 generator(3);
    fill_gradients(parameters, generator);
    EXPECT_EQ(first_nonfinite_gradient(parameters), std::nullopt);
    EXPECT_EQ(first_nonfinite_weight(parameters), std::nullopt);
    // From the last parameter to the first: each time the new one comes first in the model's order.
    for (auto it = parameters.all().rbegin(); it != parameters.all().rend(); ++it) {
      nn::Parameter& parameter = **it;
      if (parameter.main_grad.defined()) {
        parameter.main_grad.view({-1})[-1].fill_(value);
        EXPECT_EQ(first_nonfinite_gradient(parameters), parameter.descriptor.name);
        EXPECT_FALSE(std::isfinite(norm_of(parameters)));
      }
      parameter.weight.view({-1})[0].fill_(value);
      EXPECT_EQ(first_nonfinite_weight(parameters), parameter.descriptor.name);
    }
  }
}

}  // namespace
}  // namespace primus::engine
