// Pairs of options: a covering array over the table below. Each row trains ten steps; recomputation changes no bit,
// fused and unfused loss agree, and so do micro-batches of 1, 2 and 4 sequences. A new option is a row of kTable.
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <cmath>

#include "covering_array.hpp"
#include "ops/allocator.hpp"
#include "rig.hpp"

namespace primus {
namespace {

using namespace primus::test;
using model::RecomputeModule;

/// Everything that an option may change.
struct Combination {
  model::ModelSpec spec;
  engine::StepSettings step;
  model::OptimizerSpec optimizer;
  double learning_rate = 1e-2;
};

struct Option {
  const char* name;
  void (*apply)(Combination& setup);
};
struct Dimension {
  const char* name;
  std::vector<Option> options;
};

model::RouterSpec& router(Combination& setup) {
  return setup.spec.moe->router;
}

void mla(Combination& setup, std::optional<std::int64_t> q_rank) {
  setup.spec.attention = model::MlaSpec{.num_heads = 2,
                                        .q_lora_rank = q_rank,
                                        .kv_lora_rank = 6,
                                        .qk_head_dim = 5,
                                        .qk_pos_emb_head_dim = 4,
                                        .v_head_dim = 7};
  setup.spec.rope = {.type = model::RopeType::kYarn,
                     .rotary_dim = 4,
                     .scaling_factor = 40.0,
                     .original_max_position = 64,
                     .mscale = 0.707,
                     .mscale_all_dim = 0.707};
}

/// Latent attention to the keys that an indexer picks.
void sparse(Combination& setup, std::int64_t top_k) {
  mla(setup, 5);
  std::get<model::MlaSpec>(setup.spec.attention).indexer =
      model::IndexerSpec{.num_heads = 3, .head_dim = 8, .top_k = top_k, .loss_coefficient = 0.3};
}

void gqa(Combination& setup, std::int64_t groups) {
  setup.spec.attention = model::GqaSpec{.num_heads = 4, .num_query_groups = groups, .head_dim = 6};
  setup.spec.rope = {.type = model::RopeType::kRope, .rotary_dim = 6};
}

/// The experts in two groups, of which a token uses one.
void sigmoid(Combination& setup) {
  model::RouterSpec& spec = router(setup);
  spec.score_function = model::ScoreFunction::kSigmoid;
  spec.num_groups = 2;
  spec.group_top_k = 1;
  spec.expert_bias = model::RouterSpec::ExpertBias::kOn;
  spec.expert_bias_rate = 0.01;
}

/// One layer of attention among four.
void mixers(Combination& setup, model::MixerKind others) {
  setup.spec.mixers = {others, others, model::MixerKind::kAttention, others};
}

/// Of both kinds, beside latent attention with a gate.
void delta_rules(Combination& setup) {
  setup.spec.gated_delta = {
      .num_key_heads = 2, .num_value_heads = 4, .key_head_dim = 5, .value_head_dim = 6, .kernel_size = 4};
  setup.spec.kimi_delta.heads = setup.spec.gated_delta;
  setup.spec.kimi_delta.lowest_decay = -5.0;
  using enum model::MixerKind;
  setup.spec.mixers = {kGatedDelta, kKimiDelta, kAttention, kKimiDelta};
  std::get<model::MlaSpec>(setup.spec.attention).output_gate = model::Part::kPresent;
}

void decorate(Combination& setup) {
  auto& spec = std::get<model::GqaSpec>(setup.spec.attention);
  spec.qk_norms = spec.qkv_bias = spec.output_gate = model::Part::kPresent;
}

void select(Combination& setup, std::vector<RecomputeModule> modules) {
  setup.step.recompute.modules = std::move(modules);
}

void uniform(Combination& setup, int group) {
  for (int layer = 0; layer < 4; ++layer) {
    setup.step.recompute.layers.push_back(layer % group == 0 ? model::LayerRecompute::kAllButInput
                                                             : model::LayerRecompute::kAll);
  }
}

void narrow(Combination& setup, DType type) {
  setup.step.policy.parameters = setup.step.policy.activations = type;
}

void moments(Combination& setup, DType first, DType second) {
  narrow(setup, DType::kBFloat16);
  setup.step.policy.main_gradients = DType::kBFloat16;
  setup.step.policy.first_moment = first;
  setup.step.policy.second_moment = second;
}

void rule(Combination& setup, model::OptimizerKind kind, double rate) {
  setup.optimizer.kind = kind;
  setup.learning_rate = rate;
}

// clang-format off
const std::vector<Dimension>& table() {
  static const std::vector<Dimension> kTable = {
      {"router", {
          {"softmax first", [](Combination& s) { router(s).softmax_order = model::SoftmaxOrder::kPre; }},
          {"top-k first", [](Combination& s) { router(s).softmax_order = model::SoftmaxOrder::kPost; }},
          {"scaled", [](Combination& s) { router(s).scaling_factor = 2.5; }},
          {"one expert", [](Combination& s) { router(s).top_k = 1; router(s).softmax_order = model::SoftmaxOrder::kPre; }},
          {"aux_loss", [](Combination& s) { router(s).losses.aux = 0.1; }},
          {"seq_aux_loss, z loss", [](Combination& s) { router(s).losses.seq_aux = 0.1; router(s).losses.z = 0.01; }},
          {"global_aux_loss, jitter", [](Combination& s) { router(s).losses.global_aux = 0.1; router(s).input_jitter = 0.1; }},
          {"sigmoid, groups, expert bias", [](Combination& s) { sigmoid(s); }},
          {"sigmoid, quantile rule", [](Combination& s) { sigmoid(s); router(s).num_groups = router(s).group_top_k = std::nullopt; router(s).quantile_rule = model::QuantileRule{}; }},
          {"capacity", [](Combination& s) { router(s).capacity = model::ExpertCapacity{.factor = 1.0}; }},
          {"capacity by position, padded", [](Combination& s) { router(s).capacity = model::ExpertCapacity{.factor = 1.5, .drop = model::ExpertCapacity::Drop::kPosition, .free_rows = model::ExpertCapacity::FreeRows::kKept}; }},
          {"Sinkhorn", [](Combination& s) { router(s).assignment = model::RouterSpec::Assignment::kSinkhorn; }},
          {"quantiles, bounded logits", [](Combination& s) { router(s).assignment = model::RouterSpec::Assignment::kQuantile; router(s).logit_softcap = 3.0; }},
          {"forced balance", [](Combination& s) { router(s).balance = model::RouterSpec::Balance::kForced; }},
          {"no shared expert", [](Combination& s) { s.spec.moe->shared_ffn_hidden_size = 0; }}}},
      {"attention", {
          {"mla", [](Combination& s) { mla(s, std::nullopt); }},
          {"mla, low-rank queries", [](Combination& s) { mla(s, 5); }},
          {"gqa", [](Combination& s) { gqa(s, 2); }},
          {"mha", [](Combination& s) { gqa(s, 4); }},
          {"gqa, norms, biases, gate", [](Combination& s) { gqa(s, 2); decorate(s); }},
          {"mha, window, sinks", [](Combination& s) { gqa(s, 4); s.spec.windows = {3, 0, 3, 0}; s.spec.sinks = model::Part::kPresent; }},
          {"gqa, norms without weights, zero sink, learnt positions", [](Combination& s) { gqa(s, 2); std::get<model::GqaSpec>(s.spec.attention).qk_unit_norms = model::Part::kPresent;
              s.spec.zero_sink = model::Part::kPresent; s.spec.num_learned_positions = 13; }},
          {"gqa beside short convolutions", [](Combination& s) { gqa(s, 2); s.spec.short_convolution = {.kernel_size = 3};
              mixers(s, model::MixerKind::kShortConvolution); }},
          {"gated mla beside delta nets and delta attention", [](Combination& s) { mla(s, 5); delta_rules(s); }},
          {"mla, picked keys", [](Combination& s) { sparse(s, 4); }},
          {"mla, choices of keys that layers share", [](Combination& s) { sparse(s, 6); std::get<model::MlaSpec>(s.spec.attention).indexer->sparse_loss = model::Part::kPresent;
              s.spec.choosing_layers = {model::Part::kPresent, model::Part::kAbsent, model::Part::kAbsent, model::Part::kPresent}; }},
          {"mla, softcap, plain layers", [](Combination& s) { mla(s, 5); s.spec.attention_softcap = 2.0;
              s.spec.rotated_layers = {model::Part::kPresent, model::Part::kAbsent, model::Part::kPresent, model::Part::kAbsent}; }}}},
      {"mlp", {
          {"swiglu", [](Combination&) {}},
          {"clamped, biases", [](Combination& s) { s.spec.activation = {.function = model::ActivationSpec::Function::kQuickGelu, .clamp = 1.0, .linear_offset = 1.0};
              s.spec.linear_bias = model::Part::kPresent; }},
          {"gelu, plain", [](Combination& s) { s.spec.activation.function = model::ActivationSpec::Function::kGelu; s.spec.mlp_gate = model::Part::kAbsent; }},
          {"gated shared expert", [](Combination& s) { s.spec.moe->shared_gate = model::Part::kPresent; }},
          {"flat unit, alternating halves", [](Combination& s) { s.spec.activation = {.function = model::ActivationSpec::Function::kSitu, .clamp = {}, .situ_beta = 2.0, .situ_linear_beta = 4.0};
              s.spec.moe->glu_interleave = 3; s.spec.moe->shared_glu_interleave = 5; }},
          {"probabilities on the input", [](Combination& s) { s.spec.moe->probabilities_on = model::MoeSpec::ProbabilitiesOn::kInput; }},
          {"latent experts", [](Combination& s) { s.spec.moe->latent = model::LatentExpertSpec{.size = 7, .norm = model::Part::kPresent}; }}}},
      {"numerics", {
          {"plain", [](Combination&) {}},
          {"dropout", [](Combination& s) { s.spec.dropout = {0.1, 0.1}; }},
          {"LayerNorm around one", [](Combination& s) { s.spec.norm = model::NormKind::kLayer; s.spec.norm_around_one = model::Part::kPresent; }},
          {"residual after the norm, bounded logits", [](Combination& s) { s.spec.residual_after_norm = model::Part::kPresent; s.spec.logits.softcap = 5.0; }},
          {"residual streams", [](Combination& s) { s.spec.hyper = model::HyperSpec{.num_streams = 3, .sinkhorn_iterations = 3, .first_scale = 0.1}; }},
          {"scales by width, clipped queries and keys", [](Combination& s) { s.spec.width_scaling = model::WidthScaling{.width = 2.0, .embedding = 2.0, .attention_power = 1.0, .base_head_dim = 4.0};
              s.spec.logits.scale = 0.5; s.optimizer.width = 2.0; s.spec.qk_clip = model::QkClip{.threshold = 0.05, .alpha = 0.5}; }}}},
      {"recompute", {
          {"none", [](Combination&) {}},
          {"each layer", [](Combination& s) { uniform(s, 1); }},
          {"groups of three", [](Combination& s) { uniform(s, 3); }},
          {"core_attn", [](Combination& s) { select(s, {RecomputeModule::kCoreAttention}); }},
          {"mla_up_proj, shared_experts", [](Combination& s) { select(s, {RecomputeModule::kMlaUpProjection, RecomputeModule::kSharedExperts}); }},
          {"moe, mlp", [](Combination& s) { select(s, {RecomputeModule::kMoe, RecomputeModule::kMlp}); }}}},
      {"precision", {
          {"fp32", [](Combination&) {}},
          {"bf16", [](Combination& s) { narrow(s, DType::kBFloat16); }},
          {"bf16, wide residual stream and logits", [](Combination& s) { narrow(s, DType::kBFloat16); s.step.policy.logits = DType::kFloat32;
              if (!s.spec.hyper) s.step.policy.residual = DType::kFloat32; }},
          {"fp16", [](Combination& s) { narrow(s, DType::kFloat16);
              // Gradients of delta nets' filters leap from one step to the next.
              s.step.loss_scale = {.initial = s.spec.gated_delta.num_key_heads > 0 ? 256.0 : 4096.0, .smallest = 1.0, .window = 4, .hysteresis = 2, .kind = engine::LossScaleSettings::Kind::kDynamic}; }},
          {"bf16 gradients and moments", [](Combination& s) { moments(s, DType::kBFloat16, DType::kBFloat16); }},
          {"fp8 moments, fp16 masters", [](Combination& s) { moments(s, DType::kFloat8, DType::kFloat8); s.step.policy.master = DType::kFloat16; }}}},
      {"loss", {
          {"fused", [](Combination& s) { s.step.loss_fusion = model::LossFusion::kFused; }},
          {"unfused", [](Combination& s) { s.step.loss_fusion = model::LossFusion::kUnfused; }},
          {"fused, tied", [](Combination& s) { s.step.loss_fusion = model::LossFusion::kFused; s.spec.output_weight = model::OutputWeight::kTiedToEmbedding; }},
          {"clipped", [](Combination& s) { s.step.clip_grad = 0.5; }}}},
      {"mtp", {
          {"0", [](Combination&) {}},
          {"1", [](Combination& s) { s.spec.num_mtp_layers = 1; }},
          {"2, one layer repeated, mixed states", [](Combination& s) { s.spec.num_mtp_layers = 2; s.spec.mtp_variant = {.repeated = model::Part::kPresent, .mixed_hidden_states = model::Part::kPresent}; }},
          {"2, detached", [](Combination& s) { s.spec.num_mtp_layers = 2; s.spec.mtp_variant.detached = model::Part::kPresent; }},
          {"2", [](Combination& s) { s.spec.num_mtp_layers = 2; s.spec.layers.back() = model::LayerKind::kDense; }}}},
      {"optimizer", {
          {"adam", [](Combination& s) { rule(s, model::OptimizerKind::kAdam, 1e-2); }},
          {"sgd", [](Combination& s) { rule(s, model::OptimizerKind::kSgd, 2e-2); }},
          {"muon", [](Combination& s) { rule(s, model::OptimizerKind::kMuon, 1e-2); }},
          {"adaptive_muon", [](Combination& s) { rule(s, model::OptimizerKind::kAdaptiveMuon, 5e-3); }},
          {"soap", [](Combination& s) { rule(s, model::OptimizerKind::kSoap, 1e-2); }},
          {"lion", [](Combination& s) { rule(s, model::OptimizerKind::kLion, 2e-3); }}}},
  };
  return kTable;
}
// clang-format on

std::vector<Row> rows() {
  std::vector<int> sizes;
  for (const Dimension& dimension : table()) sizes.push_back(static_cast<int>(dimension.options.size()));
  return covering_array(sizes, 5);
}

Combination setup_of(const Row& row) {
  Combination setup;
  model::ModelSpec& spec = setup.spec;
  spec.hidden_size = 18;
  spec.seq_length = 13;
  spec.vocab_size = 29;
  spec.padded_vocab_size = 32;
  spec.dense_ffn_hidden_size = 14;
  using enum model::LayerKind;
  spec.layers = {kDense, kMoe, kMoe, kMoe};
  spec.init_std = 0.15;
  model::MoeSpec moe;
  moe.router.num_experts = 6;
  moe.router.top_k = 2;
  moe.ffn_hidden_size = 9;
  moe.shared_ffn_hidden_size = 10;
  spec.moe = moe;
  setup.step.micro_batch = {.num_sequences = 2, .seq_length = 13};
  setup.step.clip_grad = 0.0;
  for (std::size_t d = 0; d < table().size(); ++d) table()[d].options[static_cast<std::size_t>(row[d])].apply(setup);
  return setup;
}

std::string name_of(const Row& row) {
  std::string text;
  for (std::size_t d = 0; d < table().size(); ++d) {
    text += fmt::format("{}{}: {}", d == 0 ? "" : ", ", table()[d].name,
                        table()[d].options[static_cast<std::size_t>(row[d])].name);
  }
  return text;
}

class OptionMatrix : public ::testing::TestWithParam<int> {
 public:
  static void SetUpTestSuite() {
    ops::install_allocator();
    ops::set_fresh_memory(ops::FreshMemory::kPoisoned);
    at::set_num_threads(1);  // models of this size gain nothing from more
  }

