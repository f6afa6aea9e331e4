#include "ops/cross_entropy/cross_entropy.hpp"

#include <limits>

#include "ops/gemm/gemm.hpp"
#include "support/cuda.hpp"

namespace primus {
namespace {

using at::Tensor;
using namespace primus::test;

struct Shape {
  std::int64_t tokens, vocabulary;
  double scale = 3.0;  // of the logits
};

class CudaCrossEntropyTest : public CudaTestWithParam<Shape> {
 protected:
  CudaCrossEntropyTest() : generator_(91) {
    const auto [tokens, vocabulary, scale] = GetParam();
    label_ = random_int({tokens}, at::kLong, 0, vocabulary, generator_);
    grad_ = random_normal({tokens}, at::kFloat, generator_);
    for (std::int64_t t = 0; t < tokens; t += 3) grad_[t] = 0.0;  // masked
    if (tokens > 1) label_[1] = vocabulary - 1;
  }

  std::mt19937_64 generator_;
  Tensor label_, grad_;
};

TEST_P(CudaCrossEntropyTest, MatchesTheReferenceAndRepeats) {
  const auto [tokens, vocabulary, scale] = GetParam();
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const Tensor logits = random_normal({tokens, vocabulary}, dtype, generator_, scale);
    Tensor expected = to64(logits).clone();
    Tensor loss64 = poisoned({tokens}, at::kDouble);
    ops::cross_entropy_forward_backward(expected, label_, to64(grad_), loss64);

    Tensor loss = cuda_poisoned({tokens}, at::kFloat);
    ops::cross_entropy_forward(to_cuda(logits), to_cuda(label_), loss);
    EXPECT_LE(relative_error(to64(loss), loss64), 1e-6);
    std::vector<Tensor> results;
    for (int run = 0; run < 2; ++run) {
      Tensor gradient = to_cuda(logits).clone();
      Tensor again = cuda_poisoned({tokens}, at::kFloat);
      ops::cross_entropy_forward_backward(gradient, to_cuda(label_), to_cuda(grad_), again);
      results.insert(results.end(), {gradient.cpu(), again.cpu()});
    }
    EXPECT_LE(relative_error(to64(results[0]), expected), rounded_tolerance(dtype));
    EXPECT_LE(relative_error(to64(results[1]), loss64), 1e-6);
    EXPECT_TRUE(at::equal(results[0], results[2]));
    EXPECT_TRUE(at::equal(results[1], results[3]));
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, CudaCrossEntropyTest,
                         ::testing::Values(Shape{0, 16}, Shape{1, 1}, Shape{5, 7}, Shape{37, 384}, Shape{9, 4099},
                                           Shape{33, 8192, 30.0}, Shape{6, 102400}, Shape{3, 151936}, Shape{2, 102401},
                                           Shape{4, 65536, 0.0}));

TEST_F(CudaTest, CrossEntropyTakesExtremeLogits) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    Tensor logits = at::zeros({4, 24}, at::kFloat);
    logits[0].fill_(-30000.0);
    logits[1][3] = 30000.0;
    logits[2].narrow(0, 4, 20).fill_(-kInf);  // padding of the vocabulary
    logits[3][5] = std::numeric_limits<float>::quiet_NaN();
    logits = logits.to(dtype);
    const Tensor label = at::full({4}, 3, at::kLong);
    const Tensor grad = at::ones({4}, at::kFloat);
    Tensor gradient = to_cuda(logits).clone();
    Tensor loss = cuda_poisoned({4}, at::kFloat);
    ops::cross_entropy_forward_backward(gradient, to_cuda(label), to_cuda(grad), loss);
    Tensor expected = to64(logits).clone();
    Tensor loss64 = poisoned({4}, at::kDouble);
    ops::cross_entropy_forward_backward(expected, label, to64(grad), loss64);
    EXPECT_LE(relative_error(to64(loss).narrow(0, 0, 3), loss64.narrow(0, 0, 3)), 1e-6);
    EXPECT_LE(relative_error(to64(gradient).narrow(0, 0, 3), expected.narrow(0, 0, 3)), rounded_tolerance(dtype));
    EXPECT_TRUE(std::isnan(loss[3].item<float>()));
  }
}

/// Does the loaded table have matrix products?
bool has_products() {
  Tensor y = at::zeros({8, 8}, at::TensorOptions(at::kCUDA).dtype(at::kBFloat16));
  try {
    ops::cuda_ops().linear_forward(at::zeros_like(y), at::zeros_like(y), y, ops::Write::kOverwrite);
  } catch (const InternalError&) {
    return false;
  }
  return true;
}

TEST_F(CudaTest, LinearCrossEntropyMatchesTheReference) {
  if (!has_products()) GTEST_SKIP() << "no CUDA twin of linear_forward";
  std::mt19937_64 generator(92);
  for (const std::int64_t chunk : {0, 128, 100}) {
    constexpr std::int64_t kTokens = 300;
    constexpr std::int64_t kHidden = 64;
    constexpr std::int64_t kVocabulary = 1024;
    const Tensor x = random_normal({kTokens, kHidden}, at::kBFloat16, generator);
    const Tensor w = random_normal({kVocabulary, kHidden}, at::kBFloat16, generator, 0.3);
    const Tensor label = random_int({kTokens}, at::kLong, 0, kVocabulary, generator);
    const Tensor grad = random_normal({kTokens}, at::kFloat, generator);
    const Tensor before = random_normal({kVocabulary, kHidden}, at::kFloat, generator);
    Tensor loss64 = poisoned({kTokens}, at::kDouble);
    Tensor dx64 = poisoned({kTokens, kHidden}, at::kDouble);
    Tensor main_grad64 = to64(before).clone();
    ops::linear_cross_entropy(to64(x), to64(w), label, to64(grad), 0, loss64, dx64, main_grad64);

    Tensor loss = cuda_poisoned({kTokens}, at::kFloat);
    Tensor dx = cuda_poisoned({kTokens, kHidden}, at::kBFloat16);
    Tensor main_grad = to_cuda(before).clone();
    ops::linear_cross_entropy(to_cuda(x), to_cuda(w), to_cuda(label), to_cuda(grad), chunk, loss, dx, main_grad);
    // Logits and their gradient are rounded to bf16 on the way.
    EXPECT_LE(relative_error(to64(loss), loss64), 4e-3);
    EXPECT_LE(relative_error(to64(dx), dx64), 1e-2);
    EXPECT_LE(relative_error(to64(main_grad), main_grad64), 4e-3);
    Tensor loss_only = cuda_poisoned({kTokens}, at::kFloat);
    ops::linear_cross_entropy_loss(to_cuda(x), to_cuda(w), to_cuda(label), chunk, loss_only);
    EXPECT_LE(relative_error(to64(loss_only), to64(loss)), 1e-6);
  }
}

}  // namespace
}  // namespace primus
