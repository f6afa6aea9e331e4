// Which keys choose which schedule, through the real configuration, and what the stages cost.
#include "schedule/from_experiment.hpp"

#include <gtest/gtest.h>

#include "base/error.hpp"
#include "config/resolve_fixture.hpp"
#include "model/flops.hpp"

namespace primus::schedule {
namespace {

class ScheduleOf : public config::ResolveFixture, public ::testing::Test {
 protected:
  config::Experiment experiment(std::vector<std::string> words) const {
    words.insert(words.end(), {"--num_layers", "16", "--pipeline_model_parallel_size", "4", "--moe_layer_freq", "1",
                               "--mock_data", "true", "--expert_model_parallel_size", "2", "--bf16", "true",
                               "--moe_shared_expert_overlap", "false", "--moe_token_dispatcher_type", "alltoall"});
    return resolve(words).experiment;
  }
  Request request(std::vector<std::string> words) const {
    const config::Experiment resolved = experiment(std::move(words));
    return request_of(resolved, layout::stage_layout(resolved), 8);
  }
  std::string name(std::vector<std::string> words) const {
    return std::string(info(request(std::move(words)).algorithm).name);
  }
};

const std::vector<std::string> kTwoChunks = {"--num_virtual_stages_per_pipeline_rank", "2"};

std::vector<std::string> with_two_chunks(std::vector<std::string> words) {
  words.insert(words.end(), kTwoChunks.begin(), kTwoChunks.end());
  return words;
}

std::vector<std::string> zero_bubble(std::vector<std::string> words) {
  words.insert(words.end(),
               {"--overlap_grad_reduce", "false", "--overlap_param_gather", "false", "--no_persist_layer_norm", "true",
                "--create_attention_mask_in_dataloader", "false", "--gradient_accumulation_fusion", "true"});
  return words;
}

TEST_F(ScheduleOf, MegatronsOwn) {
  EXPECT_EQ(name({}), "1f1b");
  EXPECT_EQ(name(kTwoChunks), "1f1b-interleaved");
  EXPECT_EQ(name(with_two_chunks({"--overlap_moe_expert_parallel_comm", "true"})), "1f1b-overlap");
  const Request late =
      request(with_two_chunks({"--overlap_moe_expert_parallel_comm", "true", "--delay_wgrad_compute", "true"}));
  EXPECT_EQ(late.weight_grad, WeightGrad::kLate);
  EXPECT_EQ(request(with_two_chunks({"--microbatch_group_size_per_vp_stage", "5", "--global_batch_size", "20"})).group,
            5);
}

TEST_F(ScheduleOf, PrimusPipeline) {
  const auto choose = [](std::string_view algorithm) {
    return zero_bubble({"--patch_primus_pipeline", "true", "--pp_algorithm", std::string(algorithm)});
  };
  for (const std::string_view one : {"1f1b", "zero-bubble", "zero-bubble-heuristic"}) EXPECT_EQ(name(choose(one)), one);
  for (const std::string_view two : {"1f1b-interleaved", "zbv-formatted", "v-half", "v-min"}) {
    EXPECT_EQ(name(with_two_chunks(choose(two))), two);
  }
  EXPECT_EQ(name(choose("1f1b-interleaved")), "1f1b");
}

TEST_F(ScheduleOf, ZeroBubbleRuntime) {
  EXPECT_EQ(name(zero_bubble({"--patch_zero_bubble", "true"})), "zero-bubble");
  EXPECT_EQ(name(zero_bubble({"--patch_zero_bubble", "true", "--enable_zero_bubble", "false"})), "1f1b");
  const auto v = [](const std::string& memory) {
    return with_two_chunks(zero_bubble({"--patch_zero_bubble", "true", "--zero_bubble_v_schedule", "true",
                                        "--zero_bubble_v_schedule_mem_setup", memory}));
  };
  EXPECT_EQ(name(v("half")), "v-half");
  EXPECT_EQ(name(v("min")), "v-min");
  EXPECT_EQ(name(v("zb")), "zbv-formatted");
  EXPECT_EQ(name(with_two_chunks(zero_bubble({"--patch_zero_bubble", "true", "--enable_1f1b_v", "true"}))), "1f1b-v");
}

TEST_F(ScheduleOf, TheSearchReadsItsCostsAndMemory) {
  const std::vector<std::string> words =
      zero_bubble({"--patch_primus_pipeline", "true", "--pp_algorithm", "zero-bubble-heuristic", "--pp_cost_f",
                   "1,1,1,2", "--pp_cost_b", "3", "--pp_max_mem", "6"});
  const Request searched = request(words);
  EXPECT_EQ(searched.max_in_flight, 6);
  ASSERT_TRUE(searched.durations);
  EXPECT_EQ(searched.durations->alone({ActionKind::kForward, {0}, {0}}, {3}), 2.0);
  EXPECT_EQ(searched.durations->alone({ActionKind::kForward, {0}, {0}}, {2}), 1.0);
  EXPECT_EQ(searched.durations->alone({ActionKind::kWeightGrad, {0}, {0}}, {2}), 1.0);
  EXPECT_EQ(searched.durations->alone({ActionKind::kBackward, {0}, {0}, Pairing::kAlone, WeightGrad::kApart}, {1}),
            3.0);
  EXPECT_NO_THROW(build(searched));
  try {
    request(zero_bubble(
        {"--patch_primus_pipeline", "true", "--pp_algorithm", "zero-bubble-heuristic", "--pp_cost_f", "1,1,2"}));
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what())
                  .find("pp_cost_f: has neither one cost nor one for each pipeline rank (expected "
                        "1 or 4 numbers, found 3)"),
              std::string::npos)
        << error.what();
  }
}

