// Over random legal layouts of random models: every parameter has its place, and what stages keep is what the model
// keeps.
#include <gtest/gtest.h>

#include "layout/random_grid.hpp"
#include "model/pass_peaks.hpp"
#include "projection/memory.hpp"

namespace primus::projection {
namespace {

using test::one_of;

/// A model whose sizes all of random_grid_sizes' divide.
model::ModelSpec random_model(std::mt19937_64& generator) {
  model::ModelSpec spec;
  spec.hidden_size = 48;
  spec.seq_length = 192;
  spec.vocab_size = 90;
  spec.padded_vocab_size = 96;
  spec.dense_ffn_hidden_size = 96;
  const auto part = [&] { return generator() % 2 == 0 ? model::Part::kPresent : model::Part::kAbsent; };
  using enum model::LayerKind;
  const std::int64_t num_layers = one_of(generator, {1, 2, 5, 8, 12, 24});
  for (std::int64_t layer = 0; layer < num_layers; ++layer) {
    spec.layers.push_back(generator() % 4 == 0 ? kDense : kMoe);
  }
  spec.num_mtp_layers = one_of(generator, {0, 0, 1, 2});
  spec.norm = generator() % 4 == 0 ? model::NormKind::kLayer : model::NormKind::kRms;
  spec.linear_bias = part();
  spec.mlp_gate = part();
  spec.output_weight = generator() % 2 == 0 ? model::OutputWeight::kOwn : model::OutputWeight::kTiedToEmbedding;
  if (generator() % 2 == 0) {
    spec.attention = model::MlaSpec{.num_heads = 12,
                                    .q_lora_rank = 16,
                                    .kv_lora_rank = 8,
                                    .qk_head_dim = 8,
                                    .qk_pos_emb_head_dim = 4,
                                    .v_head_dim = 8,
                                    .latent_norms = part()};
  } else {
    spec.attention =
        model::GqaSpec{.num_heads = 24, .num_query_groups = 12, .head_dim = 8, .qk_norms = part(), .qkv_bias = part()};
    spec.sinks = part();
  }
  model::MoeSpec moe;
  moe.router.num_experts = 24;
  moe.router.top_k = one_of(generator, {1, 2, 4});
  moe.router.expert_bias =
      generator() % 2 == 0 ? model::RouterSpec::ExpertBias::kOn : model::RouterSpec::ExpertBias::kOff;
  moe.ffn_hidden_size = 24;
  moe.shared_ffn_hidden_size = generator() % 2 == 0 ? 48 : 0;
  spec.moe = moe;
  return spec;
}

/// Layers cut at random, empty stages among them; depths before the loss on one of the last stages.
config::PipelineLayout random_stages(std::mt19937_64& generator, const model::ModelSpec& spec, std::int64_t ranks,
                                     std::int64_t chunks) {
  config::PipelineLayout layout = config::balanced_layout(0, 0, ranks * chunks);
  std::vector<std::int64_t> cuts;
  for (std::int64_t i = 1; i < ranks * chunks; ++i) {
    cuts.push_back(static_cast<std::int64_t>(generator() % static_cast<std::uint64_t>(spec.num_layers() + 1)));
  }
  std::sort(cuts.begin(), cuts.end());
  cuts.push_back(spec.num_layers());
  std::int64_t before = 0;
  std::size_t last_with_layers = 0;
  for (std::size_t i = 0; i < cuts.size(); ++i) {
    layout.stages[i].num_layers = cuts[i] - before;
    if (cuts[i] > before) last_with_layers = i;
    before = cuts[i];
  }
  const std::size_t first_possible = std::max(last_with_layers, static_cast<std::size_t>((chunks - 1) * ranks));
  layout.stages[first_possible + generator() % (layout.stages.size() - first_possible)].num_mtp_layers =
      spec.num_mtp_layers;
  return layout;
}

MemoryInputs random_inputs(std::mt19937_64& generator) {
  const layout::GridSizes sizes = test::random_grid_sizes(generator);
  model::ModelSpec spec = random_model(generator);
  const std::int64_t chunks = sizes.pipeline == 1 ? 1 : one_of(generator, {1, 1, 2, 3});
  const layout::RankGrid grid(sizes);
  const bool is_v = chunks == 2 && generator() % 2 == 0;
  layout::StageLayout stages(random_stages(generator, spec, sizes.pipeline, chunks), static_cast<int>(sizes.pipeline),
                             is_v ? layout::StagePlacement::kV : layout::StagePlacement::kRoundRobin);
  MemoryInputs inputs{.spec = std::move(spec),
                      .policy = {},
                      .optimizer = {},
                      .recompute = {},
                      .micro_batch = {},
                      .sharding = {},
                      .grid = grid,
                      .stages = std::move(stages),
                      .schedule = {}};
  inputs.policy.parameters = inputs.policy.activations = DType::kBFloat16;
  inputs.micro_batch = {.num_sequences = one_of(generator, {1, 2}), .seq_length = inputs.spec.seq_length};
  model::Sharding& sharding = inputs.sharding.model;
  sharding = {
      .tensor = sizes.tensor, .context = sizes.context, .expert = sizes.expert, .expert_tensor = sizes.expert_tensor};
  if (sizes.tensor > 1) sharding.sequence = model::Sharding::Sequence::kByTensor;
  if (generator() % 2 == 0) {
    inputs.sharding.optimizer = {grid.group_size(layout::GroupKind::kDataContext),
                                 grid.group_size(layout::GroupKind::kExpertData)};
  }
  inputs.schedule = {.algorithm = is_v         ? schedule::Algorithm::kZbv
                                  : chunks > 1 ? schedule::Algorithm::kInterleaved
                                               : schedule::Algorithm::k1F1B,
                     .num_ranks = static_cast<int>(sizes.pipeline),
                     .num_micro_batches = static_cast<int>(sizes.pipeline * one_of(generator, {2, 3})),
                     .num_chunks = static_cast<int>(chunks)};
  inputs.loss_fusion = generator() % 2 == 0 ? model::LossFusion::kFused : model::LossFusion::kUnfused;
  return inputs;
}

std::int64_t copies_in_the_world(const model::ParameterDescriptor& parameter, const layout::GridSizes& sizes) {
  std::int64_t parts = 1;
  const model::Sharding sharding{
      .tensor = sizes.tensor, .context = sizes.context, .expert = sizes.expert, .expert_tensor = sizes.expert_tensor};
  for (const model::Shard& shard : parameter.shards) parts *= sharding.size(shard.group);
  return sizes.world / sizes.pipeline / parts;
}

TEST(MemoryProperty, RanksParametersAddUpToTheModel) {
  std::mt19937_64 generator(911);
  for (int i = 0; i < test::num_random_cases(2000); ++i) {
    const MemoryInputs inputs = random_inputs(generator);
    const MemoryProjection projection = project_memory(inputs);
    // All ranks together hold each element once for every set of ranks that shares its shards.
    std::int64_t expected = 0;
    std::int64_t whole = 0;
    for (const model::ParameterDescriptor& parameter : model::training_parameters(inputs.spec)) {
      expected += parameter.num_elements() * copies_in_the_world(parameter, inputs.grid.sizes());
      whole += parameter.num_elements();
    }
    std::int64_t held = 0;
    std::int64_t layers = 0;
    for (const RankMemory& rank : projection.ranks) {
      held += rank.num_parameters() * (inputs.grid.sizes().world / inputs.grid.sizes().pipeline);
      layers += rank.num_layers();
    }
    EXPECT_EQ(held, expected);
    EXPECT_EQ(layers, inputs.spec.num_layers());
    const std::int64_t sets = inputs.grid.sizes().world / inputs.grid.sizes().pipeline;
    if (sets == 1) {
      EXPECT_EQ(held, whole);
    }
  }
}

TEST(MemoryProperty, StagesKeepWhatTheModelKeeps) {
  std::mt19937_64 generator(912);
  for (int i = 0; i < test::num_random_cases(2000); ++i) {
    const MemoryInputs inputs = random_inputs(generator);
    std::int64_t sum = 0;
    bool depths_are_apart = false;
    std::int64_t hidden_states = 0;
    for (int index = 0; index < inputs.stages.num_stages(); ++index) {
      const model::StageContent& content = inputs.stages.stage(index);
      const model::SavedDeclaration stage =
          model::stage_saved(inputs.spec, inputs.policy, inputs.micro_batch, inputs.loss_fusion, content);
      sum += stage.size_bytes();
      const model::MicroBatchPeaks peaks = model::pass_peaks({.spec = inputs.spec,
                                                              .policy = inputs.policy,
                                                              .batch = inputs.micro_batch,
                                                              .fusion = inputs.loss_fusion,
                                                              .content = content},
                                                             stage);
      EXPECT_GE(peaks.forward.saved, stage.size_bytes());
      EXPECT_EQ(peaks.backward.saved, stage.size_bytes());
      EXPECT_EQ(peaks.left, 0);
      if (content.num_mtp_layers == 0 || content.output == model::Part::kPresent) continue;
      depths_are_apart = true;
      // Depths that stand before the loss keep the hidden states that the loss's stage has again.
      hidden_states = content.num_mtp_layers * inputs.micro_batch.num_tokens() *
                      (inputs.spec.hidden_size * size_bytes(inputs.policy.activations) +
                       (inputs.spec.norm == model::NormKind::kLayer ? 8 : 4));
    }
    const std::int64_t whole =
        model::model_saved(inputs.spec, inputs.policy, inputs.micro_batch, inputs.loss_fusion).size_bytes();
    EXPECT_EQ(sum, whole + (depths_are_apart ? hidden_states : 0));
  }
}

TEST(MemoryProperty, ShardsOfATensorAddUpToIt) {
  std::mt19937_64 generator(913);
  for (int i = 0; i < test::num_random_cases(2000); ++i) {
    const MemoryInputs inputs = random_inputs(generator);
    const model::Sharding& sharding = inputs.sharding.model;
    for (int layer = 0; layer < std::min<int>(2, static_cast<int>(inputs.spec.num_layers())); ++layer) {
      std::int64_t whole[model::kNumSavedCategories] = {};
      std::int64_t part[model::kNumSavedCategories] = {};
      model::layer_saved(inputs.spec, inputs.policy, inputs.micro_batch, layer).add_by_category(whole);
      model::layer_saved(inputs.spec, inputs.policy, inputs.micro_batch, layer, sharding).add_by_category(part);
      const std::int64_t ranks = sharding.tensor * sharding.context;
      for (const model::SavedCategory category :
           {model::SavedCategory::kResidual, model::SavedCategory::kNorm, model::SavedCategory::kAttention,
            model::SavedCategory::kDenseMlp, model::SavedCategory::kSharedExperts}) {
        EXPECT_EQ(part[static_cast<int>(category)] * ranks, whole[static_cast<int>(category)]) << model::name(category);
      }
    }
  }
}

TEST(MemoryProperty, APeakIsAtLeastWhatIsKeptAndAtMostEverything) {
  std::mt19937_64 generator(914);
  for (int i = 0; i < test::num_random_cases(1000); ++i) {
    const MemoryInputs inputs = random_inputs(generator);
    for (const RankMemory& rank : project_memory(inputs).ranks) {
      const int chunks = inputs.schedule.num_chunks;
      EXPECT_LE(rank.in_flight(), inputs.schedule.num_micro_batches * chunks);
      EXPECT_GE(rank.in_flight(), 1);
      EXPECT_GE(rank.bytes(Category::kRemade), 0);
      EXPECT_GT(rank.total(), rank.resident().total());
    }
  }
}

}  // namespace
}  // namespace primus::projection
