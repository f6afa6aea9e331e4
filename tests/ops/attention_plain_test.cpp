// The path that GPUs take where no fused kernel fits is made of ATen's operators, which run on any device: here on the
// CPU against the blockwise kernel, with every option.
#include "ops/attention/attention_plain.hpp"

#include <gtest/gtest.h>

#include "support/tensors.hpp"

namespace primus {
namespace {

using at::Tensor;
using namespace primus::test;

struct Outputs {
  Tensor context, lse, dq, dk, dv, dsink;
};

TEST(AttentionPlainTest, AgreesWithTheBlockwiseKernel) {
  std::mt19937_64 generator(1);
  const std::int64_t batch = 2, sequence = 700, heads = 4, groups = 2, query_size = 16, value_size = 8;
  const auto random = [&](std::int64_t count, std::int64_t width) {
    return random_normal({batch, sequence, count, width}, at::kFloat, generator);
  };
  const Tensor q = random(heads, query_size);
  const Tensor k = random(groups, query_size);
  const Tensor v = random(groups, value_size);
  const Tensor dcontext = random(heads, value_size);
  Tensor documents = at::zeros({batch, sequence}, at::kInt);
  documents.narrow(1, 33, sequence - 33).fill_(33);
  documents.narrow(1, 600, sequence - 600).fill_(600);
  const Tensor sinks = random_normal({heads}, at::kFloat, generator);
  const std::vector<ops::AttentionOptions> all = {
      {.scale = 0.25},
      {.scale = 0.25, .window = 40},
      {.scale = 0.25, .softcap = 1.5},
      {.scale = 0.25, .first_key_BS = documents},
      {.scale = 0.25, .sink_A = sinks},
      {.scale = 0.25, .window = 600, .softcap = 3.0, .first_key_BS = documents, .sink_A = sinks}};
  for (std::size_t i = 0; i < all.size(); ++i) {
    const ops::AttentionOptions& options = all[i];
    const auto fresh = [&] {
      return Outputs{poisoned(dcontext.sizes().vec(), at::kFloat), poisoned({batch, heads, sequence}, at::kFloat),
                     poisoned(q.sizes().vec(), at::kFloat),        poisoned(k.sizes().vec(), at::kFloat),
                     poisoned(v.sizes().vec(), at::kFloat),        at::zeros({heads}, at::kFloat)};
    };
    Outputs expected = fresh();
    ops::attention_forward(q, k, v, options, expected.context, expected.lse);
    ops::attention_backward(dcontext, q, k, v, expected.context, expected.lse, options, expected.dq, expected.dk,
                            expected.dv);
    Outputs plain = fresh();
    ops::attention_plain_forward(q, k, v, options, plain.context, plain.lse);
    ops::attention_plain_backward({dcontext, q, k, v, plain.context, plain.lse, plain.dq, plain.dk, plain.dv}, options);
    if (options.sink_A.defined()) {
      ops::attention_sink_backward(dcontext, expected.context, expected.lse, sinks, expected.dsink);
      ops::attention_plain_sink_backward(dcontext, plain.context, plain.lse, sinks, plain.dsink);
    }
    EXPECT_LE(relative_error(plain.context, expected.context), 1e-5) << i;
    EXPECT_LE(relative_error(plain.lse, expected.lse), 1e-5) << i;
    EXPECT_LE(relative_error(plain.dq, expected.dq), 1e-5) << i;
    EXPECT_LE(relative_error(plain.dk, expected.dk), 1e-5) << i;
    EXPECT_LE(relative_error(plain.dv, expected.dv), 1e-5) << i;
    EXPECT_LE(relative_error(plain.dsink, expected.dsink), 1e-4) << i;
  }
}

}  // namespace
}  // namespace primus
