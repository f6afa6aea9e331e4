#include "ops/router/noise.hpp"

#include "support/cuda.hpp"

namespace primus {
namespace {

using at::Tensor;
using ops::Write;
using namespace primus::test;

class CudaRouterNoiseTest : public CudaTest {};

constexpr ops::TokenNoise kNoise{.seed = 7, .stream = 0x123456789ABCDEF0ULL, .first_token = 1'000'003};

TEST_F(CudaRouterNoiseTest, JitterIsTheCpus) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const std::int64_t width : {1, 3, 64, 257}) {
      std::mt19937_64 generator(32);
      const Tensor x = random_normal({61, width}, dtype, generator);
      const Tensor before = random_normal({61, width}, dtype, generator);
      for (const Write write : {Write::kOverwrite, Write::kAccumulate}) {
        Tensor expected = to64(before);
        ops::token_jitter(to64(x), kNoise, 0.1, expected, write);
        Tensor y = to_cuda(before);
        ops::token_jitter(to_cuda(x), kNoise, 0.1, y, write);
        EXPECT_LE(relative_error(to64(y), expected), dtype == at::kFloat ? 1e-7 : 3e-3);
      }
      Tensor own = to_cuda(x);
      ops::token_jitter(own, kNoise, 0.1, own, Write::kOverwrite);
      Tensor apart = cuda_poisoned({61, width}, dtype);
      ops::token_jitter(to_cuda(x), kNoise, 0.1, apart, Write::kOverwrite);
      EXPECT_TRUE(at::equal(own, apart));
    }
  }
}

TEST_F(CudaRouterNoiseTest, NormalNumbersAreTheCpus) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const std::int64_t width : {1, 6, 64}) {
      std::mt19937_64 generator(33);
      const Tensor bias = random_normal({width}, dtype, generator);
      for (const Tensor& favour : {Tensor(), bias}) {
        Tensor expected = poisoned({1001, width}, at::kDouble);
        ops::token_normal(kNoise, to64(favour), expected);
        Tensor y = cuda_poisoned({1001, width}, dtype);
        ops::token_normal(kNoise, to_cuda(favour), y);
        EXPECT_LE(relative_error(to64(y), expected), dtype == at::kFloat ? 1e-7 : 3e-3);
      }
    }
  }
}

TEST_F(CudaRouterNoiseTest, NoTokens) {
  Tensor y = cuda_poisoned({0, 8}, at::kFloat);
  ops::token_normal(kNoise, {}, y);
  ops::token_jitter(y, kNoise, 0.1, y, Write::kOverwrite);
  EXPECT_EQ(y.numel(), 0);
}

}  // namespace
}  // namespace primus
