// The bytes that a micro-batch's passes hold for a moment are declared: every tensor of every layer, over eighty random
// runs and every option of the layers; what ops take for themselves; and the most of all at one time.
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include "model/pass_peaks.hpp"
#include "nn/mixer_specs.hpp"
#include "nn/rope_tables.hpp"
#include "ops/allocator.hpp"
#include "random_configuration.hpp"

namespace primus {
namespace {

using namespace primus::test;

/// A run that each part of the declaration can be taken from.
class PassRun {
 public:
  explicit PassRun(const Configuration& configuration) : c(configuration), rig(c.spec, c.step, c.optimizer) {
    declaration = model::model_saved(c.spec, c.step.policy, c.step.micro_batch, c.step.loss_fusion);
    model::mark_recomputed(c.spec, c.step.recompute, declaration);
  }

  model::MicroBatchPeaks declared(std::optional<std::int64_t> left_out = {},
                                  model::Part packed_products = packs_products()) const {
    return model::pass_peaks({.spec = c.spec,
                              .policy = c.step.policy,
                              .batch = c.step.micro_batch,
                              .fusion = c.step.loss_fusion,
                              .content = model::whole_model(c.spec),
                              .sharding = {},
                              .scratch = {.packed_products = packed_products},
                              .left_out = left_out},
                             declaration);
  }

  /// What the allocator saw: forward, backward.
  std::pair<model::PassPeaks, model::PassPeaks> held(std::mt19937_64& generator) {
    std::vector<nn::MicroBatchInput> input =
        rig.cut(random_data(c.spec, c.step.micro_batch, generator), c.step.micro_batch.num_sequences);
    nn::add_depths(input, c.step.micro_batch, c.spec.num_mtp_layers, c.spec.mtp_loss_scale);
    const nn::StepContext step{.batch = c.step.micro_batch,
                               .rope = nn::rope_tables(c.spec.rope, c.step.micro_batch.seq_length, at::kFloat)};
    nn::Saved saved(declaration);
    const ops::MemoryReport before = ops::memory_report();
    ops::reset_peak();
    rig.model.forward(input[0], saved, step);
    const model::PassPeaks forward = since(before);
    ops::reset_peak();
    rig.model.backward(input[0], saved, step);
    return {forward, since(before)};
  }

  /// The most of two micro-batches' step, beside what is resident.
  std::int64_t held_by_step(std::mt19937_64& generator) {
    const model::BatchShape batch{2 * c.step.micro_batch.num_sequences, c.step.micro_batch.seq_length};
    const Data data = random_data(c.spec, batch, generator);
    std::vector<nn::MicroBatchInput> input = rig.cut(data, c.step.micro_batch.num_sequences);
    std::vector<double> counts =
        nn::add_depths(input, c.step.micro_batch, c.spec.num_mtp_layers, c.spec.mtp_loss_scale);
    const engine::StepInput step{.micro_batches = input,
                                 .num_tokens = data.num_tokens(),
                                 .depth_num_tokens = std::move(counts),
                                 .rates = {.learning_rate = 1e-3, .weight_decay = 0.1, .end_learning_rate = {}}};
    const schedule::Schedule table = schedule::build({.num_micro_batches = 2});
    const ops::MemoryReport before = ops::memory_report();
    ops::reset_peak();
    rig.runner.run(table.actions({0}), step);
    return since(before).together;
  }

  static model::Part packs_products() {
    return __builtin_cpu_supports("avx512f") != 0 ? model::Part::kPresent : model::Part::kAbsent;
  }

  Configuration c;

 private:
  static model::PassPeaks since(const ops::MemoryReport& before) {
    const ops::MemoryReport now = ops::memory_report();
    const std::int64_t saved = before.saved_bytes();
    const std::int64_t workspace = before.held(ops::MemoryTag::kWorkspace);
    return {.saved = now.saved_peak_bytes - saved,
            .workspace = now.workspace_peak_bytes - workspace,
            .scratch = now.scratch_peak_bytes,
            .together = now.pass_peak_bytes - saved - workspace,
            .workspace_allocated = now.workspace_allocated_bytes};
  }

