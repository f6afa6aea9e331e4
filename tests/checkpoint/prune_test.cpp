// Pruning by hand: what stays is the retention's, what `latest` names, and always a checkpoint that is whole.
#include "checkpoint/prune.hpp"

#include <gmock/gmock.h>

#include "checkpoint/checkpoint_writer.hpp"
#include "data/temporary_folder.hpp"

namespace primus::checkpoint {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class Prune : public testing::Test {
 protected:
  Prune() {
    for (const std::int64_t step : {10, 20, 30, 40, 50}) {
      CheckpointContent content{.iteration = step, .consumed_samples = step, .experiment_json = "{}\n"};
      content.tensors = {{"w", kWeight, find_element_type("F32"), {4}, [](const Sink& sink) {
                            sink(std::vector<std::byte>(16, std::byte{7}));
                          }}};
      write_training_checkpoint(root_.folder(step), content);
      root_.set_latest(step);
    }
  }

  void damage(std::int64_t step) const {
    const fs::path file = root_.folder(step) / "weights.safetensors";
    std::string bytes = read_file(file);
    bytes.back() = static_cast<char>(bytes.back() ^ 1);
    write_file(file, bytes);
  }

  data::TemporaryFolder folder_;
  CheckpointRoot root_{folder_.path()};
};

TEST_F(Prune, TakesOutWhatTheRetentionDoesNotKeep) {
  const PrunePlan plan = plan_prune(root_, {.keep_last = 2, .keep_every = 20});
  EXPECT_THAT(plan.removed, ElementsAre(10, 30));
  EXPECT_THAT(plan.kept, ElementsAre(20, 40, 50));
  EXPECT_EQ(plan.newest_whole, 50);
  EXPECT_THAT(plan.damaged, IsEmpty());
  EXPECT_GT(plan.removed_bytes, 2 * 16);
  EXPECT_THAT(root_.iterations(), ElementsAre(10, 20, 30, 40, 50));  // a plan removes nothing
  prune(root_, plan);
  EXPECT_THAT(root_.iterations(), ElementsAre(20, 40, 50));
  EXPECT_EQ(root_.latest(), 50);
}

TEST_F(Prune, TheNewestWholeOneStaysWhateverTheRetentionSays) {
  damage(50);
  damage(40);
  const PrunePlan plan = plan_prune(root_, {.keep_last = 1, .keep_every = std::nullopt});
  EXPECT_EQ(plan.newest_whole, 30);
  EXPECT_THAT(plan.removed, ElementsAre(10, 20, 40));
  EXPECT_THAT(plan.kept, ElementsAre(30, 50));
  EXPECT_THAT(plan.damaged, ElementsAre(HasSubstr("iter_0000050"), HasSubstr("iter_0000040")));
}

TEST_F(Prune, NothingGoesWhereNoneIsWhole) {
  for (const std::int64_t step : {10, 20, 30, 40, 50}) damage(step);
  const std::string message =
      data::user_error([&] { plan_prune(root_, {.keep_last = 1, .keep_every = std::nullopt}); });
  EXPECT_THAT(message, HasSubstr("no checkpoint is whole, so none is removed"));
  EXPECT_THAT(message, HasSubstr("iter_0000010"));
}

TEST_F(Prune, WhatLatestNamesStays) {
  root_.set_latest(20);  // somebody went back
  EXPECT_THAT(plan_prune(root_, {.keep_last = 1, .keep_every = std::nullopt}).kept, ElementsAre(20, 50));
}

TEST_F(Prune, HalfWrittenFoldersGo) {
  fs::create_directories(fs::path(folder_.path()) / "iter_0000060.tmp4242");
  fs::create_directories(fs::path(folder_.path()) / "iter_0000060.tmpx");
  const PrunePlan plan = plan_prune(root_, {.keep_last = 9, .keep_every = std::nullopt});
  EXPECT_THAT(plan.removed, IsEmpty());
  EXPECT_THAT(plan.left_overs, ElementsAre("iter_0000060.tmp4242"));
  prune(root_, plan);
  EXPECT_FALSE(fs::exists(fs::path(folder_.path()) / "iter_0000060.tmp4242"));
  EXPECT_TRUE(fs::exists(fs::path(folder_.path()) / "iter_0000060.tmpx"));
}

}  // namespace
}  // namespace primus::checkpoint
