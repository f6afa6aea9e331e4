#include "ops/delta_rule/delta_rule.hpp"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/stack.h>
#include <gtest/gtest.h>

#include "model/op_scratch.hpp"
#include "ops/allocator.hpp"
#include "support/tensors.hpp"

namespace primus {
namespace {

using at::Tensor;
using namespace primus::test;

struct Shape {
  std::int64_t sequences, length, key_heads, value_heads, key, value, chunk;
  bool has_documents;
};

// One token, sizes of one, chunks that divide nothing, rows around the op's blocks of 16, a chunk longer than all.
constexpr Shape kShapes[] = {{1, 1, 1, 1, 1, 1, 64, false},    {2, 1, 2, 4, 5, 3, 8, false},
                             {1, 7, 1, 3, 4, 9, 3, true},      {2, 33, 2, 2, 8, 5, 16, true},
                             {1, 40, 2, 4, 16, 12, 40, false}, {1, 70, 1, 2, 12, 8, 64, true},
                             {2, 50, 3, 3, 7, 6, 17, true},    {1, 21, 2, 2, 3, 4, 1, true}};

enum class Decay { kOfHead, kOfChannel };

/// Log decays are negative, of size `decay_scale`.
struct Case {
  ops::DeltaRule in;
  Tensor dy;
};

Tensor random_documents(const Shape& shape, std::mt19937_64& generator) {
  Tensor first = at::empty({shape.sequences, shape.length}, at::kInt);
  for (std::int64_t b = 0; b < shape.sequences; ++b) {
    std::int32_t begin = 0;
    for (std::int64_t s = 0; s < shape.length; ++s) {
      if (std::uniform_int_distribution<int>(0, 9)(generator) == 0) begin = static_cast<std::int32_t>(s);
      first[b][s] = begin;
    }
  }
  return first;
}

/// Heads of a fused projection: a narrow part of a wider, poisoned tensor.
Tensor part_of_wider(const Tensor& values) {
  Tensor wide = poisoned({values.size(0), values.size(1) + 2, values.size(2)}, values.scalar_type());
  Tensor view = wide.narrow(1, 1, values.size(1));
  view.copy_(values);
  return view;
}

Case random_case(const Shape& shape, Decay decay, at::ScalarType dtype, double decay_scale,
                 std::mt19937_64& generator) {
  const std::int64_t tokens = shape.sequences * shape.length;
  const at::ScalarType wide = ops::accumulator_type(dtype);
  std::vector<std::int64_t> decay_shape = {tokens, shape.value_heads};
  if (decay == Decay::kOfChannel) decay_shape.push_back(shape.key);
  Case result;
  result.in = {.q_TGK = part_of_wider(random_normal({tokens, shape.key_heads, shape.key}, dtype, generator)),
               .k_TGK = part_of_wider(random_normal({tokens, shape.key_heads, shape.key}, dtype, generator)),
               .v_TAV = part_of_wider(random_normal({tokens, shape.value_heads, shape.value}, dtype, generator)),
               .log_decay = random_normal(decay_shape, wide, generator, decay_scale).abs().neg(),
               .beta_TA = random_normal({tokens, shape.value_heads}, wide, generator).sigmoid(),
               .seq_length = shape.length,
               .first_key_BS = {},
               .chunk_size = shape.chunk};
  if (shape.has_documents) result.in.first_key_BS = random_documents(shape, generator);
  result.dy = part_of_wider(random_normal({tokens, shape.value_heads, shape.value}, dtype, generator));
  return result;
}

/// The rule token by token, for autograd: leaves q, k, v, log decay, beta in fp64.
Tensor reference(const std::array<Tensor, 5>& leaves, const ops::DeltaRule& in) {
  const auto& [q, k, v, log_decay, beta] = leaves;
  const std::int64_t key = q.size(2);
  const std::int64_t of_key = v.size(1) / q.size(1);
  const auto unit = [](const Tensor& x) { return x * (x.pow(2).sum(-1, true) + 1e-6).rsqrt(); };
  const Tensor queries = (unit(q) / std::sqrt(static_cast<double>(key))).repeat_interleave(of_key, 1);
  const Tensor keys = unit(k).repeat_interleave(of_key, 1);
  Tensor state;
  std::vector<Tensor> rows;
  for (std::int64_t t = 0; t < v.size(0); ++t) {
    const std::int64_t s = t % in.seq_length;
    const std::int64_t first = in.first_key_BS.defined() ? in.first_key_BS.flatten()[t].item<std::int32_t>() : 0;
    if (s == first) state = at::zeros({v.size(1), key, v.size(2)}, at::kDouble);
    const Tensor decay = log_decay[t].exp();
    state = state * (decay.dim() == 1 ? decay.view({-1, 1, 1}) : decay.unsqueeze(-1));
    const Tensor x = beta[t].unsqueeze(-1) * (v[t] - (state * keys[t].unsqueeze(-1)).sum(1));
    state = state + keys[t].unsqueeze(-1) * x.unsqueeze(1);
    rows.push_back((state * queries[t].unsqueeze(-1)).sum(1));
  }
  return at::stack(rows);
}

struct Output {
  Tensor y;
  ops::DeltaRuleGradient gradient;
  std::array<Tensor, 5> gradients() const {
    return {gradient.q_TGK, gradient.k_TGK, gradient.v_TAV, gradient.log_decay, gradient.beta_TA};
  }
};

Output run(const Case& c) {
  const auto like = [](const Tensor& x) { return part_of_wider(poisoned(x.sizes().vec(), x.scalar_type())); };
  Output out{.y = like(c.dy),
             .gradient = {like(c.in.q_TGK), like(c.in.k_TGK), like(c.in.v_TAV),
                          poisoned(c.in.log_decay.sizes().vec(), c.in.log_decay.scalar_type()),
                          poisoned(c.in.beta_TA.sizes().vec(), c.in.beta_TA.scalar_type())}};
  ops::delta_rule_forward(c.in, out.y);
  ops::delta_rule_backward(c.dy, c.in, out.gradient);
  return out;
}

/// Error relative to the norm, or to a share of the largest gradient's: gradients of one key of size one cancel.
double error_of(const Tensor& ours, const Tensor& exact, double largest_norm) {
  const double norm = std::max(exact.norm().item<double>(), 0.01 * largest_norm);
  return norm == 0.0 ? ours.to(at::kDouble).norm().item<double>()
                     : ours.to(at::kDouble).sub(exact).norm().item<double>() / norm;
}

void expect_matches_autograd(const Case& c) {
  const at::ScalarType dtype = c.in.v_TAV.scalar_type();
  const Output out = run(c);
  const std::array<Tensor, 5> leaves = {leaf64(c.in.q_TGK), leaf64(c.in.k_TGK), leaf64(c.in.v_TAV),
                                        leaf64(c.in.log_decay), leaf64(c.in.beta_TA)};
  const Tensor y64 = reference(leaves, c.in);
  y64.backward(c.dy.to(at::kDouble));
  EXPECT_LE(relative_error(out.y, y64), tolerance(dtype));
  double largest = 0.0;
  for (const Tensor& leaf : leaves) largest = std::max(largest, leaf.grad().norm().item<double>());
  const std::array<Tensor, 5> gradients = out.gradients();
  const char* names[] = {"q", "k", "v", "log decay", "beta"};
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    // Of a query or key of one number its length takes everything: what is left is rounding.
    const bool is_rounding = i < 2 && c.in.q_TGK.size(2) == 1;
    EXPECT_LE(error_of(gradients[i], leaves[i].grad(), is_rounding ? 100.0 * largest : largest), tolerance(dtype))
        << names[i];
  }
}

TEST(DeltaRuleTest, MatchesAutograd) {
  std::mt19937_64 generator(1);
  for (const Shape& shape : kShapes) {
    for (const Decay decay : {Decay::kOfHead, Decay::kOfChannel}) {
      for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
        SCOPED_TRACE(fmt::format("B {} S {} G {} A {} K {} V {} chunk {} {} {}", shape.sequences, shape.length,
                                 shape.key_heads, shape.value_heads, shape.key, shape.value, shape.chunk,
                                 decay == Decay::kOfHead ? "head" : "channel", c10::toString(dtype)));
        expect_matches_autograd(random_case(shape, decay, dtype, 0.3, generator));
      }
    }
  }
}

