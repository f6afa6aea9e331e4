// MLP and MoE sublayers with every option, alone: against the formulas of reference_mlp.cpp, and what must not change.
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include "nn/moe.hpp"
#include "nn/reference.hpp"
#include "nn/specs.hpp"
#include "ops/allocator.hpp"

namespace primus {
namespace {

using at::Tensor;
using namespace primus::test;

model::NumericPolicy policy_of(at::ScalarType dtype) {
  return dtype == at::kDouble ? model::float64_policy() : model::NumericPolicy{};
}

/// Parameters and buffers of layer 1, none of them zero.
nn::ParameterStore make_store(const model::ModelSpec& spec, const model::NumericPolicy& policy, std::uint64_t seed) {
  nn::ParameterStore store(model::layer_parameters(spec, 1), policy, seed);
  std::mt19937_64 generator(seed + 5);
  for (const auto& parameter : store.all()) {
    if (parameter->descriptor.init.kind != model::InitKind::kZeros) continue;
    parameter->weight.copy_(random_normal(parameter->descriptor.shape, at::kDouble, generator, 0.3));
  }
  return store;
}

/// An MoE layer, its saved tensors, and one micro-batch through it.
struct Rig {
  Rig(const model::ModelSpec& model_spec, const model::NumericPolicy& numeric_policy, model::BatchShape micro_batch,
      std::uint64_t seed)
      : spec(model_spec),
        policy(numeric_policy),
        batch(micro_batch),
        store(make_store(spec, policy, seed)),
        moe(spec, policy, 1, store) {
    step.batch = batch;
    step.aux_scale = 0.5;
    step.seed = 17;
    step.first_token = 1000;
  }

  Tensor forward(const Tensor& x) {
    saved = std::make_unique<nn::Saved>(model::moe_saved(spec, policy, batch, 1));
    Tensor y = at::zeros_like(x);
    moe.forward(x, *saved, step, y);
    return y;
  }
  Tensor backward(const Tensor& dy, const Tensor& x) {
    Tensor dx = poisoned({x.size(0), x.size(1)}, x.scalar_type());
    moe.backward(dy, x, *saved, step, dx);
    return dx;
  }

  model::ModelSpec spec;
  model::NumericPolicy policy;
  model::BatchShape batch;
  nn::ParameterStore store;
  nn::Moe moe;
  nn::StepContext step;
  std::unique_ptr<nn::Saved> saved;
};

/// Compares output, input gradient and every parameter gradient of the layer's MLP with autograd's.
void expect_autograd(Rig& rig, const Tensor& x, const Tensor& dy, const ReferenceRouting& routing, double bound) {
  const Tensor y = rig.forward(x);
  const Tensor dx = rig.backward(dy, x);
  const ReferenceParameters p = reference_parameters(rig.store);
  const Tensor x64 = leaf64(x);
  const ReferenceBlock block = reference_mlp(
      x64.view({rig.batch.num_sequences, rig.batch.seq_length, rig.spec.hidden_size}), rig.spec, 1, p, routing);
  ((block.y_BSH.view(dy.sizes()) * dy.to(at::kDouble)).sum() + block.aux_loss * rig.step.aux_scale).backward();
  EXPECT_LE(relative_error(y, block.y_BSH.view(dy.sizes())), bound);
  EXPECT_LE(relative_error(dx, x64.grad()), bound);
  EXPECT_TRUE(at::equal(rig.moe.metrics().tokens_per_expert_E.to(at::kDouble), block.count_E));
  EXPECT_LE(std::abs(rig.moe.metrics().loss_4.sum().item<double>() - block.aux_loss.item<double>()),
            bound * std::abs(block.aux_loss.item<double>()));
  std::string worst;
  EXPECT_LE(worst_gradient_error(rig.store, p, &worst), bound) << worst;
}

class MoeTest : public ::testing::TestWithParam<int> {
 public:
  static void SetUpTestSuite() {
    ops::install_allocator();
    ops::set_fresh_memory(ops::FreshMemory::kPoisoned);
  }

