// What would help: over every shipped experiment, what is printed resolves and gives what it promises.
#include "projection/advice.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "base/error.hpp"
#include "base/text.hpp"
#include "config/resolve.hpp"
#include "projection/plan_of.hpp"
#include "projection/unmodelled.hpp"
#include "projection/verdict.hpp"

namespace primus::projection {
namespace {

using Words = std::vector<std::string>;

std::vector<std::filesystem::path> shipped_experiments() {
  std::vector<std::filesystem::path> files;
  for (const auto& entry :
       std::filesystem::recursive_directory_iterator(std::filesystem::path(PRIMUS_SOURCE_DIR) / "examples")) {
    if (entry.path().extension() == ".yaml") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

/// What a shell makes of a printed remedy, without the world's size.
Words words_of(const Remedy& remedy) {
  Words words = split(remedy.text(), ' ');
  if (words.front() == "--world-size") words.erase(words.begin(), words.begin() + 2);
  for (std::string& word : words) std::erase(word, '\'');
  return words;
}

config::Resolution resolve(const std::filesystem::path& file, Words words, std::int64_t world = 0) {
  config::ResolveRequest request{.file = file, .overrides = std::move(words)};
  if (world > 0) request.world = config::WorldSize{world, "the test"};
  return config::resolve(request);
}

MemoryInputs inputs_of(const config::Resolution& resolution) {
  return memory_inputs(resolution.experiment, resolution.world.size, 1.0);
}

TEST(Advice, EveryRemedyOfEveryShippedExperimentHoldsWhatItPromises) {
  int num_remedies = 0;
  int num_experiments = 0;
  for (const std::filesystem::path& file : shipped_experiments()) {
    std::optional<config::Resolution> resolution;
    std::optional<MemoryInputs> inputs;
    try {
      resolution = resolve(file, {});
      inputs = inputs_of(*resolution);
      if (memory_gap(inputs->spec)) continue;
    } catch (const UserError&) {
      continue;  // what a variable must name first, or no experiment
    }
    ++num_experiments;
    const Advice advice = advise(resolution->experiment, *inputs, project_memory(*inputs));
    for (const Remedy& remedy : advice.remedies) {
      ++num_remedies;
      const std::int64_t world = remedy.world_size > 0 ? remedy.world_size : resolution->world.size;
      try {
        const config::Resolution changed = resolve(file, words_of(remedy), world);
        EXPECT_EQ(project_memory(inputs_of(changed)).worst().total(), remedy.total)
            << file.filename() << ": " << remedy.text();
      } catch (const UserError& error) {
        ADD_FAILURE() << file.filename() << ": " << remedy.text() << "\n" << error.what();
      }
    }
    for (const NoRemedy& other : advice.others) {
      EXPECT_FALSE(other.why.empty()) << file.filename() << ": " << other.words;
    }
    // Every move of ranks is told: as a remedy, or with what is in its way.
    const auto is_told = [&](const std::string& key) {
      return std::any_of(advice.remedies.begin(), advice.remedies.end(),
                         [&](const Remedy& remedy) { return remedy.text().find(key) != std::string::npos; }) ||
             std::any_of(advice.others.begin(), advice.others.end(),
                         [&](const NoRemedy& other) { return other.words.find(key) != std::string::npos; });
    };
    EXPECT_TRUE(is_told("--context_parallel_size ")) << file;
    EXPECT_TRUE(is_told("--tensor_model_parallel_size ")) << file;
    EXPECT_TRUE(is_told("--pipeline_model_parallel_size ")) << file;
    EXPECT_TRUE(!inputs->spec.moe || is_told("--expert_model_parallel_size ")) << file;
  }
  EXPECT_GT(num_experiments, 20);
  EXPECT_GT(num_remedies, 6 * num_experiments);
}

TEST(Advice, CompanionsAndLargerWorldsAreWritten) {
  const std::filesystem::path file =
      std::filesystem::path(PRIMUS_SOURCE_DIR) / "examples/megatron/configs/MI355X/deepseek_v3-BF16-pretrain.yaml";
  const config::Resolution resolution = resolve(file, {});
  const MemoryInputs inputs = inputs_of(resolution);
  const Advice advice = advise(resolution.experiment, inputs, project_memory(inputs));
  std::string texts;
  for (const Remedy& remedy : advice.remedies) texts += remedy.text() + "\n";
  for (const NoRemedy& other : advice.others) texts += other.words + ": " + other.why + "\n";
  EXPECT_NE(texts.find("--expert_model_parallel_size 16 --turbo_deepep_num_cu 32"), std::string::npos) << texts;
  EXPECT_NE(texts.find("--world-size 256 --pipeline_model_parallel_size 32 "), std::string::npos) << texts;
}

TEST(Verdict, WhatIsLeftMustBeMoreThanTheEstimatesMayBeWrongBy) {
  RankMemory rank;
  rank.framework = {.context = 400, .communicators = 0, .num_communicators = 0};
  rank.working = {.dispatch = 100, .communication = 200, .compute = 300};
  EXPECT_EQ(rank.total(), 1000);
  EXPECT_EQ(uncertainty(rank), 250);
  EXPECT_EQ(fit_of(rank, 999), Fit::kNot);
  EXPECT_EQ(fit_of(rank, 1000), Fit::kBarely);
  EXPECT_EQ(fit_of(rank, 1249), Fit::kBarely);
  EXPECT_EQ(fit_of(rank, 1250), Fit::kFits);
}

TEST(Unmodelled, SettingsWhoseBytesAreNotFollowedAreNamed) {
  const auto keys = [](const Words& words) {
    std::string text;
    for (const Unmodelled& one : unmodelled(test::plan_experiment("qwen3_30B_A3B", 8, words))) text += one.key + " ";
    return text;
  };
  const Words base = {"--expert_model_parallel_size", "8", "--global_batch_size", "64"};
  EXPECT_EQ(keys(base), "");
  Words narrow = base;
  narrow.insert(narrow.end(), {"--fp8", "hybrid"});
  EXPECT_EQ(keys(narrow), "fp8 ");
  Words moved = base;
  moved.insert(moved.end(), {"--cpu_offloading_num_layers", "2"});
  EXPECT_EQ(keys(moved), "cpu_offloading_num_layers ");
}

// Parameters divided over the data ranks are whole for a layer's pass, and the next layer's beside them.
TEST(WorkingSetBytes, DividedParametersAreGatheredForALayer) {
  MemoryInputs inputs =
      test::plan_inputs("deepseek_v2_lite", 8, {"--expert_model_parallel_size", "8", "--global_batch_size", "64"});
  const std::vector<ChunkMemory> chunks = chunks_of(inputs, 0);
  const std::int64_t before = working_set(inputs, chunks).communication;
  inputs.sharding.parameters = {.dense = 8, .expert = 1};
  // The MoE layer: 8 of 64 experts, 3 x 2048 x 1408 each; two shared ones; a router; latent attention; two norms.
  const std::int64_t experts = 8LL * 3 * 2048 * 1408;
  const std::int64_t shared = 3LL * 2048 * 2816;
  const std::int64_t router = 64LL * 2048;
  const std::int64_t attention = 2048LL * 16 * 192 + 2048 * 576 + 512 + 512LL * 16 * 256 + 16LL * 128 * 2048;
  const std::int64_t layer = experts + shared + router + attention + 2 * 2048;
  EXPECT_EQ(working_set(inputs, chunks).communication - before, 2 * layer * 2);
  inputs.sharding.gradients = inputs.sharding.parameters;
  EXPECT_EQ(working_set(inputs, chunks).communication - before, 2 * layer * 2 + layer * 4);
}

}  // namespace
}  // namespace primus::projection
