// Faults found in the field that a configuration must refuse or allow, named after what they show; and the guide's own
// command.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "config/resolve_fixture.hpp"

namespace primus::config {
namespace {

using testing::HasSubstr;

constexpr const char* kPipeline = "--pipeline_model_parallel_size=2";

// 24: a pipeline rank without MoE layers skipped the collective of the expert biases.
TEST(FieldCases, ALayoutMayHaveMoeLayersOnOneStageOnly) {
  const ResolveFixture fixture;
  EXPECT_EQ(fixture.problems({kPipeline, "--num_layers=4", "--moe_layer_freq=([0]*2+[1]*2)",
                              "--pipeline_model_parallel_layout=Ett|ttL"}),
            "");
}

// 26: deadlock with empty stages.
TEST(FieldCases, StagesMayHoldOnlyTheEmbeddingOrTheLoss) {
  const ResolveFixture fixture;
  const Resolution resolution =
      fixture.resolve({kPipeline, "--num_layers=58", "--moe_layer_freq=1", "--global_batch_size=32",
                       "--pipeline_model_parallel_layout=E|(tt|)*29|L"});
  EXPECT_EQ(virtual_pipeline_size(resolution.experiment), 16);
  const PipelineLayout layout = *written_layout(resolution.experiment);
  EXPECT_EQ(layout.stages.front(), (PipelineStage{.num_embeddings = 1}));
  EXPECT_EQ(layout.stages[30], PipelineStage{});
  EXPECT_EQ(layout.stages.back(), (PipelineStage{.num_losses = 1}));
}

// 28: overlap crashed where the common environment leaves one hardware queue.
TEST(FieldCases, OverlapInAnEnvironmentWithOneQueueIsRefusedBeforeLaunch) {
  const test::ScopedVariable queues("CUDA_DEVICE_MAX_CONNECTIONS", "1");
  const ResolveFixture fixture;
  const std::vector<std::string> words = {"--overlap_moe_expert_parallel_comm", "--moe_token_dispatcher_type=alltoall"};
  EXPECT_THAT(fixture.problems(words), HasSubstr("needs more than one hardware queue"));
  const test::ScopedVariable more("CUDA_DEVICE_MAX_CONNECTIONS", "32");
  // Dense and MoE layers mix: the preset's first layer is dense.
  EXPECT_EQ(fixture.problems(words), "");
}

// 46: the default spelling of the drop policy left a variable unbound.
TEST(FieldCases, DropPoliciesAreAnEnumeration) {
  const ResolveFixture fixture;
  for (const char* policy : {"probs", "position"}) {
    EXPECT_EQ(fixture.problems({"--moe_expert_capacity_factor=1", "--moe_token_drop_policy", policy}), "") << policy;
  }
  EXPECT_THAT(fixture.problems({"--moe_token_drop_policy=drop"}), HasSubstr("expected one of probs, position"));
}

// 48: a capacity below 1/k cannot even take each token once.
TEST(FieldCases, CapacityBelowOneOverKIsRefused) {
  const ResolveFixture fixture;
  EXPECT_THAT(fixture.problems({"--moe_expert_capacity_factor=0.49"}), HasSubstr("expected at least 1/2"));
  EXPECT_EQ(fixture.problems({"--moe_expert_capacity_factor=0.5"}), "");
}

// 60: layer ids of prediction depths.
TEST(FieldCases, APredictionDepthCanBeRecomputedById) {
  const ResolveFixture fixture;
  EXPECT_EQ(fixture.problems({"--mtp_num_layers=1", "--recompute_layer_ids=1,2"}), "");
  EXPECT_THAT(fixture.problems({"--recompute_layer_ids=1,2"}), HasSubstr("'2' is not a layer"));
}

// 64: sinks were ignored over context ranks.
TEST(FieldCases, SinksOverContextRanksAreRefused) {
  const ResolveFixture fixture;
  EXPECT_THAT(fixture.problems({"--use_sink_attention", "--context_parallel_size=2"}), HasSubstr("sinks"));
  EXPECT_EQ(fixture.problems({"--use_sink_attention"}), "");
}

// 80: groups that do not hold the experts that a token wants.
TEST(FieldCases, ChosenGroupsHoldEnoughExperts) {
  const ResolveFixture fixture;
  EXPECT_EQ(fixture.problems({"--moe_router_num_groups=8", "--moe_router_group_topk=4"}), "");
  EXPECT_THAT(fixture.problems({"--moe_router_num_groups=8", "--moe_router_group_topk=1"}),
              HasSubstr("exceeds the 1 expert that 1 chosen group holds"));
}

// 90: upcycling of a model with dense and MoE layers.
TEST(FieldCases, UpcyclingTakesMixedLayers) {
  const ResolveFixture fixture;
  EXPECT_EQ(fixture.problems({"--num_layers=4", "--moe_layer_freq=[0]*1+[1]*3", "--moe_use_upcycling", "--load=dense"}),
            "");
}

// 92: one expert after a softmax over one: the router has no gradient.
TEST(FieldCases, OneExpertWithoutPreSoftmaxIsRefused) {
  const ResolveFixture fixture;
  EXPECT_THAT(fixture.problems({"--moe_router_topk=1"}), HasSubstr("the router learns nothing"));
  EXPECT_EQ(fixture.problems({"--moe_router_topk=1", "--moe_router_pre_softmax"}), "");
  EXPECT_EQ(fixture.problems({"--moe_router_topk=1", "--moe_router_score_function=sigmoid"}), "");
}

// Section 2 of the guide: DeepSeek-V2-Lite's baseline with DeepEP, sync-free stage 1, loss fusion and manual GC.
TEST(DeepDive, ItsOwnCommandResolvesUnchanged) {
  const Resolution resolution = resolve(
      {std::string(PRIMUS_SOURCE_DIR) + "/examples/moe_package/configs/MI355X/deepseek_v2_lite-pretrain-baseline.yaml",
       {"--enable_primus_turbo", "True", "--use_turbo_deepep", "True", "--turbo_deepep_num_cu", "64",
        "--moe_router_dtype", "fp32", "--turbo_sync_free_moe_stage", "1", "--cross_entropy_fusion_impl", "te",
        "--cross_entropy_loss_fusion", "True", "--manual_gc", "True", "--manual_gc_interval", "1"},
       Purpose::kPlan,
       {}});
  const Experiment& experiment = resolution.experiment;
  for (const char* key : {"enable_primus_turbo", "use_turbo_deepep", "cross_entropy_loss_fusion", "moe_enable_deepep",
                          "moe_use_fused_router_with_aux_score", "moe_permute_fusion"}) {
    EXPECT_TRUE(experiment.get_bool(key)) << key;
  }
  EXPECT_FALSE(experiment.get_bool("moe_shared_expert_overlap"));
  EXPECT_FALSE(experiment.get_bool("use_turbo_grouped_gemm"));
  const std::string notes = ResolveFixture::notes(resolution);
  EXPECT_THAT(notes, HasSubstr("moe_shared_expert_overlap: true -> false, because of use_turbo_deepep"));
  EXPECT_THAT(notes, HasSubstr("-> true, because of turbo_sync_free_moe_stage 1, which was written later"));
  EXPECT_THAT(notes, HasSubstr("moe_token_dispatcher_type: alltoall -> flex, because of use_turbo_deepep"));
  EXPECT_FALSE(resolution.no_effect.empty());
}

}  // namespace
}  // namespace primus::config