  /// A model with every option that this seed's generator switches on.
  model::ModelSpec spec() const {
    model::ModelSpec spec = random_spec(seed());
    randomise_mlp(spec, seed());
    if (generator_()() % 2 == 0) spec.linear_bias = model::Part::kPresent;
    return spec;
  }
  std::uint64_t seed() const { return static_cast<std::uint64_t>(GetParam()) + 700; }
  std::function<std::uint64_t()> generator_() const {
    return [engine = std::mt19937_64(seed() * 31)]() mutable { return engine(); };
  }
};

TEST_P(MoeTest, MatchesAutograd) {
  std::mt19937_64 generator(seed());
  const model::ModelSpec spec = this->spec();
  const model::BatchShape batch = random_batch(seed());
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat}) {
    Rig rig(spec, policy_of(dtype), batch, seed());
    const Tensor x = random_normal({batch.num_tokens(), spec.hidden_size}, dtype, generator);
    const Tensor dy = random_normal({batch.num_tokens(), spec.hidden_size}, dtype, generator);
    expect_autograd(rig, x, dy, {}, tolerance(dtype));
  }
}

TEST_P(MoeTest, CapacityMatchesAutograd) {
  std::mt19937_64 generator(seed());
  model::ModelSpec spec = this->spec();
  const model::BatchShape batch{.num_sequences = 2, .seq_length = 13};
  model::ExpertCapacity capacity{.factor = 0.4 + 0.2 * static_cast<double>(GetParam() % 6)};
  if (GetParam() % 2 == 1) capacity.drop = model::ExpertCapacity::Drop::kPosition;
  for (const auto free_rows : {model::ExpertCapacity::FreeRows::kLeftOut, model::ExpertCapacity::FreeRows::kKept}) {
    capacity.free_rows = free_rows;
    spec.moe->router.capacity = capacity;
    for (const at::ScalarType dtype : {at::kDouble, at::kFloat}) {
      Rig rig(spec, policy_of(dtype), batch, seed());
      const Tensor x = random_normal({batch.num_tokens(), spec.hidden_size}, dtype, generator);
      const Tensor dy = random_normal({batch.num_tokens(), spec.hidden_size}, dtype, generator);
      expect_autograd(rig, x, dy, {}, tolerance(dtype));
    }
  }
}

/// Filling in the micro-batch, whatever it holds, and jitter on the router's input.
TEST_P(MoeTest, FillingAndJitterMatchAutograd) {
  std::mt19937_64 generator(seed());
  model::ModelSpec spec = this->spec();
  spec.moe->router.input_jitter = 0.2;
  const model::BatchShape batch{.num_sequences = 3, .seq_length = 9};
  if (GetParam() % 3 == 0) spec.moe->router.capacity = model::ExpertCapacity{.factor = 0.8};
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat}) {
    Rig rig(spec, policy_of(dtype), batch, seed());
    rig.step.is_routed_T = random_int({27}, at::kLong, 0, 4, generator).ne(0);
    ReferenceRouting routing{.is_routed_T = rig.step.is_routed_T};
    // The factors from the op, which has a test of its own, on ones.
    routing.jitter_TH = poisoned({27, spec.hidden_size}, at::kDouble);
    ops::token_jitter(at::ones({27, spec.hidden_size}, at::kDouble),
                      {.seed = 17, .stream = stream_id("decoder.layers.1.mlp.router.jitter"), .first_token = 1000}, 0.2,
                      routing.jitter_TH, ops::Write::kOverwrite);
    const Tensor x = random_normal({27, spec.hidden_size}, dtype, generator);
    const Tensor dy = random_normal({27, spec.hidden_size}, dtype, generator);
    expect_autograd(rig, x, dy, routing, tolerance(dtype));
  }
}

/// An fp64 router beside fp32 activations: its own part is exact to fp32's rounding of what goes in and out.
TEST_P(MoeTest, WideRouterMatchesAutograd) {
  std::mt19937_64 generator(seed());
  model::ModelSpec spec = this->spec();
  if (GetParam() % 2 == 0) spec.moe->router.input_jitter = 0.0;
  const model::BatchShape batch = random_batch(seed());
  model::NumericPolicy policy;
  policy.router = DType::kFloat64;
  Rig rig(spec, policy, batch, seed());
  const Tensor x = random_normal({batch.num_tokens(), spec.hidden_size}, at::kFloat, generator);
  const Tensor dy = random_normal({batch.num_tokens(), spec.hidden_size}, at::kFloat, generator);
  expect_autograd(rig, x, dy, {}, tolerance(at::kFloat));
  EXPECT_EQ(rig.moe.metrics().loss_4.scalar_type(), at::kDouble);
}

