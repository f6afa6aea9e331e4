// Which layer lives where: every way of writing it, through the real configuration.
#include "layout/stage_layout.hpp"

#include <gtest/gtest.h>

#include "base/error.hpp"
#include "config/resolve_fixture.hpp"

namespace primus::layout {
namespace {

using config::to_text;

class StageLayoutOf : public config::ResolveFixture, public ::testing::Test {
 protected:
  config::Experiment experiment(std::vector<std::string> words) const {
    words.insert(words.end(), {"--num_experts", "null", "--moe_layer_freq", "1", "--mock_data", "true"});
    return resolve(words).experiment;
  }
  std::string text(std::vector<std::string> words) const {
    return to_text(pipeline_layout(experiment(std::move(words))));
  }
};

TEST_F(StageLayoutOf, EvenStages) {
  EXPECT_EQ(text({"--num_layers", "8", "--pipeline_model_parallel_size", "4"}), "Et*2|t*2|t*2|t*2,L");
  EXPECT_EQ(text({"--num_layers", "8", "--pipeline_model_parallel_size", "2", "--mtp_num_layers", "2"}),
            "Et*4|t*4,m*2,L");
  EXPECT_EQ(text({"--num_layers", "3"}), "Et*3,L");
}

TEST_F(StageLayoutOf, ChunksHoldALayerEachOfTheirRank) {
  const StageLayout layout =
      stage_layout(experiment({"--num_layers", "12", "--pipeline_model_parallel_size", "4",
                               "--num_virtual_stages_per_pipeline_rank", "3", "--global_batch_size", "16"}));
  EXPECT_EQ(layout.num_chunks(), 3);
  EXPECT_EQ(layout.place_of_layer(5), (StagePlace{.rank = 1, .chunk = 1}));
  EXPECT_EQ(layout.stage_at({3, 2}), 11);
  const std::vector<model::StageContent> chunks = layout.on_rank(0);
  ASSERT_EQ(chunks.size(), 3U);
  EXPECT_EQ(chunks[0].embedding, model::Part::kPresent);
  EXPECT_EQ(chunks[2].first_layer, 8);
  EXPECT_EQ(layout.on_rank(3)[2].output, model::Part::kPresent);
}

TEST_F(StageLayoutOf, FirstAndLastCounts) {
  EXPECT_EQ(text({"--num_layers", "9", "--pipeline_model_parallel_size", "4", "--decoder_first_pipeline_num_layers",
                  "1", "--decoder_last_pipeline_num_layers", "2"}),
            "Et|t*3|t*3|t*2,L");
  EXPECT_EQ(text({"--num_layers", "16", "--pipeline_model_parallel_size", "4", "--decoder_first_pipeline_num_layers",
                  "2", "--decoder_last_pipeline_num_layers", "2", "--num_virtual_stages_per_pipeline_rank", "2",
                  "--global_batch_size", "16"}),
            "Et|t*3|t*3|t|t|t*3|t*3|t,L");
}

TEST_F(StageLayoutOf, EmbeddingAndLossCountAsALayer) {
  EXPECT_EQ(text({"--num_layers", "14", "--pipeline_model_parallel_size", "4",
                  "--account_for_embedding_in_pipeline_split", "true", "--account_for_loss_in_pipeline_split", "true"}),
            "Et*3|t*4|t*4|t*3,L");
  EXPECT_EQ(text({"--num_layers", "14", "--pipeline_model_parallel_size", "4",
                  "--account_for_embedding_in_pipeline_split", "true", "--account_for_loss_in_pipeline_split", "true",
                  "--num_virtual_stages_per_pipeline_rank", "2", "--global_batch_size", "16"}),
            "Et|t*2|t*2|t*2|t*2|t*2|t*2|t,L");
}

TEST_F(StageLayoutOf, WrittenLayoutsAndTheOlderList) {
  EXPECT_EQ(text({"--num_layers", "8", "--pipeline_model_parallel_size", "3", "--pipeline_model_parallel_layout",
                  "Et*2||(tt|)*3L", "--global_batch_size", "12"}),
            "Et*2||t*2|t*2|t*2|L");
  EXPECT_EQ(text({"--num_layers", "8", "--pipeline_model_parallel_size", "4", "--decoder_pipeline_manual_split_list",
                  "[2,3,2,1]"}),
            "Et*2|t*3|t*2|t,L");
}

TEST(StageLayout, TheVGoesDownTheRanksAndUpAgain) {
  const StageLayout layout(config::balanced_layout(8, 0, 8), 4, StagePlacement::kV);
  EXPECT_EQ(layout.place(3), (StagePlace{3, 0}));
  EXPECT_EQ(layout.place(4), (StagePlace{3, 1}));
  EXPECT_EQ(layout.place(7), (StagePlace{0, 1}));
  for (int stage = 0; stage < 8; ++stage) EXPECT_EQ(layout.stage_at(layout.place(stage)), stage);
  EXPECT_EQ(layout.embedding_ranks(model::OutputWeight::kTiedToEmbedding), (std::vector{0}));
}

TEST(StageLayout, ReadersOfTheEmbeddingHoldItAgain) {
  const StageLayout layout(config::balanced_layout(8, 1, 4), 4, StagePlacement::kRoundRobin);
  EXPECT_EQ(layout.embedding_ranks(model::OutputWeight::kOwn), (std::vector{0, 3}));
  const StageLayout plain(config::balanced_layout(8, 0, 4), 4, StagePlacement::kRoundRobin);
  EXPECT_EQ(plain.embedding_ranks(model::OutputWeight::kOwn), (std::vector{0}));
  EXPECT_EQ(plain.embedding_ranks(model::OutputWeight::kTiedToEmbedding), (std::vector{0, 3}));
}

TEST(StageLayout, WhatDoesNotDivideIsRefused) {
  EXPECT_THROW(StageLayout(config::balanced_layout(8, 0, 6), 4, StagePlacement::kRoundRobin), UserError);
  EXPECT_THROW(StageLayout(config::balanced_layout(8, 0, 4), 4, StagePlacement::kV), UserError);
  EXPECT_THROW(StageLayout(config::balanced_layout(8, 0, 4), 0, StagePlacement::kRoundRobin), UserError);
}

}  // namespace
}  // namespace primus::layout