// The placement is known twice, to the layout and to the schedules, which may be built without one: they agree.
TEST_F(ScheduleOf, StagesLieWhereTheLayoutPutsThem) {
  for (const Algorithm algorithm : {Algorithm::kInterleaved, Algorithm::kZbv}) {
    const layout::StageLayout stages = stages_for(experiment({}), algorithm, 2);
    const Shape shape = shape_of({.algorithm = algorithm, .num_ranks = 4, .num_micro_batches = 8, .num_chunks = 2});
    for (int stage = 0; stage < 8; ++stage) {
      const layout::StagePlace place = stages.place(stage);
      EXPECT_EQ(place_of(shape, {stage}), (Place{{place.rank}, {place.chunk}}));
    }
  }
}

TEST_F(ScheduleOf, MoreStagesThanLayersAreRefused) {
  EXPECT_NO_THROW(stages_for(experiment({}), Algorithm::kInterleaved, 4));
  EXPECT_THROW(stages_for(experiment({}), Algorithm::kInterleaved, 5), ConfigError);
}

TEST_F(ScheduleOf, CostsAddUpToTheModelsFlops) {
  const config::Experiment resolved = experiment({"--mtp_num_layers", "1"});
  const model::ModelSpec spec = model::build_model_spec(resolved);
  const layout::StageLayout stages = layout::stage_layout(resolved);
  const Costs costs = model_costs(spec, stages, {});
  double forward = 0.0;
  double all = 0.0;
  for (const StageCost& cost : costs.stages) {
    forward += cost.forward;
    all += cost.forward + cost.backward + cost.weight_grad;
    EXPECT_GT(cost.backward, cost.forward);  // attention's core has a double input gradient and no weight gradient
    EXPECT_LT(cost.weight_grad, cost.forward);
  }
  EXPECT_NEAR(forward, 4.0, 1e-9);  // one for each rank
  EXPECT_NEAR(all, 12.0, 1e-9);     // training is three forwards
  // The last stage carries the output layer and the prediction depth: its share in FLOPs is its share here.
  model::ModelSpec last = spec;
  last.layers.resize(4);
  last.windows.clear();
  last.mixers.clear();
  const auto of_last =
      static_cast<double>(model::flops_per_token(last).forward() * 3 + model::mtp_training_flops_per_token(spec));
  const auto of_model =
      static_cast<double>(model::flops_per_token(spec).training() + model::mtp_training_flops_per_token(spec));
  EXPECT_NEAR(costs.stages[3].forward / forward, of_last / of_model, 1e-9);
}

TEST_F(ScheduleOf, ExchangeIsAShareOfItsLayer) {
  const config::Experiment resolved = experiment({});
  const model::ModelSpec spec = model::build_model_spec(resolved);
  const layout::StageLayout stages = layout::stage_layout(resolved);
  const StageCost without = model_costs(spec, stages, {}).stages[0];
  const StageCost with = model_costs(spec, stages, {.message = 0.25, .exchange = 0.1}).stages[0];
  EXPECT_EQ(with.num_exchange_layers, 4);
  EXPECT_NEAR(with.forward, without.forward * 1.2, 1e-9);  // dispatch and combine of each of its layers
  EXPECT_NEAR(with.weight_grad, without.weight_grad, 1e-12);
  EXPECT_EQ(model_costs(spec, stages, {.message = 0.25}).message, 0.25);
}

}  // namespace
}  // namespace primus::schedule