// Log decays of −50 a token: in 64 tokens exp would leave the range of a float on either side.
TEST(DeltaRuleTest, StatesThatForgetAtOnceStayFinite) {
  std::mt19937_64 generator(2);
  for (const Decay decay : {Decay::kOfHead, Decay::kOfChannel}) {
    for (const double scale : {0.0, 5.0, 50.0}) {
      SCOPED_TRACE(fmt::format("{} {}", decay == Decay::kOfHead ? "head" : "channel", scale));
      expect_matches_autograd(random_case({1, 70, 1, 2, 12, 8, 64, false}, decay, at::kFloat, scale, generator));
    }
  }
}

// Where a head forgets nearly all, the gradient of its decay is tiny beside a token's product with itself: a form that
// adds that and takes it away again, as transformers' chunks do, has no digit left.
TEST(DeltaRuleTest, AFastDecaysGradientKeepsItsDigits) {
  std::mt19937_64 generator(31);
  for (const Shape& shape : {Shape{1, 21, 2, 2, 12, 4, 64, false}, Shape{2, 70, 1, 2, 8, 6, 16, true}}) {
    for (const double shift : {6.0, 14.0, 30.0}) {
      Case c = random_case(shape, Decay::kOfHead, at::kFloat, 1.0, generator);
      c.in.log_decay.sub_(shift);
      const std::array<Tensor, 5> leaves = {leaf64(c.in.q_TGK), leaf64(c.in.k_TGK), leaf64(c.in.v_TAV),
                                            leaf64(c.in.log_decay), leaf64(c.in.beta_TA)};
      reference(leaves, c.in).backward(c.dy.to(at::kDouble));
      EXPECT_LE(relative_error(run(c).gradient.log_decay, leaves[3].grad()), tolerance(at::kFloat)) << shift;
    }
  }
}

