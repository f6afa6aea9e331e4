#include "ops/attention/attention.hpp"

#include "ops/bias/bias.hpp"
#include "ops/output_gate/output_gate.hpp"
#include "support/cuda.hpp"

namespace primus {
namespace {

using at::Tensor;
using namespace primus::test;

struct Shape {
  std::int64_t batch, sequence, heads, groups, query_size, value_size;
};

class CudaAttentionTest : public CudaTestWithParam<Shape> {
 protected:
  static void match_the_reference() {
    const auto [batch, sequence, heads, groups, query_size, value_size] = GetParam();
    const double scale = 1.0 / std::sqrt(static_cast<double>(query_size));
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      SCOPED_TRACE(c10::toString(type));
      std::mt19937_64 generator(8);
      const Tensor q = random_normal({batch, sequence, heads, query_size}, type, generator);
      const Tensor k = random_normal({batch, sequence, groups, query_size}, type, generator);
      const Tensor v = random_normal({batch, sequence, groups, value_size}, type, generator);
      const Tensor dcontext = random_normal({batch, sequence, heads, value_size}, type, generator);
      Tensor context64 = poisoned({batch, sequence, heads, value_size}, at::kDouble);
      Tensor lse64 = poisoned({batch, heads, sequence}, at::kDouble);
      ops::attention_forward(to64(q), to64(k), to64(v), {.scale = scale}, context64, lse64);

      Tensor context = cuda_poisoned({batch, sequence, heads, value_size}, type);
      Tensor lse = cuda_poisoned({batch, heads, sequence}, at::kFloat);
      ops::attention_forward(to_cuda(q), to_cuda(k), to_cuda(v), {.scale = scale}, context, lse);
      EXPECT_LE(relative_error(to64(context), context64), rounded_tolerance(type));
      EXPECT_LE(relative_error(to64(lse), lse64), 1e-5);

      // Backward of the same inputs: the rounded context and the LSE that forward left.
      Tensor dq64 = poisoned({batch, sequence, heads, query_size}, at::kDouble);
      Tensor dk64 = poisoned({batch, sequence, groups, query_size}, at::kDouble);
      Tensor dv64 = poisoned({batch, sequence, groups, value_size}, at::kDouble);
      ops::attention_backward(to64(dcontext), to64(q), to64(k), to64(v), context64, lse64, {.scale = scale}, dq64, dk64,
                              dv64);
      Tensor dq = cuda_poisoned({batch, sequence, heads, query_size}, type);
      Tensor dk = cuda_poisoned({batch, sequence, groups, query_size}, type);
      Tensor dv = cuda_poisoned({batch, sequence, groups, value_size}, type);
      ops::attention_backward(to_cuda(dcontext), to_cuda(q), to_cuda(k), to_cuda(v), context, lse, {.scale = scale}, dq,
                              dk, dv);
      // Probabilities and their gradients are rounded to bf16 between the products.
      const double tolerance = type == at::kFloat ? 1e-5 : 1e-2;
      if (sequence == 1) {
        // One score has no gradient: what is left is rounding.
        EXPECT_LE(relative_error(to64(dq), at::zeros_like(dq64)), tolerance);
        EXPECT_LE(relative_error(to64(dk), at::zeros_like(dk64)), tolerance);
      } else {
        EXPECT_LE(relative_error(to64(dq), dq64), tolerance);
        EXPECT_LE(relative_error(to64(dk), dk64), tolerance);
      }
      EXPECT_LE(relative_error(to64(dv), dv64), tolerance);
    }
  }
};

TEST_P(CudaAttentionTest, MatchesTheReference) {
  match_the_reference();
}

TEST_P(CudaAttentionTest, ThePlainPathMatchesIt) {
  const WithKernels plain({.attention = ops::KernelFamilies::Attention::kPlain});
  match_the_reference();
}

TEST_P(CudaAttentionTest, TakesViewsOfOneTensor) {
  // As the grouped-query layer calls it: q, k, v and their gradients are parts of one tensor.
  const auto [batch, sequence, heads, groups, query_size, value_size] = GetParam();
  if (query_size != value_size) return;
  std::mt19937_64 generator(4);
  const Tensor all = random_normal({batch, sequence, heads + 2 * groups, query_size}, at::kBFloat16, generator);
  const auto parts = [&](const Tensor& x) {
    return std::array<Tensor, 3>{x.narrow(2, 0, heads), x.narrow(2, heads, groups),
                                 x.narrow(2, heads + groups, groups)};
  };
  const auto gpu = parts(to_cuda(all));
  const Tensor dcontext = random_normal({batch, sequence, heads, value_size}, at::kBFloat16, generator).to(at::kCUDA);
  std::array<std::array<Tensor, 3>, 2> gradients;
  for (int i = 0; i < 2; ++i) {
    const auto in = i == 0 ? gpu : std::array<Tensor, 3>{gpu[0].contiguous(), gpu[1].contiguous(), gpu[2].contiguous()};
    Tensor context = cuda_poisoned({batch, sequence, heads, value_size}, at::kBFloat16);
    Tensor lse = cuda_poisoned({batch, heads, sequence}, at::kFloat);
    ops::attention_forward(in[0], in[1], in[2], {.scale = 0.1}, context, lse);
    const Tensor target = cuda_poisoned({batch, sequence, heads + 2 * groups, query_size}, at::kBFloat16);
    gradients[i] = parts(target);
    ops::attention_backward(dcontext, in[0], in[1], in[2], context, lse, {.scale = 0.1}, gradients[i][0],
                            gradients[i][1], gradients[i][2]);
  }
  for (int p = 0; p < 3; ++p) EXPECT_LE(relative_error(to64(gradients[0][p]), to64(gradients[1][p])), 4e-3);
}

TEST_P(CudaAttentionTest, RepeatsItselfWhenAsked) {
  const auto [batch, sequence, heads, groups, query_size, value_size] = GetParam();
  const SameBits same_bits;
  std::mt19937_64 generator(11);
  const auto random = [&](std::int64_t count, std::int64_t width) {
    return to_cuda(random_normal({batch, sequence, count, width}, at::kBFloat16, generator));
  };
  const Tensor q = random(heads, query_size);
  const Tensor k = random(groups, query_size);
  const Tensor v = random(groups, value_size);
  const Tensor dcontext = random(heads, value_size);
  std::vector<std::array<Tensor, 5>> runs;
  for (int run = 0; run < 5; ++run) {
    Tensor context = cuda_poisoned({batch, sequence, heads, value_size}, at::kBFloat16);
    Tensor lse = cuda_poisoned({batch, heads, sequence}, at::kFloat);
    ops::attention_forward(q, k, v, {.scale = 0.1}, context, lse);
    Tensor dq = cuda_poisoned({batch, sequence, heads, query_size}, at::kBFloat16);
    Tensor dk = cuda_poisoned({batch, sequence, groups, query_size}, at::kBFloat16);
    Tensor dv = cuda_poisoned({batch, sequence, groups, value_size}, at::kBFloat16);
    ops::attention_backward(dcontext, q, k, v, context, lse, {.scale = 0.1}, dq, dk, dv);
    runs.push_back({context, lse, dq, dk, dv});
    for (std::size_t i = 0; i < 5; ++i) EXPECT_TRUE(at::equal(runs.back()[i], runs.front()[i])) << "output " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, CudaAttentionTest,
                         ::testing::Values(Shape{0, 4, 2, 2, 64, 64}, Shape{1, 1, 1, 1, 128, 128},
                                           Shape{2, 5, 3, 1, 24, 16}, Shape{1, 33, 2, 2, 7, 5},
                                           Shape{2, 128, 4, 2, 64, 64}, Shape{1, 600, 2, 2, 192, 128},
                                           Shape{2, 259, 4, 4, 192, 128}, Shape{1, 300, 8, 2, 128, 128},
                                           Shape{1, 1030, 2, 1, 128, 128}));

class CudaAttentionOptionsTest : public CudaTest {};

TEST_F(CudaAttentionOptionsTest, EveryOptionMatchesTheReference) {
  std::mt19937_64 generator(9);
  const std::int64_t batch = 2, sequence = 600, heads = 4, groups = 2, size = 64;
  Tensor documents = at::zeros({batch, sequence}, at::kInt);
  documents.narrow(1, 77, sequence - 77).fill_(77);
  const Tensor sinks = random_normal({heads}, at::kFloat, generator);
  const std::vector<ops::AttentionOptions> all = {
      {.scale = 0.125, .window = 100},
      {.scale = 0.125, .window = 600},
      {.scale = 0.125, .softcap = 2.0},
      {.scale = 0.125, .first_key_BS = documents},
      {.scale = 0.125, .sink_A = sinks},
      {.scale = 0.125, .window = 200, .softcap = 3.0, .first_key_BS = documents, .sink_A = sinks}};
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const auto random = [&](std::int64_t count) {
      return random_normal({batch, sequence, count, size}, type, generator);
    };
    const Tensor q = random(heads);
    const Tensor k = random(groups);
    const Tensor v = random(groups);
    const Tensor dcontext = random(heads);
    for (std::size_t i = 0; i < all.size(); ++i) {
      SCOPED_TRACE(fmt::format("{} options {}", c10::toString(type), i));
      ops::AttentionOptions wide = all[i];
      wide.sink_A = to64(wide.sink_A);
      Tensor context64 = at::empty({batch, sequence, heads, size}, at::kDouble);
      Tensor lse64 = at::empty({batch, heads, sequence}, at::kDouble);
      Tensor dq64 = at::empty_like(context64);
      Tensor dk64 = at::empty({batch, sequence, groups, size}, at::kDouble);
      Tensor dv64 = at::empty_like(dk64);
      ops::attention_forward(to64(q), to64(k), to64(v), wide, context64, lse64);
      ops::attention_backward(to64(dcontext), to64(q), to64(k), to64(v), context64, lse64, wide, dq64, dk64, dv64);

      ops::AttentionOptions options = all[i];
      options.first_key_BS = to_cuda(options.first_key_BS);
      options.sink_A = to_cuda(options.sink_A);
      Tensor context = cuda_poisoned(context64.sizes().vec(), type);
      Tensor lse = cuda_poisoned(lse64.sizes().vec(), at::kFloat);
      Tensor dq = cuda_poisoned(dq64.sizes().vec(), type);
      Tensor dk = cuda_poisoned(dk64.sizes().vec(), type);
      Tensor dv = cuda_poisoned(dv64.sizes().vec(), type);
      ops::attention_forward(to_cuda(q), to_cuda(k), to_cuda(v), options, context, lse);
      ops::attention_backward(to_cuda(dcontext), to_cuda(q), to_cuda(k), to_cuda(v), context, lse, options, dq, dk, dv);
      const double tolerance = type == at::kFloat ? 1e-5 : 1e-2;
      EXPECT_LE(relative_error(to64(context), context64), tolerance);
      EXPECT_LE(relative_error(to64(lse), lse64), 1e-5);
      EXPECT_LE(relative_error(to64(dq), dq64), tolerance);
      EXPECT_LE(relative_error(to64(dk), dk64), tolerance);
      EXPECT_LE(relative_error(to64(dv), dv64), tolerance);
      if (!options.sink_A.defined() || type != at::kFloat) continue;
      Tensor dsink64 = at::zeros({heads}, at::kDouble);
      ops::attention_sink_backward(to64(dcontext), context64, lse64, wide.sink_A, dsink64);
      Tensor dsink = at::zeros({heads}, at::kFloat).to(at::kCUDA);
      ops::attention_sink_backward(to_cuda(dcontext), context, lse, options.sink_A, dsink);
      EXPECT_LE(relative_error(to64(dsink), dsink64), 1e-4);
    }
  }
}

TEST_F(CudaAttentionOptionsTest, BiasAndGateMatchTheReference) {
  std::mt19937_64 generator(10);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const std::int64_t tokens = 300, heads = 3, size = 40;
    const std::vector<std::int64_t> shape = {tokens, heads, size};
    const Tensor x = random_normal(shape, type, generator);
    const Tensor gate = random_normal(shape, type, generator);
    const Tensor dy = random_normal(shape, type, generator);
    Tensor y64 = at::empty(shape, at::kDouble);
    Tensor dx64 = at::empty(shape, at::kDouble);
    Tensor dgate64 = at::empty(shape, at::kDouble);
    ops::output_gate_forward(to64(x), to64(gate), y64);
    ops::output_gate_backward(to64(dy), to64(x), to64(gate), dx64, dgate64);
    Tensor y = cuda_poisoned(shape, type);
    Tensor dx = cuda_poisoned(shape, type);
    Tensor dgate = cuda_poisoned(shape, type);
    ops::output_gate_forward(to_cuda(x), to_cuda(gate), y);
    ops::output_gate_backward(to_cuda(dy), to_cuda(x), to_cuda(gate), dx, dgate);
    const double tolerance = type == at::kFloat ? 1e-5 : 1e-2;
    EXPECT_LE(relative_error(to64(y), y64), tolerance);
    EXPECT_LE(relative_error(to64(dx), dx64), tolerance);
    EXPECT_LE(relative_error(to64(dgate), dgate64), tolerance);

    const Tensor rows = x.view({tokens, heads * size});
    const Tensor bias = random_normal({heads * size}, type, generator);
    Tensor sum = to_cuda(rows).clone();
    ops::bias_add(to_cuda(bias), {}, {}, sum);
    EXPECT_LE(relative_error(to64(sum), to64(rows).add(to64(bias))), rounded_tolerance(type));
    Tensor gradient = at::ones({heads * size}, at::kFloat).to(at::kCUDA);
    ops::bias_gradient(to_cuda(rows), {}, {}, gradient);
    EXPECT_LE(relative_error(to64(gradient), to64(rows).sum(0).add(1.0)), 1e-5);
  }
}

}  // namespace
}  // namespace primus