TEST_P(MoeTest, DeferredWeightGradientsAreTheSameBits) {
  std::mt19937_64 generator(seed());
  model::ModelSpec spec = this->spec();
  spec.moe->router.input_jitter = 0.1;
  const model::BatchShape batch = random_batch(seed());
  const Tensor x = random_normal({batch.num_tokens(), spec.hidden_size}, at::kFloat, generator);
  const Tensor dy = random_normal({batch.num_tokens(), spec.hidden_size}, at::kFloat, generator);
  Rig now(spec, {}, batch, seed());
  Rig later(spec, {}, batch, seed());
  later.step.weight_grad = nn::WeightGradTiming::kDeferred;
  now.forward(x);
  later.forward(x);
  EXPECT_TRUE(at::equal(now.backward(dy, x), later.backward(dy, x)));
  later.moe.weight_grad(*later.saved);
  for (std::size_t i = 0; i < now.store.all().size(); ++i) {
    const nn::Parameter& parameter = *now.store.all()[i];
    if (!parameter.main_grad.defined()) continue;
    EXPECT_TRUE(at::equal(parameter.main_grad, later.store.all()[i]->main_grad)) << parameter.descriptor.name;
  }
}

TEST_P(MoeTest, HeldBytesAreTheDeclaredOnes) {
  std::mt19937_64 generator(seed());
  model::ModelSpec spec = this->spec();
  spec.moe->router.input_jitter = 0.1;
  if (GetParam() % 2 == 0) {
    spec.moe->router.capacity = model::ExpertCapacity{.factor = 0.7};
    if (GetParam() % 4 == 0) spec.moe->router.capacity->free_rows = model::ExpertCapacity::FreeRows::kKept;
  }
  const model::BatchShape batch{.num_sequences = 2, .seq_length = 11};
  model::NumericPolicy policy;
  if (GetParam() % 3 == 0) policy.router = DType::kFloat64;
  if (GetParam() % 3 == 1) policy.parameters = policy.activations = DType::kBFloat16;
  Rig rig(spec, policy, batch, seed());
  const Tensor x = random_normal({22, spec.hidden_size}, ops::to_aten(policy.activations), generator);
  const Tensor dy = random_normal({22, spec.hidden_size}, ops::to_aten(policy.activations), generator);
  const model::SavedDeclaration declaration = model::moe_saved(spec, policy, batch, 1);
  const ops::MemoryReport before = ops::memory_report();
  {
    const Tensor y = rig.forward(x);
    const std::int64_t output_bytes = y.numel() * y.element_size();
    const ops::MemoryReport after = ops::memory_report();
    std::int64_t declared[model::kNumSavedCategories] = {};
    declaration.add_by_category(declared);
    for (int category = 0; category < model::kNumSavedCategories; ++category) {
      const ops::MemoryTag tag = ops::saved_tag(static_cast<model::SavedCategory>(category));
      EXPECT_EQ(after.held(tag) - before.held(tag), declared[category]) << ops::name(tag);
    }
    EXPECT_EQ(after.total_bytes - before.total_bytes, declaration.size_bytes() + output_bytes);
  }
  rig.backward(dy, x);
  EXPECT_EQ(ops::memory_report().total_bytes, before.total_bytes) << "backward leaves nothing behind";
}

