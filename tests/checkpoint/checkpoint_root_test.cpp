// Folders of checkpoints: which one a run goes on from, which ones go.
#include "checkpoint/checkpoint_root.hpp"

#include <unistd.h>

#include "checkpoint/new_folder.hpp"
#include "data/temporary_folder.hpp"

namespace primus::checkpoint {
namespace {

namespace fs = std::filesystem;
using Steps = std::vector<std::int64_t>;

class Root : public testing::Test {
 protected:
  void make(const Steps& steps) const {
    for (const std::int64_t step : steps) fs::create_directories(root_.folder(step));
  }

  data::TemporaryFolder folder_;
  CheckpointRoot root_{folder_.path()};
};

TEST_F(Root, OnlyFoldersOfStepsCount) {
  make({20, 5, 12345678});
  for (const char* name : {"iter_0000010.tmp77", "iter_00000a", "iter_7", "iter_-000001", "other", "iter_"})
    fs::create_directories(fs::path(folder_.path()) / name);
  write_file(fs::path(folder_.path()) / "iter_0000030", "a file");
  EXPECT_EQ(root_.iterations(), (Steps{5, 20, 12345678}));
  EXPECT_EQ(iteration_folder(7), "iter_0000007");
}

TEST_F(Root, TheLatestAndThoseBeforeItAreCandidates) {
  EXPECT_FALSE(is_checkpoint_root(folder_.path()));
  make({10, 20, 30});
  EXPECT_TRUE(is_checkpoint_root(folder_.path()));
  EXPECT_EQ(root_.candidates(), (Steps{30, 20, 10}));  // nobody says which
  root_.set_latest(20);
  EXPECT_EQ(root_.latest(), 20);
  EXPECT_EQ(root_.candidates(), (Steps{20, 10}));
  root_.set_latest(30);
  EXPECT_EQ(root_.candidates(), (Steps{30, 20, 10}));
  EXPECT_TRUE(fs::is_directory(fs::path(folder_.path()) / "latest"));
  // A folder that was taken away is not passed over in silence.
  fs::remove_all(root_.folder(30));
  EXPECT_EQ(root_.candidates(), (Steps{30, 20, 10}));
}

TEST_F(Root, ForeignLinksNameNothing) {
  make({10});
  fs::create_symlink("elsewhere", fs::path(folder_.path()) / "latest");
  EXPECT_FALSE(root_.latest().has_value());
  EXPECT_EQ(root_.candidates(), (Steps{10}));
}

TEST(Retention, KeepsTheLastAndEveryMth) {
  const Steps steps = {5, 10, 15, 20, 25};
  EXPECT_EQ(to_remove(steps, {}), Steps{});
  EXPECT_EQ(to_remove(steps, {.keep_last = 2, .keep_every = std::nullopt}), (Steps{5, 10, 15}));
  EXPECT_EQ(to_remove(steps, {.keep_last = 1, .keep_every = 10}), (Steps{5, 15}));
  EXPECT_EQ(to_remove(steps, {.keep_last = std::nullopt, .keep_every = 10}), Steps{});
  EXPECT_EQ(to_remove(steps, {.keep_last = 9, .keep_every = std::nullopt}), Steps{});
  // The last never goes, whatever is asked for.
  EXPECT_EQ(to_remove({5}, {.keep_last = 0, .keep_every = 10}), Steps{});
}

TEST_F(Root, RetentionLeavesStepsAfterTheNewestAlone) {
  make({10, 20, 30, 40});
  root_.retain({.keep_last = 1, .keep_every = std::nullopt}, 30);
  EXPECT_EQ(root_.iterations(), (Steps{30, 40}));
}

TEST_F(Root, LeftOversGoAndNothingElse) {
  make({10});
  for (const char* name : {"iter_0000020.tmp123", "iter_0000030.tmp4", "notes.tmp5", "iter_0000040.tmpx", "iter_x.tmp"})
    fs::create_directories(fs::path(folder_.path()) / name / "inside");
  fs::create_symlink("iter_0000010", fs::path(folder_.path()) / "latest.tmp9");
  std::vector<std::string> removed = root_.remove_left_overs();
  std::ranges::sort(removed);
  EXPECT_EQ(removed, (std::vector<std::string>{"iter_0000020.tmp123", "iter_0000030.tmp4", "latest.tmp9"}));
  EXPECT_EQ(folder_.names(),
            (std::vector<std::string>{"iter_0000010", "iter_0000040.tmpx", "iter_0000040.tmpx/inside", "iter_x.tmp",
                                      "iter_x.tmp/inside", "notes.tmp5", "notes.tmp5/inside"}));
}

TEST_F(Root, AFolderIsReplacedWhole) {
  make({10});
  write_file(root_.folder(10) / "old", "1");
  {
    NewFolder folder(root_.folder(10));
    write_file(folder.path() / "new", "2");
    EXPECT_TRUE(fs::exists(root_.folder(10) / "old"));
    folder.replace();
  }
  EXPECT_EQ(folder_.names(), (std::vector<std::string>{"iter_0000010", "iter_0000010/new"}));
  {
    const NewFolder given_up(root_.folder(20));
    write_file(given_up.path() / "half", "3");
  }
  EXPECT_EQ(root_.iterations(), (Steps{10}));
  remove_folder(root_.folder(10));
  EXPECT_TRUE(folder_.names().empty());
}

}  // namespace
}  // namespace primus::checkpoint
