// Our accounting: sums checked by hand, and what every setting must do to them.
#include "projection/memory.hpp"

#include <gtest/gtest.h>

#include "base/error.hpp"
#include "projection/plan_of.hpp"

namespace primus::projection {
namespace {

using test::plan_inputs;
using Words = std::vector<std::string>;

Words with(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

const Words kLarge = {
    "--pipeline_model_parallel_size",         "24", "--expert_model_parallel_size", "8", "--global_batch_size", "1536",
    "--num_virtual_stages_per_pipeline_rank", "4"};

const RankMemory& first(const MemoryProjection& projection) {
  return projection.ranks.front();
}

TEST(Memory, OneRankHoldsTheModel) {
  const MemoryInputs inputs = plan_inputs(
      "deepseek_v2_lite", 1,
      {"--expert_model_parallel_size", "1", "--global_batch_size", "2", "--use_distributed_optimizer", "false"});
  const MemoryProjection projection = project_memory(inputs);
  ASSERT_EQ(projection.ranks.size(), 1U);
  EXPECT_EQ(first(projection).num_parameters(), 15'706'484'224);
  const model::ResidentBytes whole =
      model::resident_bytes(model::training_parameters(inputs.spec), inputs.optimizer, inputs.policy);
  EXPECT_EQ(first(projection).resident().total(), whole.total());
  // bf16 weights and the 16 bits that their fp32 masters have beyond them, fp32 gradients, two moments.
  EXPECT_EQ(whole.parameters, 2 * std::int64_t{15'706'484'224});
  EXPECT_EQ(whole.main_gradients, 4 * std::int64_t{15'706'484'224});
  EXPECT_EQ(whole.optimizer, 10 * std::int64_t{15'706'484'224});
  // A CPU holds masters whole.
  EXPECT_EQ(first(project_memory(on_host(inputs))).bytes(Category::kOptimizer), 12 * std::int64_t{15'706'484'224});
  const std::int64_t saved =
      model::model_saved(inputs.spec, inputs.policy, inputs.micro_batch, inputs.loss_fusion).size_bytes();
  EXPECT_EQ(first(projection).bytes(Category::kActivations), saved);
  EXPECT_EQ(first(projection).bytes(Category::kRemade), 0);
}

// 1T on PP24: the first stage has four layers and the embedding. Experts: 28 of 224 a rank, EDP 4; dense: DP 32.
TEST(Memory, StateIsDividedOverTheRightGroups) {
  const MemoryInputs inputs = plan_inputs("moe_1T", 768, kLarge);
  const MemoryProjection projection = project_memory(inputs);
  const auto component = [&](model::Component part) {
    return first(projection).components[static_cast<std::size_t>(part)];
  };
  const std::int64_t experts = 4LL * 28 * 3 * 8192 * 1920;
  EXPECT_EQ(component(model::Component::kExperts).num_parameters, experts);
  EXPECT_EQ(component(model::Component::kExperts).bytes.optimizer, experts / 4 * 10);
  EXPECT_EQ(component(model::Component::kExperts).bytes.main_gradients, experts * 4);
  const std::int64_t embedding = 102400LL * 8192;
  EXPECT_EQ(component(model::Component::kEmbedding).num_parameters, embedding);
  EXPECT_EQ(component(model::Component::kEmbedding).bytes.optimizer, embedding / 32 * 10);
  EXPECT_EQ(inputs.sharding.optimizer.dense, 32);
  EXPECT_EQ(inputs.sharding.optimizer.expert, 4);
}

TEST(Memory, TensorRanksHoldTheirShare) {
  const Words words = {"--expert_model_parallel_size", "8", "--global_batch_size", "64"};
  const MemoryInputs whole = plan_inputs("deepseek_v2_lite", 8, words);
  const MemoryInputs cut = plan_inputs(
      "deepseek_v2_lite", 8, with(words, {"--tensor_model_parallel_size", "2", "--expert_tensor_parallel_size", "1"}));
  const MemoryProjection before = project_memory(whole);
  const MemoryProjection after = project_memory(cut);
  const auto count = [](const MemoryProjection& projection, model::Component part) {
    return first(projection).components[static_cast<std::size_t>(part)].num_parameters;
  };
  EXPECT_EQ(2 * count(after, model::Component::kEmbedding), count(before, model::Component::kEmbedding));
  EXPECT_EQ(count(after, model::Component::kExperts), count(before, model::Component::kExperts));
  EXPECT_EQ(count(after, model::Component::kRouter), count(before, model::Component::kRouter));
  // Sequence parallel: every kept tensor but a router's tables is halved.
  for (const model::SavedCategory category : {model::SavedCategory::kResidual, model::SavedCategory::kAttention,
                                              model::SavedCategory::kExperts, model::SavedCategory::kLoss}) {
    EXPECT_EQ(2 * first(after).saved(category), first(before).saved(category)) << model::name(category);
  }
}

TEST(Memory, ContextRanksHalveActivations) {
  const MemoryProjection one = project_memory(plan_inputs("moe_1T", 768, kLarge));
  const MemoryProjection two =
      project_memory(plan_inputs("moe_1T", 768, with(kLarge, {"--context_parallel_size", "2"})));
  const auto kept = [](const MemoryProjection& projection) {
    return static_cast<double>(first(projection).bytes(Category::kActivations));
  };
  EXPECT_NEAR(kept(two) / kept(one), 0.5, 1e-4);
  // The optimizer's groups stay as large: data ranks become context ranks.
  EXPECT_EQ(first(one).bytes(Category::kOptimizer), first(two).bytes(Category::kOptimizer));
}

TEST(Memory, EveryStageIsChargedWhatItHolds) {
  const MemoryProjection plain = project_memory(plan_inputs(
      "moe_1T", 768,
      {"--pipeline_model_parallel_size", "24", "--expert_model_parallel_size", "8", "--global_batch_size", "1536"}));
  for (const RankMemory& rank : plain.ranks) EXPECT_EQ(rank.in_flight(), 24 - rank.pipeline_rank);
  const MemoryProjection interleaved = project_memory(plan_inputs("moe_1T", 768, kLarge));
  EXPECT_EQ(first(interleaved).in_flight(), 2 * 23 + 3 * 24 + 1);
  // Logits and loss are held by the last stage alone, once.
  EXPECT_EQ(first(interleaved).saved(model::SavedCategory::kLoss), 0);
  EXPECT_EQ(plain.ranks.back().saved(model::SavedCategory::kLoss), 4096LL * 102400 * 2);
}

TEST(Memory, FewMicroBatchesFillNoPipeline) {
  const MemoryProjection projection = project_memory(plan_inputs(
      "moe_1T", 768,
      {"--pipeline_model_parallel_size", "24", "--expert_model_parallel_size", "8", "--global_batch_size", "96"}));
  EXPECT_EQ(first(projection).in_flight(), 3);
}

TEST(Memory, RecomputationKeepsInputs) {
  const Words words = {"--expert_model_parallel_size", "8", "--global_batch_size", "64"};
  const auto kept = [&](const Words& more) {
    return first(project_memory(plan_inputs("deepseek_v2_lite", 8, with(words, more)))).bytes(Category::kActivations);
  };
  const std::int64_t none = kept({});
  const std::int64_t block =
      kept({"--recompute_granularity", "full", "--recompute_method", "block", "--recompute_num_layers", "10"});
  const std::int64_t all =
      kept({"--recompute_granularity", "full", "--recompute_method", "uniform", "--recompute_num_layers", "1"});
  const std::int64_t groups =
      kept({"--recompute_granularity", "full", "--recompute_method", "uniform", "--recompute_num_layers", "9"});
  const std::int64_t attention = kept({"--recompute_granularity", "selective"});
  const std::int64_t ids = kept({"--recompute_granularity", "full", "--recompute_layer_ids", "0,3,4"});
  EXPECT_LT(block, none);
  EXPECT_LT(all, block);
  EXPECT_LT(groups, all);
  EXPECT_LT(attention, none);
  EXPECT_LT(ids, none) << "recompute_layer_ids count";
  // 27 inputs of 4096 x 2048 in bf16, and what the output layer keeps.
  const std::int64_t output = 4096LL * (2048 * 2 + 4 + 102400 * 2);
  EXPECT_EQ(all, 27LL * 4096 * 2048 * 2 + output);
}

TEST(Memory, GroupsOfRecomputedLayersBeginOnEveryStage) {
  // Three layers a stage in groups of two: two inputs are kept on each.
  const MemoryInputs inputs = plan_inputs(
      "moe_1T", 256,
      {"--pipeline_model_parallel_size", "32", "--expert_model_parallel_size", "8", "--global_batch_size", "1024",
       "--recompute_granularity", "full", "--recompute_method", "uniform", "--recompute_num_layers", "2"});
  const MemoryProjection projection = project_memory(inputs);
  EXPECT_EQ(projection.ranks[5].chunks[0].kept(), 2LL * 4096 * 8192 * 2);
  EXPECT_GT(projection.ranks[5].bytes(Category::kRemade), 0);
}

TEST(Memory, OptimizersOfEveryWidth) {
  // One rank: nothing is divided.
  const Words words = {"--expert_model_parallel_size",    "1",   "--global_batch_size", "2",
                       "--use_precision_aware_optimizer", "true"};
  const auto state = [&](const Words& more) {
    return first(project_memory(plan_inputs("qwen3_30B_A3B", 1, with(words, more)))).resident();
  };
  const model::ResidentBytes plain = state({});
  const std::int64_t count = plain.parameters / 2;
  EXPECT_EQ(plain.optimizer, 10 * count);
  EXPECT_EQ(state({"--exp_avg_dtype", "bf16", "--exp_avg_sq_dtype", "bf16"}).optimizer, 6 * count);
  EXPECT_EQ(state({"--main_grads_dtype", "bf16"}).main_gradients, 2 * count);
  // fp8 moments and fp16 masters: four bytes and a scale for each 128 of each.
  const std::int64_t narrow =
      state({"--exp_avg_dtype", "fp8", "--exp_avg_sq_dtype", "fp8", "--main_params_dtype", "fp16"}).optimizer;
  EXPECT_GE(narrow, 4 * count + 3 * count / 128 * 4);
  EXPECT_LT(narrow, 4 * count + 3 * count / 128 * 4 + 12 * 1000);
  EXPECT_EQ(state({"--optimizer", "sgd"}).optimizer, 6 * count);
}

/// bench/step/w1.yaml on one H200, 2026-11-30 (docs/performance.md): the allocator's peak in GiB, by micro-batch and
/// accumulation. With one micro-batch a step, gradients take the place of activations.
TEST(Memory, OneGpuHoldsWhatItsAllocatorHandedOut) {
  struct Measured {
    int micro_batch, accumulation;
    double gib;
  };
  for (const Measured& m : {Measured{1, 1, 51.2}, Measured{2, 1, 51.8}, Measured{4, 1, 53.6}, Measured{8, 1, 57.6},
                            Measured{1, 4, 53.7}, Measured{2, 4, 55.5}, Measured{4, 4, 59.3}, Measured{8, 4, 67.5}}) {
    const RankMemory rank = first(project_memory(
        plan_inputs("deepseek_v2_lite", 1,
                    {"--num_layers", "6", "--moe_layer_freq", "([0]*1+[1]*5)", "--vocab_size", "102400", "--seq_length",
                     "4096", "--expert_model_parallel_size", "1", "--micro_batch_size", std::to_string(m.micro_batch),
                     "--global_batch_size", std::to_string(m.micro_batch * m.accumulation),
                     "--cross_entropy_loss_fusion", "true"})));
    const auto tensors = static_cast<double>(rank.total() - rank.framework.total());
    EXPECT_NEAR(tensors / 0x1p30, m.gib, 0.02 * m.gib) << m.micro_batch << " x " << m.accumulation;
  }
}

TEST(Memory, StateOnTheHostIsNoneOfTheDevices) {
  const Words layout = {"--pipeline_model_parallel_layout",
                        "Et*14|t*13,L",
                        "--pipeline_model_parallel_size",
                        "2",
                        "--expert_model_parallel_size",
                        "4",
                        "--global_batch_size",
                        "64"};
  const MemoryProjection all_here = project_memory(plan_inputs("deepseek_v2_lite", 8, layout));
  for (const char* fraction : {"0.5", "1"}) {
    const MemoryProjection moved = project_memory(
        plan_inputs("deepseek_v2_lite", 8,
                    with(layout, {"--optimizer_cpu_offload", "true", "--optimizer_offload_fraction", fraction})));
    for (std::size_t i = 0; i < moved.ranks.size(); ++i) {
      const RankMemory& rank = moved.ranks[i];
      const std::int64_t on_host = rank.resident().optimizer_on_host;
      const std::int64_t whole = all_here.ranks[i].bytes(Category::kOptimizer);
      EXPECT_GT(on_host, 0);
      EXPECT_EQ(rank.bytes(Category::kOptimizer) + on_host, whole);
      EXPECT_EQ(all_here.ranks[i].total() - rank.total(), on_host);
      EXPECT_NEAR(static_cast<double>(on_host) / static_cast<double>(whole), std::stod(fraction), 0.1);
    }
  }
}

TEST(Memory, TiedEmbeddingsAndDepthsAreHeldAgainWhereTheyAreRead) {
  const Words words = {
      "--pipeline_model_parallel_size", "4", "--expert_model_parallel_size", "8", "--global_batch_size", "256"};
  const MemoryProjection own = project_memory(plan_inputs("qwen3_30B_A3B", 32, words));
  EXPECT_EQ(own.ranks.back().copies.num_parameters, 0);
  const MemoryProjection tied =
      project_memory(plan_inputs("qwen3_30B_A3B", 32, with(words, {"--untie_embeddings_and_output_weights", "false"})));
  EXPECT_EQ(tied.ranks.back().copies.num_parameters,
            tied.ranks.front().components[static_cast<std::size_t>(model::Component::kEmbedding)].num_parameters);
  EXPECT_EQ(tied.ranks[1].copies.num_parameters, 0);
  const MemoryProjection depths =
      project_memory(plan_inputs("qwen3_30B_A3B", 32, with(words, {"--mtp_num_layers", "1"})));
  EXPECT_GT(depths.ranks.back().copies.num_parameters, 0);
  EXPECT_GT(depths.ranks.back().num_parameters(), own.ranks.back().num_parameters());
}

TEST(Memory, ImbalanceCostsRowsOfExperts) {
  const Words words = {"--expert_model_parallel_size", "8", "--global_batch_size", "64"};
  const MemoryProjection balanced = project_memory(plan_inputs("qwen3_30B_A3B", 8, words));
  const MemoryProjection twice = project_memory(plan_inputs("qwen3_30B_A3B", 8, words, 2.0));
  EXPECT_EQ(first(twice).saved(model::SavedCategory::kExperts),
            2 * first(balanced).saved(model::SavedCategory::kExperts));
  EXPECT_EQ(first(twice).saved(model::SavedCategory::kRouter), first(balanced).saved(model::SavedCategory::kRouter));
  EXPECT_THROW(plan_inputs("qwen3_30B_A3B", 8, words, 0.5), UserError);
  EXPECT_THROW(plan_inputs("qwen3_30B_A3B", 8, words, std::nan("")), UserError);
}

TEST(Memory, ImbalanceIsBoundedByRowsThatExist) {
  const auto total = [](const MemoryInputs& inputs) { return project_memory(inputs).worst().total(); };
  const Words alone = {"--expert_model_parallel_size", "1", "--global_batch_size", "64"};
  EXPECT_EQ(total(plan_inputs("qwen3_30B_A3B", 8, alone, 5.0)), total(plan_inputs("qwen3_30B_A3B", 8, alone)))
      << "one rank's experts get every choice anyway";
  // Eight ranks of 16 experts each, eight chosen: eight times the balanced number are all choices there are.
  const Words eight = {"--expert_model_parallel_size", "8", "--global_batch_size", "64"};
  const MemoryInputs most = plan_inputs("qwen3_30B_A3B", 8, eight, 8.0);
  const MemoryInputs more = plan_inputs("qwen3_30B_A3B", 8, eight, 100.0);
  EXPECT_EQ(total(more), total(most));
  EXPECT_EQ(counted_imbalance(more), 8.0);
  EXPECT_EQ(counted_imbalance(plan_inputs("qwen3_30B_A3B", 8, eight, 2.0)), 2.0);
  // At most 1.5 times an even share of each sender's tokens; the mean is all that there are.
  const Words bound = with(eight, {"--moe_expert_capacity_factor", "1.5"});
  EXPECT_EQ(counted_imbalance(plan_inputs("qwen3_30B_A3B", 8, bound, 2.0)), 1.5);
  const Words padded = with(bound, {"--moe_pad_expert_input_to_capacity", "true"});
  EXPECT_EQ(total(plan_inputs("qwen3_30B_A3B", 8, padded, 2.0)), total(plan_inputs("qwen3_30B_A3B", 8, padded)));
}

// The layouts that the deep-dive suggests fit the devices that it names.
TEST(Memory, TheSuggestedLayoutsFit) {
  struct Case {
    const char* preset;
    Words words;
    std::int64_t gib;
  };
  const Words cp2 = {"--context_parallel_size", "2"};
  const Words ep16 = {"--pipeline_model_parallel_size",
                      "24",
                      "--expert_model_parallel_size",
                      "16",
                      "--global_batch_size",
                      "1536",
                      "--num_virtual_stages_per_pipeline_rank",
                      "4"};
  for (const Case& one : {Case{"moe_1T", with(kLarge, cp2), 192}, Case{"moe_1T", kLarge, 288},
                          Case{"moe_2T", with(ep16, cp2), 192}, Case{"moe_2T", with(kLarge, cp2), 288}}) {
    const MemoryProjection projection = project_memory(plan_inputs(one.preset, 768, one.words));
    EXPECT_LE(projection.worst().total(), one.gib << 30) << one.preset << " " << projection.worst().total() / 0x1p30;
  }
}

// What is drawn over a step is what is projected: its most is the projection's, and nothing is left at the end.
TEST(Memory, ATimelineEndsWithNothingAndReachesThePeak) {
  const Words one_again = {"--recompute_granularity", "full", "--recompute_layer_ids", "3"};
  for (const Words& words : {kLarge, with(kLarge, one_again)}) {
    const MemoryInputs inputs = plan_inputs("moe_1T", 768, words);
    const MemoryProjection projection = project_memory(inputs);
    const schedule::Schedule table = schedule::build(inputs.schedule);
    const schedule::Timeline step = schedule::simulate(table, schedule::model_costs(inputs.spec, inputs.stages, {}));
    for (const int rank : {0, 3, 11, 23}) {
      const auto index = static_cast<std::size_t>(rank);
      const RankMemory& memory = projection.ranks[index];
      const std::vector<schedule::Held> curve =
          held_activations(table.ranks[index], step.ranks[index].spans, memory.chunks);
      double peak = 0.0;
      double now = 0.0;
      for (const schedule::Held& held : curve) {
        EXPECT_GE(held.time, now);
        now = held.time;
        peak = std::max(peak, held.amount);
      }
      EXPECT_EQ(peak, static_cast<double>(memory.bytes(Category::kActivations) + memory.bytes(Category::kRemade)));
      EXPECT_EQ(curve.back().amount, 0.0);
    }
  }
}

// A pair's halves run at once, so their curve has one step up and one down; the sum behind it is the same.
TEST(Memory, APairIsHeldTogether) {
  const Words pairs = {"--pipeline_model_parallel_size",
                       "8",
                       "--expert_model_parallel_size",
                       "8",
                       "--global_batch_size",
                       "1024",
                       "--num_virtual_stages_per_pipeline_rank",
                       "4",
                       "--overlap_moe_expert_parallel_comm",
                       "true"};
  const MemoryInputs inputs = plan_inputs("moe_1T", 256, pairs);
  ASSERT_EQ(inputs.schedule.algorithm, schedule::Algorithm::kOverlapped);
  const schedule::Schedule table = schedule::build(inputs.schedule);
  const schedule::Timeline step = schedule::simulate(table, schedule::model_costs(inputs.spec, inputs.stages, {}));
  for (std::size_t rank = 0; rank < table.ranks.size(); ++rank) {
    const std::vector<ChunkMemory> chunks = chunks_of(inputs, static_cast<int>(rank));
    const std::vector<schedule::Held> curve = held_activations(table.ranks[rank], step.ranks[rank].spans, chunks);
    std::size_t passes = 0;
    std::size_t pairs_found = 0;
    for (const schedule::Action& action : table.ranks[rank]) {
      passes += schedule::is_compute(action.kind) ? 1 : 0;
      pairs_found += action.pairing == schedule::Pairing::kWithNext ? 1 : 0;
    }
    EXPECT_GT(pairs_found, 0U);
    EXPECT_EQ(curve.size(), 2 * (passes - pairs_found));
    for (std::size_t i = 1; i < curve.size(); ++i) EXPECT_GE(curve[i].time, curve[i - 1].time);
    EXPECT_EQ(curve.back().amount, 0.0);
  }
}

TEST(Memory, SizesBeyondCountingAreRefused) {
  EXPECT_THROW(plan_inputs("moe_1T", 768,
                           with(kLarge, {"--seq_length", "1000000000", "--max_position_embeddings", "1000000000",
                                         "--micro_batch_size", "1000000", "--global_batch_size", "32000000"})),
               UserError);
}

}  // namespace
}  // namespace primus::projection