/// A forward pass again, for its saved tensors: the same bits in all of them, and no count moves.
TEST_P(MoeTest, RecomputeGivesTheSameBitsAndCountsNothing) {
  std::mt19937_64 generator(seed());
  model::ModelSpec spec = this->spec();
  spec.moe->router.input_jitter = 0.1;
  const model::BatchShape batch{.num_sequences = 2, .seq_length = 11};
  Rig rig(spec, {}, batch, seed());
  std::vector<Tensor> x;
  std::vector<std::vector<Tensor>> kept;
  const auto saved_tensors = [&] {
    std::vector<Tensor> tensors;
    const auto& declared = model::moe_saved(spec, rig.policy, batch, 1).tensors;
    for (int slot = 0; slot < std::ssize(declared); ++slot) {
      if (declared[static_cast<std::size_t>(slot)].num_elements() > 0) tensors.push_back(rig.saved->at(slot).clone());
    }
    return tensors;
  };
  for (int m = 0; m < 3; ++m) {
    x.push_back(random_normal({22, spec.hidden_size}, at::kFloat, generator));
    rig.step.first_token = 1000 + 22 * m;
    rig.forward(x.back());
    kept.push_back(saved_tensors());
  }
  const Tensor counts = rig.moe.metrics().tokens_per_expert_E.clone();
  const Tensor losses = rig.moe.metrics().loss_4.clone();
  rig.step.mode = nn::Mode::kRecompute;
  for (const int m : {2, 0, 1}) {
    rig.step.first_token = 1000 + 22 * m;
    rig.forward(x[static_cast<std::size_t>(m)]);
    const std::vector<Tensor> again = saved_tensors();
    for (std::size_t i = 0; i < again.size(); ++i) {
      EXPECT_TRUE(at::equal(again[i], kept[static_cast<std::size_t>(m)][i])) << "micro-batch " << m << " tensor " << i;
    }
  }
  rig.step.mode = nn::Mode::kEvaluation;
  rig.forward(x[0]);
  EXPECT_TRUE(at::equal(counts, rig.moe.metrics().tokens_per_expert_E));
  EXPECT_TRUE(at::equal(losses, rig.moe.metrics().loss_4));
}

/// Experts by the token's id, weighed by the router: whatever else the model's other layers choose by.
TEST_P(MoeTest, ChoicesByTokenMatchAutogradAndHoldWhatTheyDeclare) {
  std::mt19937_64 generator(seed());
  model::ModelSpec spec = this->spec();
  spec.num_hash_layers = 2;
  const model::BatchShape batch = random_batch(seed());
  const Tensor ids = random_int({batch.num_tokens()}, at::kLong, 0, spec.vocab_size, generator);
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat}) {
    Rig rig(spec, policy_of(dtype), batch, seed());
    rig.step.ids_T = ids;
    const Tensor x = random_normal({batch.num_tokens(), spec.hidden_size}, dtype, generator);
    const Tensor dy = random_normal({batch.num_tokens(), spec.hidden_size}, dtype, generator);
    expect_autograd(rig, x, dy, {.ids_T = ids}, tolerance(dtype));
    const std::int64_t before = ops::memory_report().total_bytes;
    const Tensor y = rig.forward(x);
    EXPECT_EQ(ops::memory_report().total_bytes - before,
              model::moe_saved(spec, rig.policy, batch, 1).size_bytes() + y.numel() * y.element_size());
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, MoeTest, ::testing::Range(0, 24));

/// Each token has as many different experts as are chosen, every expert its share of the tokens, and another layer
/// other ones.
TEST(MoeFixedTest, TablesOfExpertsSpreadTheTokens) {
  model::ModelSpec spec = random_spec(902);
  spec.vocab_size = 4000;
  spec.moe->router.num_experts = 10;
  spec.moe->router.top_k = 3;
  spec.layers = {model::LayerKind::kMoe, model::LayerKind::kMoe, model::LayerKind::kMoe};
  spec.num_hash_layers = 2;
  nn::ParameterStore store(model::model_parameters(spec), {}, 4);
  const auto table = [&](int layer) {
    return store.get(fmt::format("decoder.layers.{}.mlp.router.token_experts", layer)).weight;
  };
  const Tensor experts_VK = table(0).to(at::kLong);
  const Tensor used_VE = at::zeros({spec.vocab_size, 10}, at::kDouble).scatter(1, experts_VK, 1.0);
  EXPECT_TRUE(used_VE.sum(1).eq(3.0).all().item<bool>());
  for (int k = 0; k < 3; ++k) {
    const Tensor share_E = at::zeros({spec.vocab_size, 10}, at::kDouble).scatter(1, experts_VK.narrow(1, k, 1), 1.0);
    EXPECT_LT(share_E.sum(0).sub(400.0).abs().max().item<double>(), 80.0) << "choice " << k;  // 4 deviations
  }
  EXPECT_GT(table(0).ne(table(1)).sum().item<std::int64_t>(), spec.vocab_size);
  EXPECT_FALSE(table(0).requires_grad());
  for (const auto& parameter : store.all()) {
    EXPECT_EQ(parameter->descriptor.name.find("layers.2.mlp.router.token_experts"), std::string::npos);
  }
}