TEST(DeltaRuleTest, TakesWhatIsDeclaredHoweverDocumentsArePacked) {
  ops::install_allocator();
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  std::mt19937_64 generator(32);
  for (const Shape& shape : kShapes) {
    for (const Decay decay : {Decay::kOfHead, Decay::kOfChannel}) {
      const Case c = random_case(shape, decay, at::kFloat, 1.0, generator);
      const model::DeltaSizes sizes{.batch = shape.sequences,
                                    .sequence = shape.length,
                                    .key_heads = shape.key_heads,
                                    .value_heads = shape.value_heads,
                                    .key_size = shape.key,
                                    .value_size = shape.value,
                                    .decay_width = decay == Decay::kOfChannel ? shape.key : 1,
                                    .chunk_size = shape.chunk};
      ops::reset_peak();
      run(c);
      EXPECT_EQ(ops::memory_report().scratch_peak_bytes,
                model::OpScratch{}.delta_rule_backward(sizes, DType::kFloat32));
    }
  }
  at::set_num_threads(threads);
}

TEST(DeltaRuleTest, MatchesFiniteDifferences) {
  std::mt19937_64 generator(3);
  for (const Decay decay : {Decay::kOfHead, Decay::kOfChannel}) {
    const Case c = random_case({1, 6, 1, 2, 3, 2, 4, true}, decay, at::kDouble, 0.3, generator);
    const std::array<Tensor, 5> gradients = run(c).gradients();
    const auto with = [&](std::size_t i, const Tensor& point) {
      Case changed = c;
      Tensor* inputs[] = {&changed.in.q_TGK, &changed.in.k_TGK, &changed.in.v_TAV, &changed.in.log_decay,
                          &changed.in.beta_TA};
      *inputs[i] = point;
      Tensor y = poisoned(c.dy.sizes().vec(), at::kDouble);
      ops::delta_rule_forward(changed.in, y);
      return y.mul(c.dy).sum().item<double>();
    };
    const Tensor inputs[] = {c.in.q_TGK, c.in.k_TGK, c.in.v_TAV, c.in.log_decay, c.in.beta_TA};
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      const auto loss = [&](const Tensor& point) { return with(i, point); };
      EXPECT_LE(relative_error(gradients[i], finite_difference(loss, inputs[i].contiguous())), 1e-6) << i;
    }
  }
}

