// Faults found in the field, of layouts, schedules and estimates: docs/projection.md lists them by number.
#include <gtest/gtest.h>

#include "projection/memory.hpp"
#include "projection/plan_of.hpp"

namespace primus::projection {
namespace {

using test::plan_inputs;
using Words = std::vector<std::string>;

Words with(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

std::int64_t layers_of(const MemoryProjection& projection) {
  std::int64_t count = 0;
  for (const RankMemory& rank : projection.ranks) count += rank.num_layers();
  return count;
}

const ComponentMemory& experts_of(const RankMemory& rank) {
  return rank.components[static_cast<std::size_t>(model::Component::kExperts)];
}

const Words kLite = {"--expert_model_parallel_size", "8", "--global_batch_size", "64"};

// 24: experts on the second stage only. The first has none to hold and no rows to send, and yet is a member of every
// group that the second is in, so that no collective waits for it.
TEST(IssueCase24, AStageWithoutExpertsIsAMemberOfEveryGroup) {
  const MemoryInputs inputs =
      plan_inputs("deepseek_v2_lite", 16,
                  with(kLite, {"--pipeline_model_parallel_size", "2", "--moe_layer_freq", "([0]*14+[1]*13)",
                               "--pipeline_model_parallel_layout", "Et*14|t*13,L"}));
  const MemoryProjection projection = project_memory(inputs);
  EXPECT_EQ(experts_of(projection.ranks[0]).num_parameters, 0);
  EXPECT_EQ(projection.ranks[0].bytes(Category::kDispatch), 0);
  EXPECT_EQ(experts_of(projection.ranks[1]).num_parameters, 13LL * 64 / 8 * 3 * 2048 * 1408);
  EXPECT_GT(projection.ranks[1].bytes(Category::kDispatch), 0);
  EXPECT_EQ(projection.ranks[0].bytes(Category::kFramework), projection.ranks[1].bytes(Category::kFramework));
  EXPECT_EQ(inputs.grid.group_size(layout::GroupKind::kExpert), 8);
  EXPECT_EQ(inputs.grid.groups(layout::GroupKind::kExpert).size(), 2U);
}

// 26: stages with nothing but the embedding, nothing but the loss, nothing at all. Every schedule takes them.
TEST(IssueCase26, EmptyStagesAreScheduledAndProjected) {
  for (const char* layout : {"E|t*5|t*5|t*5|t*5|t*5|t*2|L", "Et*2||t*9|t*8||t*8||L", "E||||||t*27|L"}) {
    SCOPED_TRACE(layout);
    for (const char* algorithm : {"1f1b-interleaved", "zbv-formatted", "v-half", "v-min"}) {
      SCOPED_TRACE(algorithm);
      const MemoryInputs inputs = plan_inputs(
          "deepseek_v2_lite", 32,
          with(kLite, {"--pipeline_model_parallel_size", "4", "--pipeline_model_parallel_layout", layout,
                       "--patch_primus_pipeline", "true", "--pp_algorithm", algorithm, "--overlap_grad_reduce", "false",
                       "--overlap_param_gather", "false", "--global_batch_size", "128"}));
      EXPECT_EQ(inputs.schedule.num_chunks, 2);
      const MemoryProjection projection = project_memory(inputs);
      EXPECT_EQ(layers_of(projection), 27);
      const schedule::Schedule table = schedule::build(inputs.schedule);
      const schedule::Timeline step = schedule::simulate(table, schedule::model_costs(inputs.spec, inputs.stages, {}));
      EXPECT_GT(step.step, 0.0);
      std::int64_t parameters = 0;
      for (const RankMemory& rank : projection.ranks) parameters += rank.num_parameters();
      std::int64_t whole = 0;
      for (const model::ParameterDescriptor& parameter : model::training_parameters(inputs.spec)) {
        whole += model::local_elements(parameter, inputs.sharding.model);
      }
      EXPECT_EQ(parameters, whole);
    }
  }
}

// 28: dense layers before the experts' while forwards and backwards overlap: a pair without an exchange takes as long
// as its halves one after the other.
TEST(IssueCase28, DenseAndMoeChunksOverlap) {
  const MemoryInputs inputs = plan_inputs(
      "deepseek_v2_lite", 16,
      with(kLite, {"--pipeline_model_parallel_size", "2", "--pipeline_model_parallel_layout", "Et|t*8|t*9|t*9,L",
                   "--overlap_moe_expert_parallel_comm", "true", "--moe_shared_expert_overlap", "false"}));
  ASSERT_EQ(inputs.schedule.algorithm, schedule::Algorithm::kOverlapped);
  const schedule::Schedule table = schedule::build(inputs.schedule);
  const schedule::Costs costs = schedule::model_costs(inputs.spec, inputs.stages, {.exchange = 0.3});
  EXPECT_EQ(costs.stages[0].num_exchange_layers, 0);
  EXPECT_EQ(costs.stages[1].num_exchange_layers, 8);
  const schedule::Timeline step = schedule::simulate(table, costs);
  const auto num_micro_batches = static_cast<double>(table.shape.num_micro_batches);
  for (std::size_t rank = 0; rank < 2; ++rank) {
    double work = 0.0;
    for (const std::size_t stage : {rank, rank + 2}) {
      const schedule::StageCost& cost = costs.stages[stage];
      work += num_micro_batches * (cost.forward + cost.backward + cost.weight_grad);
    }
    EXPECT_LT(step.ranks[rank].busy(), work) << "exchanges hide";
    EXPECT_GT(step.ranks[rank].busy(), 0.5 * work);
  }
}

// 38: 65,536 tokens on a rank, with buffers of fixed size: counted in 64 bits, in proportion.
TEST(IssueCase38, BuffersOf65536TokensAreCounted) {
  const auto dispatch = [](const char* sequences, const char* length, const char* batch) {
    const Words words = {
        "--expert_model_parallel_size", "8",    "--micro_batch_size",          sequences, "--seq_length",       length,
        "--max_position_embeddings",    length, "--global_batch_size",         batch,     "--use_turbo_deepep", "true",
        "--enable_primus_turbo",        "true", "--moe_shared_expert_overlap", "false",   "--moe_router_dtype", "fp32"};
    return project_memory(plan_inputs("deepseek_v3", 8, words)).ranks.front().bytes(Category::kDispatch);
  };
  const std::int64_t usual = dispatch("1", "4096", "8");
  EXPECT_GT(usual, 0);
  EXPECT_EQ(dispatch("8", "8192", "64"), 16 * usual);
  EXPECT_GT(16 * usual, std::int64_t{1} << 32);
}

// 60: a prediction depth is layer num_layers + d of recompute_layer_ids, wherever it lives.
TEST(IssueCase60, APredictionDepthRunsAgainByItsNumber) {
  const Words words = {"--pipeline_model_parallel_size",
                       "2",
                       "--expert_model_parallel_size",
                       "8",
                       "--global_batch_size",
                       "64",
                       "--mtp_num_layers",
                       "1"};
  const auto kept = [&](const Words& more) {
    const MemoryProjection projection = project_memory(plan_inputs("qwen3_30B_A3B", 16, with(words, more)));
    return std::pair{projection.ranks[0].bytes(Category::kActivations),
                     projection.ranks[1].bytes(Category::kActivations)};
  };
  const auto none = kept({});
  const auto depth = kept({"--recompute_granularity", "full", "--recompute_layer_ids", "48"});
  const auto last = kept({"--recompute_granularity", "full", "--recompute_layer_ids", "47"});
  EXPECT_EQ(depth.first, none.first);
  EXPECT_LT(depth.second, none.second);
  EXPECT_LT(last.second, none.second);
}

// 64: keys and values of latent attention differ in size; context ranks exchange both, and their gradients.
TEST(IssueCase64, KeysAndValuesOfLatentAttentionDiffer) {
  const auto sent = [](const char* context, const char* world) {
    return project_memory(
               plan_inputs("deepseek_v2_lite", std::stoll(world), with(kLite, {"--context_parallel_size", context})))
        .ranks.front()
        .bytes(Category::kCommunication);
  };
  EXPECT_EQ(sent("1", "8"), 0);
  // 2048 tokens, 16 heads, 192 and 128 wide, in bf16; the pair in use and the one that arrives, with gradients.
  EXPECT_EQ(sent("2", "16"), 4LL * 2048 * 16 * (192 + 128) * 2);
}

// 88: logits and losses are the last stage's alone.
TEST(IssueCase88, OnlyTheLastStageHoldsTheLoss) {
  const MemoryProjection projection = project_memory(plan_inputs(
      "deepseek_v2_lite", 16,
      with(kLite, {"--pipeline_model_parallel_size", "2", "--pipeline_model_parallel_layout", "Et*13|t*14,L"})));
  EXPECT_EQ(projection.ranks[0].saved(model::SavedCategory::kLoss), 0);
  EXPECT_GE(projection.ranks[1].saved(model::SavedCategory::kLoss), 4096LL * 102400 * 2);
}

}  // namespace
}  // namespace primus::projection