model::ModelSpec small_spec() {
  model::ModelSpec spec = random_spec(901);
  spec.hidden_size = 8;
  spec.moe->router.num_experts = 4;
  spec.moe->router.top_k = 2;
  spec.moe->router.score_function = model::ScoreFunction::kSigmoid;
  return spec;
}

/// Micro-batches of a step: the global loss of each sees the mean counts so far.
TEST(MoeFixedTest, GlobalLossSeesTheStepsEarlierMicroBatches) {
  std::mt19937_64 generator(50);
  model::ModelSpec spec = small_spec();
  spec.moe->router.losses = {.global_aux = 0.5};
  const model::BatchShape batch{.num_sequences = 1, .seq_length = 10};
  Rig rig(spec, model::float64_policy(), batch, 3);
  const ReferenceParameters p = reference_parameters(rig.store);
  ReferenceRouting routing{.earlier_count_E = at::zeros({4}, at::kDouble)};
  double expected = 0.0;
  for (int m = 0; m < 4; ++m) {
    const Tensor x = random_normal({10, 8}, at::kDouble, generator);
    rig.step.first_token = 10 * m;
    rig.forward(x);
    routing.num_earlier = m;
    const ReferenceBlock block = reference_mlp(x.view({1, 10, 8}), spec, 1, p, routing);
    expected += block.aux_loss.item<double>();
    routing.earlier_count_E = routing.earlier_count_E + block.count_E;
    EXPECT_NEAR(rig.moe.metrics().loss_4.sum().item<double>(), expected, 1e-13) << m;
  }
  rig.moe.router().reset_metrics();
  const Tensor x = random_normal({10, 8}, at::kDouble, generator);
  rig.forward(x);
  const double alone = reference_mlp(x.view({1, 10, 8}), spec, 1, p).aux_loss.item<double>();
  EXPECT_NEAR(rig.moe.metrics().loss_4.sum().item<double>(), alone, 1e-14) << "a new step starts from nothing";
}

void set_counts(nn::Moe& moe, const std::vector<std::int64_t>& counts) {
  Tensor tensor = moe.metrics().tokens_per_expert_E;
  std::copy(counts.begin(), counts.end(), tensor.data_ptr<std::int64_t>());
}

TEST(MoeFixedTest, ExpertBiasMovesByTheSignOfTheShortfall) {
  model::ModelSpec spec = small_spec();
  spec.moe->router.expert_bias = model::RouterSpec::ExpertBias::kOn;
  spec.moe->router.expert_bias_rate = 1e-3;
  Rig rig(spec, {}, {.num_sequences = 1, .seq_length = 4}, 3);
  Tensor bias = rig.store.get("decoder.layers.1.mlp.router.expert_bias").weight;
  bias.zero_();
  const auto moved = [&](const std::vector<std::int64_t>& counts) {
    bias.zero_();
    set_counts(rig.moe, counts);
    comm::SingleGroup one;
    rig.moe.router().update_bias(one, at::ones({1}, at::kInt));
    const auto* data = bias.data_ptr<float>();
    return std::vector<float>(data, data + 4);
  };
  EXPECT_EQ(moved({6, 2, 4, 4}), (std::vector<float>{-1e-3F, 1e-3F, 0.0F, 0.0F}));
  EXPECT_EQ(moved({9, 1, 1, 1}), (std::vector<float>{-1e-3F, 1e-3F, 1e-3F, 1e-3F}));  // no mean is taken out
  EXPECT_EQ(moved({0, 0, 0, 0}), (std::vector<float>{0.0F, 0.0F, 0.0F, 0.0F}));
}

