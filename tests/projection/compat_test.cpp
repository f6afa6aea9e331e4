// Other people's numbers: all sixty plotted values of the deep-dive's figures, and what the original's projection
// prints (projection-and-pipeline.md 5.6 and 1.8).
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <optional>

#include "base/files.hpp"
#include "base/text.hpp"
#include "projection/compat_blog.hpp"
#include "projection/compat_primus.hpp"
#include "projection/plan_of.hpp"

namespace primus::projection {
namespace {

using test::plan_experiment;

std::vector<std::string> pipeline_words(int stages, int chunks, int expert, int context) {
  std::vector<std::string> words = {
      "--pipeline_model_parallel_size", std::to_string(stages),  "--expert_model_parallel_size", std::to_string(expert),
      "--context_parallel_size",        std::to_string(context), "--global_batch_size",          "1536"};
  if (chunks > 1) {
    words.insert(words.end(), {"--num_virtual_stages_per_pipeline_rank", std::to_string(chunks)});
  }
  return words;
}

struct BlogRow {
  const char* preset;
  int stages;
  int expert;
  int context;
  double parameters, gradients, main_parameters, moments, activations, total;  // 10^9 bytes, as plotted
};

constexpr BlogRow kBlog[] = {{"moe_1T", 24, 8, 1, 12.8, 12.8, 3.2, 12.8, 153.4, 195.0},
                             {"moe_1T", 24, 8, 2, 12.8, 12.8, 3.2, 12.8, 76.7, 118.3},
                             {"moe_1T", 24, 16, 1, 7.5, 7.5, 3.7, 14.9, 153.4, 187.0},
                             {"moe_1T", 24, 16, 2, 7.5, 7.5, 3.7, 14.9, 76.7, 110.3},
                             {"moe_1T", 48, 8, 1, 7.2, 7.2, 3.6, 14.4, 183.8, 216.2},
                             {"moe_1T", 48, 8, 2, 7.2, 7.2, 3.6, 14.4, 91.9, 124.3},
                             {"moe_2T", 24, 8, 1, 23.3, 23.3, 5.8, 23.3, 262.2, 337.9},
                             {"moe_2T", 24, 8, 2, 23.3, 23.3, 5.8, 23.3, 131.1, 206.8},
                             {"moe_2T", 24, 16, 1, 12.8, 12.8, 6.4, 25.5, 262.2, 319.7},
                             {"moe_2T", 24, 16, 2, 12.8, 12.8, 6.4, 25.5, 131.1, 188.6},
                             {"moe_2T", 48, 8, 1, 12.5, 12.5, 6.2, 25.0, 314.6, 370.8},
                             {"moe_2T", 48, 8, 2, 12.5, 12.5, 6.2, 25.0, 157.3, 213.5}};

class Blog : public ::testing::TestWithParam<BlogRow> {};

TEST_P(Blog, EveryPlottedValue) {
  const BlogRow& row = GetParam();
  const int chunks = row.stages == 24 ? 4 : 2;  // one layer a virtual stage
  const MemoryInputs inputs =
      test::plan_inputs(row.preset, 768, pipeline_words(row.stages, chunks, row.expert, row.context));
  const BlogMemory memory = blog_memory(inputs);
  const auto plotted = [](double bytes) { return std::round(bytes / 1e8) / 10.0; };
  EXPECT_DOUBLE_EQ(plotted(memory.parameters), row.parameters);
  EXPECT_DOUBLE_EQ(plotted(memory.gradients), row.gradients);
  EXPECT_DOUBLE_EQ(plotted(memory.main_parameters), row.main_parameters);
  EXPECT_DOUBLE_EQ(plotted(memory.moments), row.moments);
  EXPECT_DOUBLE_EQ(plotted(memory.activations), row.activations);
  // The figures' totals are sums of rounded bars.
  EXPECT_NEAR(memory.total() / 1e9, row.total, 0.2);
}
INSTANTIATE_TEST_SUITE_P(Figures, Blog, ::testing::ValuesIn(kBlog));

double gib(double bytes) {
  return bytes / 0x1p30;
}

struct PrimusRow {
  const char* name;
  const char* preset;
  std::int64_t world;
  std::vector<std::string> words;
  struct Rank {
    int rank;
    double parameters;                    // 10^9
    double resident, activations, total;  // GiB, as printed
  };
  std::vector<Rank> ranks;
};

std::vector<std::string> operator+(std::vector<std::string> a, const std::vector<std::string>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

const std::vector<std::string> kLoss = {"--cross_entropy_loss_fusion", "true", "--cross_entropy_fusion_impl", "te"};

std::vector<std::string> batch(int micro, int global) {
  return {"--micro_batch_size", std::to_string(micro), "--global_batch_size", std::to_string(global)};
}

std::vector<std::string> ep(int expert) {
  return {"--expert_model_parallel_size", std::to_string(expert)};
}

// Of the original, GA = GBS // (world // EP // PP) beside PP decides how full its pipeline is: 1024 fills all of these.
std::vector<PrimusRow> primus_rows() {
  std::vector<PrimusRow> rows = {
      {"lite_b1", "deepseek_v2_lite", 8, ep(8) + batch(1, 64), {{0, 3.10282, 40.46, 15.795, 56.25}}},
      {"lite_b12", "deepseek_v2_lite", 8, ep(8) + batch(12, 768), {{0, 3.10282, 40.46, 189.54, 230.00}}},
      {"lite_b14_fused", "deepseek_v2_lite", 8, ep(8) + batch(14, 896) + kLoss, {{0, 3.10282, 40.46, 199.70, 240.15}}},
      {"lite_ep1", "deepseek_v2_lite", 8, ep(1) + batch(1, 64), {{0, 15.69832, 76.76, 15.795, 92.55}}},
      {"lite_cp2",
       "deepseek_v2_lite",
       16,
       ep(8) + batch(1, 64) + std::vector<std::string>{"--context_parallel_size", "2"},
       {{0, 3.10282, 26.01, 7.90, 33.91}}},
      {"lite_tp2",
       "deepseek_v2_lite",
       8,
       ep(4) + batch(1, 64) +
           std::vector<std::string>{"--tensor_model_parallel_size", "2", "--expert_tensor_parallel_size", "1"},
       {{0, 4.90218, 41.09, 7.90, 48.99}}},
      {"lite_uniform",
       "deepseek_v2_lite",
       8,
       ep(8) + batch(12, 768) +
           std::vector<std::string>{"--recompute_granularity", "full", "--recompute_method", "uniform",
                                    "--recompute_num_layers", "1"},
       {{0, 3.10282, 40.46, 33.00, 73.46}}},
      {"lite_block10",
       "deepseek_v2_lite",
       8,
       ep(8) + batch(12, 768) +
           std::vector<std::string>{"--recompute_granularity", "full", "--recompute_method", "block",
                                    "--recompute_num_layers", "10"},
       {{0, 3.10282, 40.46, 131.61, 172.07}}},
      {"lite_selective",
       "deepseek_v2_lite",
       8,
       ep(8) + batch(12, 768) + std::vector<std::string>{"--recompute_granularity", "selective"},
       {{0, 3.10282, 40.46, 141.45, 181.91}}},
      {"mixtral_ep4_pp2",
       "mixtral_8x7B_v0.1",
       8,
       ep(4) + batch(1, 64) + std::vector<std::string>{"--pipeline_model_parallel_size", "2"},
       {{0, 6.72019, 87.62, 31.56, 119.18}, {1, 6.72020, 87.62, 36.16, 123.78}}},
      {"qwen3_4_nodes", "qwen3_30B_A3B", 32, ep(8) + batch(1, 256), {{0, 4.95407, 29.99, 18.83, 48.82}}},
      {"v2_vpp5",
       "deepseek_v2",
       32,
       ep(8) + batch(1, 256) +
           std::vector<std::string>{"--pipeline_model_parallel_size", "4", "--num_virtual_stages_per_pipeline_rank",
                                    "5"},
       {{0, 10.21952, 133.25, 120.46, 253.71},
        {2, 10.03684, 130.87, 120.48, 251.35},
        {3, 10.55065, 137.56, 131.23, 268.79}}},
  };
  const auto big = [&](const char* name, const char* preset, int stages, int chunks, int expert, int context,
                       std::vector<PrimusRow::Rank> ranks) {
    rows.push_back({name, preset, 768, pipeline_words(stages, chunks, expert, context), std::move(ranks)});
  };
  big("1t_pp24_ep8", "moe_1T", 24, 1, 8, 1,
      {{0, 6.90717, 41.81, 108.47, 150.28}, {1, 6.08508, 36.84, 106.97, 143.81}, {23, 6.90718, 41.81, 163.59, 205.41}});
  big("1t_pp24_vpp4_cp2", "moe_1T", 24, 4, 8, 2,
      {{0, 6.90717, 41.81, 67.23, 109.04}, {1, 6.08508, 36.84, 66.30, 103.14}, {23, 6.90718, 41.81, 101.39, 143.20}});
  big("1t_pp24_vpp2_ep16", "moe_1T", 24, 2, 16, 1,
      {{0, 4.26476, 35.75, 160.44, 196.19}, {1, 3.44267, 28.86, 158.22, 187.08}, {23, 4.26477, 35.75, 241.98, 277.73}});
  big("1t_pp48_vpp2_cp2", "moe_1T", 48, 2, 8, 2,
      {{0, 3.86463, 32.39, 81.90, 114.29}, {1, 3.04254, 25.50, 79.67, 105.17}, {47, 3.86464, 32.39, 164.02, 196.41}});
  big("2t_pp24_vpp4_cp2", "moe_2T", 24, 4, 8, 2,
      {{0, 12.19933, 73.85, 88.15, 162.00},
       {1, 11.37725, 68.87, 87.22, 156.09},
       {23, 12.19935, 73.85, 122.31, 196.16}});
  big("2t_pp48_ep8", "moe_2T", 48, 1, 8, 1,
      {{0, 6.51071, 54.57, 143.72, 198.29}, {1, 5.68862, 47.68, 140.72, 188.40}, {47, 6.51072, 54.57, 253.97, 308.54}});
  return rows;
}

TEST(Primus, WhatTheOriginalPrints) {
  for (const PrimusRow& row : primus_rows()) {
    SCOPED_TRACE(row.name);
    const config::Experiment experiment = plan_experiment(row.preset, row.world, row.words);
    const MemoryInputs inputs = memory_inputs(experiment, row.world, 1.0);
    for (const PrimusRow::Rank& rank : row.ranks) {
      const PrimusMemory memory = primus_memory(inputs, rank.rank, experiment.get_int("global_batch_size"));
      EXPECT_NEAR(memory.num_parameters / 1e9, rank.parameters, 5.1e-6) << rank.rank;
      EXPECT_NEAR(gib(memory.resident()), rank.resident, 0.0051) << rank.rank;
      EXPECT_NEAR(gib(memory.activations), rank.activations, 0.0051) << rank.rank;
      EXPECT_NEAR(gib(memory.total()), rank.total, 0.0151) << rank.rank;
    }
  }
}

// tests/projection/data/primus_rows.tsv: every other run that was recorded.
TEST(Primus, EveryRecordedRun) {
  const std::string table = read_file(std::string(PRIMUS_SOURCE_DIR) + "/tests/projection/data/primus_rows.tsv");
  std::optional<MemoryInputs> inputs;
  std::int64_t global_batch_size = 0;
  std::string name;
  int num_ranks = 0;
  constexpr double kRounding = 0.0055;  // some were rounded twice, to four decimals and then to two
  for (const std::string& line : split(table, '\n')) {
    if (line.empty() || line.starts_with("#")) continue;
    const std::vector<std::string> cells = split(line, '\t');
    if (!cells[0].empty()) {
      name = cells[0];
      const std::int64_t world = std::stoll(cells[2]);
      const config::Experiment experiment = plan_experiment(cells[1], world, split(cells[3], ' '));
      inputs = memory_inputs(experiment, world, 1.0);
      global_batch_size = experiment.get_int("global_batch_size");
      continue;
    }
    SCOPED_TRACE(name + ", rank " + cells[1]);
    ASSERT_EQ(cells.size(), 6U);
    const PrimusMemory memory = primus_memory(*inputs, std::stoi(cells[1]), global_batch_size);
    EXPECT_NEAR(memory.num_parameters / 1e9, std::stod(cells[2]), 5.1e-6);
    EXPECT_NEAR(gib(memory.resident()), std::stod(cells[3]), kRounding);
    EXPECT_NEAR(gib(memory.activations), std::stod(cells[4]), kRounding);
    EXPECT_NEAR(gib(memory.total()), std::stod(cells[5]), 0.0151);
    ++num_ranks;
  }
  EXPECT_EQ(num_ranks, 157);
}

TEST(Primus, ExactCounts) {
  const MemoryInputs lite = test::plan_inputs("deepseek_v2_lite", 8, ep(8) + batch(1, 64));
  EXPECT_EQ(primus_memory(lite, 0, 64).num_parameters, 3102823936.0);
  const MemoryInputs large = test::plan_inputs("moe_1T", 768, pipeline_words(24, 1, 8, 2));
  EXPECT_EQ(primus_memory(large, 0, 1536).num_parameters, 6907166720.0);
  EXPECT_NEAR(primus_total_parameters(large) / 1e9, 1035.5364, 5e-5);
}

}  // namespace
}  // namespace primus::projection