  Rig rig;
  model::SavedDeclaration declaration;
};

void expect_equal(const model::PassPeaks& held, const model::PassPeaks& declared, const char* pass) {
  EXPECT_EQ(held.saved, declared.saved) << pass;
  EXPECT_EQ(held.workspace_allocated, declared.workspace_allocated) << pass;
  EXPECT_EQ(held.workspace, declared.workspace) << pass;
  EXPECT_EQ(held.together, declared.together) << pass;
}

/// Where depths mix hidden states, chance decides how many rows each part gives: then the declaration is a bound.
bool is_by_chance(const model::ModelSpec& spec) {
  return spec.num_mtp_layers > 1 && spec.mtp_variant.mixed_hidden_states == model::Part::kPresent;
}

void expect_within(const model::PassPeaks& held, const model::PassPeaks& declared, const char* pass) {
  EXPECT_EQ(held.saved, declared.saved) << pass;
  EXPECT_LE(held.workspace, declared.workspace) << pass;
  EXPECT_LE(held.together, declared.together) << pass;
}

void expect_declared(const Configuration& c, std::mt19937_64& generator) {
  PassRun run(c);
  const model::MicroBatchPeaks declared = run.declared();
  const auto [forward, backward] = run.held(generator);
  auto* const expect = is_by_chance(c.spec) ? &expect_within : &expect_equal;
  expect(forward, declared.forward, "forward");
  expect(backward, declared.backward, "backward");
  EXPECT_LE(forward.scratch, declared.forward.scratch);
  EXPECT_LE(backward.scratch, declared.backward.scratch);
  EXPECT_EQ(declared.left, 0);
}

class PassBytes : public ::testing::TestWithParam<int> {
 public:
  static void SetUpTestSuite() {
    ops::install_allocator();
    ops::set_fresh_memory(ops::FreshMemory::kPoisoned);
    at::set_num_threads(1);  // what an op takes for each thread is declared for one
  }
  std::uint64_t seed() const { return static_cast<std::uint64_t>(GetParam()) + 9100; }
};

TEST_P(PassBytes, OfRandomRuns) {
  std::mt19937_64 generator(seed());
  Configuration c = random_configuration(seed());
  if (seed() % 2 == 0) {
    randomise_mlp(c.spec, seed());
    // Plain units have no two halves that could alternate.
    if (c.spec.mlp_gate == model::Part::kAbsent) c.spec.moe->glu_interleave = c.spec.moe->shared_glu_interleave = 0;
  }
  expect_declared(c, generator);
}

INSTANTIATE_TEST_SUITE_P(Configurations, PassBytes, ::testing::Range(0, 80));

class PassBytesOfMixers : public PassBytes {};

TEST_P(PassBytesOfMixers, OfRandomRuns) {
  std::mt19937_64 generator(seed());
  Configuration c = random_configuration(seed());
  randomise_mixers(c.spec, seed());
  expect_declared(c, generator);
}

INSTANTIATE_TEST_SUITE_P(Configurations, PassBytesOfMixers, ::testing::Range(0, 40));

/// A plain model, wide and long enough that no tensor hides another, with what the options ask for.
Configuration plain_configuration() {
  Configuration c;
  c.spec = random_spec(3);
  c.spec.hidden_size = 24;
  c.spec.layers = {model::LayerKind::kDense, model::LayerKind::kMoe, model::LayerKind::kMoe};
  c.spec.attention = model::GqaSpec{.num_heads = 6, .num_query_groups = 3, .head_dim = 8};
  c.spec.rope = {.type = model::RopeType::kRope, .rotary_dim = 8};
  c.spec.moe = model::MoeSpec{};
  c.spec.moe->router.num_experts = 8;
  c.spec.moe->router.top_k = 3;
  c.spec.moe->ffn_hidden_size = 10;
  c.spec.moe->shared_ffn_hidden_size = 14;
  c.step.micro_batch = {.num_sequences = 2, .seq_length = 17};
  return c;
}

void use_mla(Configuration& c) {
  model::MlaSpec mla;
  mla.num_heads = 4;
  mla.q_lora_rank = 9;
  mla.kv_lora_rank = 7;
  mla.qk_head_dim = 5;
  mla.qk_pos_emb_head_dim = 6;
  mla.v_head_dim = 8;
  c.spec.attention = mla;
  c.spec.rope = {.type = model::RopeType::kRope, .rotary_dim = 6};
}

void use_short_convolutions(Configuration& c) {
  c.spec.short_convolution = {.kernel_size = 3, .bias = model::Part::kPresent};
  c.spec.mixers.assign(c.spec.layers.size(), model::MixerKind::kShortConvolution);
}

void use_delta_nets(Configuration& c) {
  model::GatedDeltaSpec& delta = c.spec.gated_delta;
  delta.num_key_heads = 2;
  delta.num_value_heads = 6;
  delta.key_head_dim = 7;
  delta.value_head_dim = 5;
  delta.kernel_size = 4;
  c.spec.mixers.assign(c.spec.layers.size(), model::MixerKind::kGatedDelta);
}

void use_delta_attention(Configuration& c) {
  model::KimiDeltaSpec& delta = c.spec.kimi_delta;
  delta.heads = {.num_key_heads = 2, .num_value_heads = 6, .key_head_dim = 7, .value_head_dim = 5, .kernel_size = 4};
  delta.lowest_decay = -5.0;
  c.spec.mixers.assign(c.spec.layers.size(), model::MixerKind::kKimiDelta);
}

void use_indexer(Configuration& c) {
  use_mla(c);
  std::get<model::MlaSpec>(c.spec.attention).indexer =
      model::IndexerSpec{.num_heads = 3, .head_dim = 8, .top_k = 5, .loss_coefficient = 0.5};
}

void use_streams(Configuration& c) {
  c.spec.hyper = model::HyperSpec{.num_streams = 3, .sinkhorn_iterations = 4};
}

void use_half_precision(Configuration& c) {
  c.step.policy.parameters = c.step.policy.activations = DType::kBFloat16;
}

/// An option of a layer, a type or a loss, and what it does to a run.
struct Option {
  const char* name;
  void (*apply)(Configuration& c);
};

using model::Part;
using Router = model::RouterSpec;

const Option kOptions[] = {
    {"half precision", use_half_precision},
    {"wide residual stream",
     [](Configuration& c) {
       use_half_precision(c);
       c.step.policy.residual = DType::kFloat32;
     }},
    {"wide logits",
     [](Configuration& c) {
       use_half_precision(c);
       c.step.policy.logits = DType::kFloat32;
     }},
    {"narrow gradients", [](Configuration& c) { c.step.policy.main_gradients = DType::kBFloat16; }},
    {"fp64 router", [](Configuration& c) { c.step.policy.router = DType::kFloat64; }},
    {"fp64 router, half precision",
     [](Configuration& c) {
       use_half_precision(c);
       c.step.policy.router = DType::kFloat64;
     }},
    {"fused loss", [](Configuration& c) { c.step.loss_fusion = model::LossFusion::kFused; }},
    {"latent attention", use_mla},
    {"latent attention without norms",
     [](Configuration& c) {
       use_mla(c);
       std::get<model::MlaSpec>(c.spec.attention).latent_norms = Part::kAbsent;
     }},
    {"latent attention, queries direct",
     [](Configuration& c) {
       use_mla(c);
       std::get<model::MlaSpec>(c.spec.attention).q_lora_rank.reset();
     }},
    {"latent attention with a gate",
     [](Configuration& c) {
       use_mla(c);
       std::get<model::MlaSpec>(c.spec.attention).output_gate = Part::kPresent;
     }},
    {"latent attention with a gate, not rotated, half precision, layers recomputed",
     [](Configuration& c) {
       use_mla(c);
       use_half_precision(c);
       std::get<model::MlaSpec>(c.spec.attention).output_gate = Part::kPresent;
       c.spec.rope.type = model::RopeType::kNone;
       using enum model::LayerRecompute;
       c.step.recompute.layers = {kAllButInput, kNone, kAllButInput};
     }},
    {"sparse attention", use_indexer},
    {"sparse attention, half precision",
     [](Configuration& c) {
       use_indexer(c);
       use_half_precision(c);
       c.spec.sinks = Part::kPresent;
     }},
    {"sparse attention whose indexer is not taught",
     [](Configuration& c) {
       use_indexer(c);
       std::get<model::MlaSpec>(c.spec.attention).indexer->loss_coefficient = 0.0;
     }},
    {"sparse attention, queries direct, some layers not rotated",
     [](Configuration& c) {
       use_indexer(c);
       std::get<model::MlaSpec>(c.spec.attention).q_lora_rank.reset();
       c.spec.rotated_layers = {Part::kPresent, Part::kAbsent, Part::kAbsent};
       c.spec.zero_sink = Part::kPresent;
     }},
    {"choices of keys that layers share, narrow gradients",
     [](Configuration& c) {
       use_indexer(c);
       c.spec.choosing_layers = {Part::kPresent, Part::kAbsent, Part::kPresent};
       c.spec.num_mtp_layers = 1;
       c.step.policy.main_gradients = DType::kBFloat16;
     }},
    {"choices of keys that layers share, layers recomputed",
     [](Configuration& c) {
       use_indexer(c);
       c.spec.choosing_layers = {Part::kPresent, Part::kAbsent, Part::kAbsent};
       using enum model::LayerRecompute;
       c.step.recompute.layers = {kAllButInput, kAll, kAllButInput};
     }},
    {"layers that are not rotated",
     [](Configuration& c) {
       use_mla(c);
       c.spec.rotated_layers = {Part::kPresent, Part::kAbsent, Part::kAbsent};
     }},
    {"query and key norms",
     [](Configuration& c) { std::get<model::GqaSpec>(c.spec.attention).qk_norms = Part::kPresent; }},
    {"norms without weights",
     [](Configuration& c) { std::get<model::GqaSpec>(c.spec.attention).qk_unit_norms = Part::kPresent; }},
    {"gated attention",
     [](Configuration& c) { std::get<model::GqaSpec>(c.spec.attention).output_gate = Part::kPresent; }},
    {"biases",
     [](Configuration& c) {
       c.spec.linear_bias = Part::kPresent;
       std::get<model::GqaSpec>(c.spec.attention).qkv_bias = Part::kPresent;
     }},
    {"biases, half precision, fp64 router",
     [](Configuration& c) {
       use_half_precision(c);
       c.spec.linear_bias = Part::kPresent;
       c.step.policy.router = DType::kFloat64;
     }},
    {"short convolutions", use_short_convolutions},
    {"delta nets", use_delta_nets},
    {"delta nets, half precision",
     [](Configuration& c) {
       use_half_precision(c);
       use_delta_nets(c);
     }},
    {"delta attention", use_delta_attention},
    {"delta attention whose gate has full rank",
     [](Configuration& c) {
       use_delta_attention(c);
       c.spec.kimi_delta.full_rank_gate = Part::kPresent;
       c.spec.kimi_delta.chunk_size = 6;
     }},
    {"delta attention, half precision, layers recomputed",
     [](Configuration& c) {
       use_half_precision(c);
       use_delta_attention(c);
       using enum model::LayerRecompute;
       c.step.recompute.layers = {kAllButInput, kNone, kAllButInput};
     }},
    {"mixers of all kinds, made again",
     [](Configuration& c) {
       use_short_convolutions(c);
       use_delta_nets(c);
       c.spec.mixers = {model::MixerKind::kShortConvolution, model::MixerKind::kGatedDelta,
                        model::MixerKind::kAttention};
       using enum model::LayerRecompute;
       c.step.recompute.layers = {kAllButInput, kAll, kAll};
     }},
    {"residual streams", use_streams},
    {"residual streams whose mean is read, half precision",
     [](Configuration& c) {
       use_streams(c);
       use_half_precision(c);
       c.spec.hyper->form = model::HyperSpec::Form::kMegatron;
       c.spec.num_mtp_layers = 1;
     }},
    {"residual streams, half precision, fused loss",
     [](Configuration& c) {
       use_streams(c);
       use_half_precision(c);
       c.step.loss_fusion = model::LossFusion::kFused;
       c.spec.dropout.hidden = 0.2;
     }},
    {"residual streams with learnt positions and depths",
     [](Configuration& c) {
       use_streams(c);
       c.spec.num_learned_positions = 32;
       c.spec.width_scaling = model::WidthScaling{.width = 3.0, .embedding = 1.7};
       c.spec.num_mtp_layers = 2;
     }},
    {"residual streams, made again",
     [](Configuration& c) {
       use_streams(c);
       use_half_precision(c);
       using enum model::LayerRecompute;
       c.step.recompute.layers = {kAllButInput, kAll, kNone};
     }},
    {"residual streams, modules made again",
     [](Configuration& c) {
       use_streams(c);
       c.step.recompute.modules = {model::RecomputeModule::kCoreAttention, model::RecomputeModule::kMoe,
                                   model::RecomputeModule::kMlp};
     }},
    {"sinks",
     [](Configuration& c) {
       use_half_precision(c);
       c.spec.sinks = Part::kPresent;
     }},
    {"zero sink", [](Configuration& c) { c.spec.zero_sink = Part::kPresent; }},
    {"learnt positions", [](Configuration& c) { c.spec.num_learned_positions = 32; }},
    {"layer norms",
     [](Configuration& c) {
       use_half_precision(c);
       c.step.policy.residual = DType::kFloat32;
       c.spec.norm = model::NormKind::kLayer;
     }},
    {"residual behind the norm",
     [](Configuration& c) {
       use_half_precision(c);
       c.step.policy.residual = DType::kFloat32;
       c.spec.residual_after_norm = Part::kPresent;
     }},
    {"dropout",
     [](Configuration& c) {
       use_half_precision(c);
       c.step.policy.residual = DType::kFloat32;
       c.spec.dropout = {.hidden = 0.2, .attention = 0.1};
     }},
    {"jitter", [](Configuration& c) { c.spec.moe->router.input_jitter = 0.1; }},
    {"jitter, fp64 router",
     [](Configuration& c) {
       c.spec.moe->router.input_jitter = 0.1;
       c.step.policy.router = DType::kFloat64;
     }},
    {"balancing losses",
     [](Configuration& c) { c.spec.moe->router.losses = {.aux = 0.2, .seq_aux = 0.1, .global_aux = 0.3, .z = 0.1}; }},
    {"Sinkhorn", [](Configuration& c) { c.spec.moe->router.assignment = Router::Assignment::kSinkhorn; }},
    {"quantile", [](Configuration& c) { c.spec.moe->router.assignment = Router::Assignment::kQuantile; }},
    {"forced balance", [](Configuration& c) { c.spec.moe->router.balance = Router::Balance::kForced; }},
    {"random logits", [](Configuration& c) { c.spec.moe->router.balance = Router::Balance::kRandom; }},
    {"forced imbalance", [](Configuration& c) { c.spec.moe->router.forced_imbalance = 0.5; }},
    {"capacity", [](Configuration& c) { c.spec.moe->router.capacity = model::ExpertCapacity{.factor = 0.6}; }},
    {"capacity, free rows kept",
     [](Configuration& c) {
       c.spec.moe->router.capacity =
           model::ExpertCapacity{.factor = 1.5, .free_rows = model::ExpertCapacity::FreeRows::kKept};
     }},
    {"probabilities on the input",
     [](Configuration& c) {
       use_half_precision(c);
       c.spec.moe->probabilities_on = model::MoeSpec::ProbabilitiesOn::kInput;
     }},
    {"shared gate", [](Configuration& c) { c.spec.moe->shared_gate = Part::kPresent; }},
    {"latent experts", [](Configuration& c) { c.spec.moe->latent = model::LatentExpertSpec{.size = 5}; }},
    {"latent experts with a norm",
     [](Configuration& c) { c.spec.moe->latent = model::LatentExpertSpec{.size = 5, .norm = Part::kPresent}; }},
    {"interleaved gates",
     [](Configuration& c) {
       c.spec.moe->glu_interleave = 5;
       c.spec.moe->shared_glu_interleave = 7;
     }},
    {"finely interleaved gates", [](Configuration& c) { c.spec.moe->glu_interleave = 1; }},
    {"plain units", [](Configuration& c) { c.spec.mlp_gate = Part::kAbsent; }},
    {"prediction depths", [](Configuration& c) { c.spec.num_mtp_layers = 2; }},
    {"one prediction layer, repeated",
     [](Configuration& c) {
       c.spec.num_mtp_layers = 2;
       c.spec.mtp_variant = {.detached = Part::kPresent, .repeated = Part::kPresent};
       c.step.policy.main_gradients = DType::kBFloat16;
     }},
    {"prediction depths that mix",
     [](Configuration& c) {
       c.spec.num_mtp_layers = 2;
       c.spec.mtp_variant.mixed_hidden_states = Part::kPresent;
     }},
    {"recomputed layers",
     [](Configuration& c) {
       using enum model::LayerRecompute;
       c.step.recompute.layers = {kAllButInput, kAll, kAll};
     }},
};

class PassBytesOf : public PassBytes {};

/// Each option alone, and beside latent attention in half precision with narrow gradients and a wide residual stream.
TEST_P(PassBytesOf, AnOption) {
  const Option& option = kOptions[GetParam()];
  SCOPED_TRACE(option.name);
  std::mt19937_64 generator(seed());
  Configuration c = plain_configuration();
  option.apply(c);
  expect_declared(c, generator);
  if (std::holds_alternative<model::GqaSpec>(c.spec.attention)) {
    use_half_precision(c);
    if (!c.spec.hyper) c.step.policy.residual = DType::kFloat32;
    c.step.policy.main_gradients = DType::kBFloat16;
    expect_declared(c, generator);
  }
}

INSTANTIATE_TEST_SUITE_P(Options, PassBytesOf, ::testing::Range(0, static_cast<int>(std::size(kOptions))));

/// The most of a whole step, of two micro-batches, between what is resident: that of a pass and the step's own sums.
/// A rule that moves matrices holds more: then within its bound.
class StepBytes : public PassBytes {};

TEST_P(StepBytes, AreThoseOfAPassAndTheStepsSums) {
  std::mt19937_64 generator(seed());
  const Configuration c = random_configuration(seed());
  PassRun run(c);
  const model::MicroBatchPeaks declared = run.declared();
  // Of losses and of squares, in fp64; and the counts that are read back.
  const std::int64_t sums = (2 + c.spec.num_mtp_layers) * size_bytes(DType::kFloat64);
  const std::int64_t pass = std::max(declared.forward.together, declared.backward.together);
  const std::int64_t update = model::update_workspace(model::training_parameters(c.spec), c.optimizer, c.step.policy);
  const std::int64_t held = run.held_by_step(generator);
  const std::int64_t read_back = 3 * (c.spec.num_layers() + c.spec.num_mtp_layers) *
                                 (c.spec.moe->router.num_experts + 8) * size_bytes(DType::kInt64);
  if (update == 0 && pass > read_back && !is_by_chance(c.spec)) {
    EXPECT_EQ(held, pass + sums);
  } else {
    EXPECT_LE(held, std::max({pass, update, read_back}) + sums);
  }
  if (pass > read_back && !is_by_chance(c.spec)) {
    EXPECT_GE(held, pass + sums);
  }
}

INSTANTIATE_TEST_SUITE_P(Configurations, StepBytes, ::testing::Range(0, 40));

/// The mutations that must be caught: the declaration without one of its tensors, for each of them; and with one
/// layer's share of the model told wrongly, in each of the numbers that a declaration is made of.
TEST(PassBytesMutation, ADeclarationWithoutOneOfItsTensorsIsNoticed) {
  PassBytes::SetUpTestSuite();
  int num_taught = 0;
  constexpr std::uint64_t kMixed = 9112;
  for (const std::uint64_t seed : {std::uint64_t{9101}, std::uint64_t{9103}, std::uint64_t{9110}, kMixed}) {
    std::mt19937_64 generator(seed);
    Configuration c = random_configuration(seed);
    c.spec.mtp_variant.mixed_hidden_states = Part::kAbsent;
    add_indexer(c.spec, seed);
    if (seed == kMixed) {
      randomise_mixers(c.spec, seed);
      c.spec.layers.push_back(model::LayerKind::kDense);
      c.spec.mixers.assign(c.spec.layers.size(), model::MixerKind::kGatedDelta);
      c.spec.mixers.front() = model::MixerKind::kShortConvolution;
      c.step.recompute = {};
    }
    if (seed == 9103) {
      add_streams(c.spec, seed);
      c.step.policy.residual.reset();
    }
    num_taught += c.spec.indexer() != nullptr && c.spec.indexer()->loss_coefficient > 0.0 ? 1 : 0;
    PassRun run(c);
    const auto [forward, backward] = run.held(generator);
    const std::int64_t num_tensors = run.declared().num_tensors;
    ASSERT_GT(num_tensors, 50);
    for (std::int64_t tensor = 0; tensor < num_tensors; ++tensor) {
      const model::MicroBatchPeaks mutated = run.declared(tensor);
      EXPECT_NE(forward.workspace_allocated + backward.workspace_allocated,
                mutated.forward.workspace_allocated + mutated.backward.workspace_allocated)
          << tensor;
    }
  }
  EXPECT_GT(num_taught, 0);
}

/// What is declared is of the size of what is held, where the router decides nothing: not a bound that anything keeps.
TEST(PassScratch, IsDeclaredExactlyWhereNoRouterDecides) {
  PassBytes::SetUpTestSuite();
  std::mt19937_64 generator(4);
  for (const auto apply :
       {+[](Configuration&) {}, +[](Configuration& c) { use_mla(c); }, +[](Configuration& c) { use_half_precision(c); },
        +[](Configuration& c) { use_indexer(c); }, +[](Configuration& c) { use_short_convolutions(c); },
        +[](Configuration& c) { use_delta_nets(c); }, +[](Configuration& c) { use_delta_attention(c); },
        +[](Configuration& c) {
          use_half_precision(c);
          use_delta_nets(c);
        },
        +[](Configuration& c) { use_streams(c); },
        +[](Configuration& c) {
          use_indexer(c);
          use_half_precision(c);
          auto& mla = std::get<model::MlaSpec>(c.spec.attention);
          mla.num_heads = 1;  // the indexer takes more than attention does
          mla.indexer->head_dim = 64;
        },
        +[](Configuration& c) {
          use_half_precision(c);
          c.step.loss_fusion = model::LossFusion::kFused;
        }}) {
    Configuration c = plain_configuration();
    c.spec.layers = {model::LayerKind::kDense};
    apply(c);
    for (const std::int64_t length : {17, 300, 1200}) {
      // No product of the short one is large enough to be packed, which is declared as a bound.
      if (length > 17 && PassRun::packs_products() == Part::kPresent) continue;
      c.step.micro_batch.seq_length = length;
      PassRun run(c);
      const model::MicroBatchPeaks declared = run.declared({}, Part::kAbsent);
      const auto [forward, backward] = run.held(generator);
      EXPECT_EQ(forward.scratch, declared.forward.scratch) << length;
      EXPECT_EQ(backward.scratch, declared.backward.scratch) << length;
    }
  }
}

}  // namespace
}  // namespace primus