/// The bias finds a balance that the router alone does not have.
TEST(MoeFixedTest, ExpertBiasBalancesTheLoad) {
  std::mt19937_64 generator(51);
  model::ModelSpec spec = small_spec();
  spec.moe->router.expert_bias = model::RouterSpec::ExpertBias::kOn;
  spec.moe->router.expert_bias_rate = 0.002;
  Rig rig(spec, {}, {.num_sequences = 1, .seq_length = 400}, 3);
  Tensor bias = rig.store.get("decoder.layers.1.mlp.router.expert_bias").weight;
  bias.zero_();
  Tensor x = random_normal({400, 8}, at::kFloat, generator);
  x.select(1, 0).fill_(1.0);
  Tensor router = rig.store.get("decoder.layers.1.mlp.router.weight").weight;
  router.select(1, 0).copy_(at::ones({4}, at::kFloat).cumsum(0, at::kFloat));
  const auto worst = [&] { return rig.moe.metrics().tokens_per_expert_E.max().item<double>() / 200.0; };
  rig.forward(x);
  EXPECT_GT(worst(), 1.5);
  comm::SingleGroup one;
  for (int step = 0; step < 400; ++step) {
    rig.moe.router().update_bias(one, at::ones({1}, at::kInt));
    rig.moe.router().reset_metrics();
    rig.forward(x);
  }
  EXPECT_LT(worst(), 1.1);
}

TEST(MoeFixedTest, QuantileBiasIsTheCentredMeanOfTheStep) {
  std::mt19937_64 generator(52);
  model::ModelSpec spec = small_spec();
  spec.moe->router.score_function = model::ScoreFunction::kSoftmax;
  spec.moe->router.assignment = model::RouterSpec::Assignment::kQuantile;
  spec.moe->router.quantile_ema = 0.25;
  Rig rig(spec, model::float64_policy(), {.num_sequences = 1, .seq_length = 50}, 3);
  Tensor bias = rig.store.get("decoder.layers.1.mlp.router.quantile_bias").weight;
  const Tensor before = bias.clone();
  Tensor sum = at::zeros({4}, at::kDouble);
  for (int m = 0; m < 2; ++m) {
    const Tensor x = random_normal({50, 8}, at::kDouble, generator);
    rig.forward(x);
    // Against sorted columns: every expert's 25th value and the next (rank 50·2/4) of logit − the third best of the
    // row.
    const Tensor logits = x.matmul(rig.store.get("decoder.layers.1.mlp.router.weight").weight.t());
    const Tensor threshold = std::get<0>((logits - before).sort(1, true)).select(1, 2);
    sum = sum + std::get<0>((logits - threshold.unsqueeze(1)).sort(0, true)).select(0, 25);
  }
  comm::SingleGroup one;
  rig.moe.router().update_bias(one, at::ones({1}, at::kInt));
  const Tensor blended = before * 0.25 + sum * (0.75 / 2.0);
  EXPECT_LE(relative_error(bias, blended - blended.mean()), 1e-13);
}

/// Random logits in the router's place: keyed by the token, even on average, with the favour that is asked for.
TEST(MoeFixedTest, ForcedRandomRoutingDependsOnTheTokenAlone) {
  std::mt19937_64 generator(53);
  model::ModelSpec spec = small_spec();
  spec.moe->router.balance = model::RouterSpec::Balance::kRandom;
  const model::BatchShape batch{.num_sequences = 1, .seq_length = 1000};
  Rig rig(spec, {}, batch, 3);
  rig.forward(random_normal({1000, 8}, at::kFloat, generator));
  const Tensor first = rig.saved->at(model::MoeSlot::kIndex).clone();
  rig.forward(random_normal({1000, 8}, at::kFloat, generator));  // other tokens, same places
  EXPECT_TRUE(at::equal(first, rig.saved->at(model::MoeSlot::kIndex)));
  for (int e = 0; e < 4; ++e) {
    EXPECT_NEAR(rig.moe.metrics().tokens_per_expert_E[e].item<double>(), 1000.0, 100.0);
  }
  rig.step.first_token += 1000;
  rig.forward(random_normal({1000, 8}, at::kFloat, generator));
  EXPECT_FALSE(at::equal(first, rig.saved->at(model::MoeSlot::kIndex)));
  spec.moe->router.forced_imbalance = -3.0;
  Rig biased(spec, {}, batch, 3);
  biased.forward(random_normal({1000, 8}, at::kFloat, generator));
  EXPECT_GT(biased.moe.metrics().tokens_per_expert_E.max().item<double>(), 800.0);
  const Tensor once = biased.moe.metrics().tokens_per_expert_E.clone();
  biased.step.first_token += 5000;
  biased.moe.router().reset_metrics();
  biased.forward(random_normal({1000, 8}, at::kFloat, generator));
  EXPECT_EQ(biased.moe.metrics().tokens_per_expert_E.argmax().item<std::int64_t>(), once.argmax().item<std::int64_t>());
}