 protected:
  Row row() const { return rows()[static_cast<std::size_t>(GetParam())]; }
  Data data(const model::ModelSpec& spec, std::int64_t sequences) const {
    std::mt19937_64 generator(static_cast<std::uint64_t>(GetParam()) + 40);
    return random_data(spec, {.num_sequences = sequences, .seq_length = spec.seq_length}, generator);
  }
};

TEST(CoveringArray, HoldsEveryPair) {
  std::vector<int> sizes;
  for (const Dimension& dimension : table()) sizes.push_back(static_cast<int>(dimension.options.size()));
  std::set<Pair> covered;
  for (const Row& row : rows()) covered.merge(pairs_of(row));
  EXPECT_EQ(covered, all_pairs(sizes));
}

TEST_P(OptionMatrix, TenStepsLearn) {
  SCOPED_TRACE(name_of(row()));
  const Combination setup = setup_of(row());
  Rig rig(setup.spec, setup.step, setup.optimizer);
  const Data batch = data(setup.spec, 4);
  int updates = 0;
  double first = 0.0;
  for (int step = 0; step < 10; ++step) {
    const engine::StepResult result = rig.step(batch, 2, setup.learning_rate);
    ASSERT_NE(result.outcome, engine::StepOutcome::kSkippedNonFinite) << result.nonfinite;
    updates += result.outcome == engine::StepOutcome::kUpdated ? 1 : 0;
    if (step == 0) first = result.loss;
  }
  EXPECT_GE(updates, 8);
  EXPECT_LT(rig.step(batch, 2, 0.0).loss, 0.98 * first);
}

TEST_P(OptionMatrix, RecomputationChangesNoBit) {
  SCOPED_TRACE(name_of(row()));
  const Combination with = setup_of(row());
  Combination without = with;
  without.step.recompute = {};
  Rig one(with.spec, with.step, with.optimizer);
  Rig other(with.spec, without.step, with.optimizer);
  const Data batch = data(with.spec, 4);
  for (int step = 0; step < 3; ++step) {
    const engine::StepResult a = one.step(batch, 2, with.learning_rate);
    const engine::StepResult b = other.step(batch, 2, with.learning_rate);
    EXPECT_EQ(a.loss, b.loss);
    EXPECT_EQ(a.mtp_losses, b.mtp_losses);
    // Of a step whose scaled gradients overflow it may be no number.
    EXPECT_TRUE(a.grad_norm == b.grad_norm || (std::isnan(a.grad_norm) && std::isnan(b.grad_norm)))
        << a.grad_norm << " and " << b.grad_norm;
    EXPECT_EQ(a.load_balancing_loss, b.load_balancing_loss);
  }
  for (std::size_t i = 0; i < one.store.all().size(); ++i) {
    EXPECT_TRUE(at::equal(one.store.all()[i]->weight, other.store.all()[i]->weight))
        << one.store.all()[i]->descriptor.name;
  }
}

TEST_P(OptionMatrix, FusedAndUnfusedLossAgree) {
  SCOPED_TRACE(name_of(row()));
  Combination setup = setup_of(row());
  setup.step.policy = model::float64_policy();
  setup.step.loss_scale = {};
  const Data batch = data(setup.spec, 2);
  setup.step.loss_fusion = model::LossFusion::kFused;
  Rig fused(setup.spec, setup.step, setup.optimizer);
  setup.step.loss_fusion = model::LossFusion::kUnfused;
  Rig unfused(setup.spec, setup.step, setup.optimizer);
  const double expected = unfused.step(batch, 2).loss;
  EXPECT_NEAR(fused.step(batch, 2).loss, expected, 1e-12 * expected);
  EXPECT_LE(worst_difference(fused.store, unfused.store), 1e-11);
}

TEST_P(OptionMatrix, MicroBatchesAgree) {
  SCOPED_TRACE(name_of(row()));
  Combination setup = setup_of(row());
  setup.step.policy = model::float64_policy();
  setup.step.loss_scale = {};
  // These are defined per micro-batch (decision 12), and so are forced balance and what is chosen over all its tokens.
  router(setup).losses.aux = router(setup).losses.global_aux = 0.0;
  router(setup).capacity.reset();
  router(setup).balance = model::RouterSpec::Balance::kLearnt;
  router(setup).assignment = model::RouterSpec::Assignment::kTopK;
  const Data batch = data(setup.spec, 4);
  setup.step.micro_batch.num_sequences = 4;
  Rig whole(setup.spec, setup.step, setup.optimizer);
  const engine::StepResult expected = whole.step(batch, 4);
  for (const std::int64_t sequences : {1, 2}) {
    setup.step.micro_batch.num_sequences = sequences;
    Rig parts(setup.spec, setup.step, setup.optimizer);
    const engine::StepResult result = parts.step(batch, sequences);
    EXPECT_NEAR(result.loss, expected.loss, 1e-12 * expected.loss);
    EXPECT_NEAR(result.load_balancing_loss, expected.load_balancing_loss, 1e-10);
    for (std::size_t depth = 0; depth < expected.mtp_losses.size(); ++depth) {
      EXPECT_NEAR(result.mtp_losses[depth], expected.mtp_losses[depth], 1e-12 * expected.mtp_losses[depth]);
    }
    // Weights of streams are scaled by a number each, whose gradient is a sum over all tokens of terms that cancel.
    EXPECT_LE(worst_difference(parts.store, whole.store), setup.spec.hyper ? 1e-10 : 1e-11);
  }
}

INSTANTIATE_TEST_SUITE_P(Rows, OptionMatrix, ::testing::Range(0, static_cast<int>(rows().size())));

}  // namespace
}  // namespace primus