TEST(DeltaRuleTest, TheChunkIsNoPartOfTheResult) {
  std::mt19937_64 generator(4);
  for (const Decay decay : {Decay::kOfHead, Decay::kOfChannel}) {
    Case c = random_case({1, 45, 2, 2, 6, 5, 45, true}, decay, at::kDouble, 0.3, generator);
    const Output whole = run(c);
    for (const std::int64_t chunk : {1, 2, 16, 31, 1000}) {
      c.in.chunk_size = chunk;
      const Output cut = run(c);
      EXPECT_LE(relative_error(cut.y, whole.y), 1e-12) << chunk;
      for (std::size_t i = 0; i < cut.gradients().size(); ++i) {
        EXPECT_LE(relative_error(cut.gradients()[i], whole.gradients()[i]), 1e-11) << chunk << " " << i;
      }
    }
  }
}

TEST(DeltaRuleTest, DocumentsAreApartToTheBit) {
  std::mt19937_64 generator(5);
  Case whole = random_case({1, 30, 1, 2, 8, 4, 8, false}, Decay::kOfChannel, at::kFloat, 0.3, generator);
  Tensor first = at::zeros({1, 30}, at::kInt);
  first.narrow(1, 11, 19).fill_(11);
  whole.in.first_key_BS = first;
  const Output packed = run(whole);
  for (const auto& [begin, length] : {std::pair{0, 11}, {11, 19}}) {
    const auto part = [b = begin, n = length](const Tensor& x) { return x.narrow(0, b, n); };
    Case alone = whole;
    for (Tensor* tensor :
         {&alone.in.q_TGK, &alone.in.k_TGK, &alone.in.v_TAV, &alone.in.log_decay, &alone.in.beta_TA, &alone.dy}) {
      *tensor = part(*tensor);
    }
    alone.in.seq_length = length;
    alone.in.first_key_BS = Tensor();
    const Output out = run(alone);
    EXPECT_TRUE(at::equal(out.y, part(packed.y)));
    for (std::size_t i = 0; i < out.gradients().size(); ++i) {
      EXPECT_TRUE(at::equal(out.gradients()[i], part(packed.gradients()[i]))) << i;
    }
  }
}

TEST(DeltaRuleTest, TheSameBitsWithOneThread) {
  std::mt19937_64 generator(6);
  const Case c = random_case({2, 50, 3, 6, 16, 8, 16, true}, Decay::kOfChannel, at::kFloat, 0.3, generator);
  const Output two = run(c);
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const Output one = run(c);
  at::set_num_threads(threads);
  EXPECT_TRUE(at::equal(one.y, two.y));
  for (std::size_t i = 0; i < one.gradients().size(); ++i) {
    EXPECT_TRUE(at::equal(one.gradients()[i], two.gradients()[i])) << i;
  }
}

TEST(DeltaRuleTest, RefusesShapesThatDoNotAgree) {
  std::mt19937_64 generator(7);
  const Case c = random_case({2, 6, 2, 4, 3, 5, 4, false}, Decay::kOfHead, at::kFloat, 0.3, generator);
  Tensor y = at::zeros({12, 4, 6}, at::kFloat);
  EXPECT_THROW(ops::delta_rule_forward(c.in, y), InternalError);
  Tensor fitting = at::zeros({12, 4, 5}, at::kFloat);
  Case odd = c;
  odd.in.seq_length = 5;
  EXPECT_THROW(ops::delta_rule_forward(odd.in, fitting), InternalError);
  odd = c;
  odd.in.beta_TA = c.in.beta_TA.to(at::kDouble);
  EXPECT_THROW(ops::delta_rule_forward(odd.in, fitting), InternalError);
  odd = c;
  odd.in.q_TGK = c.in.q_TGK.narrow(1, 0, 1).expand({12, 3, 3});
  EXPECT_THROW(ops::delta_rule_forward(odd.in, fitting), InternalError);
}

}  // namespace
}  // namespace primus