/// A token's jitter does not depend on how the tokens are cut into micro-batches, and evaluation has none.
TEST(MoeFixedTest, JitterIsKeyedByTheGlobalToken) {
  std::mt19937_64 generator(54);
  model::ModelSpec spec = small_spec();
  spec.moe->router.input_jitter = 0.3;
  spec.moe->router.losses = {};
  const Tensor x = random_normal({24, 8}, at::kFloat, generator);
  Rig whole(spec, {}, {.num_sequences = 4, .seq_length = 6}, 3);
  const Tensor y = whole.forward(x);
  Rig part(spec, {}, {.num_sequences = 1, .seq_length = 6}, 3);
  for (std::int64_t first = 0; first < 24; first += 6) {
    part.step.first_token = whole.step.first_token + first;
    EXPECT_LE(relative_error(part.forward(x.narrow(0, first, 6)), y.narrow(0, first, 6)), 1e-6) << first;
  }
  whole.step.mode = nn::Mode::kEvaluation;
  const Tensor evaluated = whole.forward(x);
  EXPECT_GT(relative_error(evaluated, y), 1e-3);
  spec.moe->router.input_jitter = 0.0;
  Rig plain(spec, {}, {.num_sequences = 4, .seq_length = 6}, 3);
  EXPECT_TRUE(at::equal(plain.forward(x), evaluated));
}

/// Full capacity computed or not: the same numbers.
TEST(MoeFixedTest, FreeRowsChangeNothing) {
  std::mt19937_64 generator(55);
  model::ModelSpec spec = small_spec();
  spec.linear_bias = model::Part::kPresent;
  const model::BatchShape batch{.num_sequences = 2, .seq_length = 16};
  const Tensor x = random_normal({32, 8}, at::kFloat, generator);
  const Tensor dy = random_normal({32, 8}, at::kFloat, generator);
  std::vector<Tensor> results;
  for (const auto free_rows : {model::ExpertCapacity::FreeRows::kLeftOut, model::ExpertCapacity::FreeRows::kKept}) {
    spec.moe->router.capacity = model::ExpertCapacity{.factor = 1.1, .free_rows = free_rows};
    Rig rig(spec, {}, batch, 3);
    results.push_back(rig.forward(x));
    results.push_back(rig.backward(dy, x));
    results.push_back(rig.store.get("decoder.layers.1.mlp.experts.linear_fc1.weight").main_grad);
    results.push_back(rig.store.get("decoder.layers.1.mlp.router.weight").main_grad);
  }
  for (std::size_t i = 0; i < 4; ++i) EXPECT_LE(relative_error(results[i + 4], results[i]), 1e-6) << i;
}

/// Sinkhorn balances training batches; evaluation chooses each token's best, whatever its neighbours.
TEST(MoeFixedTest, SinkhornIsForTrainingOnly) {
  std::mt19937_64 generator(56);
  model::ModelSpec spec = small_spec();
  spec.moe->router.assignment = model::RouterSpec::Assignment::kSinkhorn;
  spec.moe->router.losses = {};
  Rig rig(spec, model::float64_policy(), {.num_sequences = 1, .seq_length = 200}, 3);
  Tensor x = random_normal({200, 8}, at::kDouble, generator);
  x.select(1, 0).fill_(2.0);
  rig.store.get("decoder.layers.1.mlp.router.weight").weight.select(1, 0).copy_(at::ones({4}).cumsum(0, at::kDouble));
  rig.forward(x);
  EXPECT_LT(rig.moe.metrics().tokens_per_expert_E.max().item<double>(), 150.0);
  rig.step.mode = nn::Mode::kEvaluation;
  rig.forward(x);
  const Tensor logits = x.matmul(rig.store.get("decoder.layers.1.mlp.router.weight").weight.t());
  EXPECT_TRUE(at::equal(rig.saved->at(model::MoeSlot::kIndex).to(at::kLong), std::get<1>(logits.topk(2, 1))));
}

}  // namespace
}  // namespace primus
