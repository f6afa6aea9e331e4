// Saving that fails, and schedules as text.
#include "train/saver.hpp"

#include "base/files.hpp"
#include "train/schedule_settings.hpp"
#include "train/tiny_run.hpp"

namespace primus::train {
namespace {

namespace fs = std::filesystem;

class SaverTest : public TinyRun {};

// The folder goes away under the run and a file takes its place: every save fails, training ends as if nothing were.
TEST_F(SaverTest, AFailedSaveIsToldAndTrainingGoesOn) {
  for (const char* writing : {"False", "True"}) {
    const config::Experiment what = experiment({"--save_interval", "10", "--async_save", writing, "--eval_iters", "0"});
    fs::remove_all(run_folder());
    Trainer trainer(what);
    Reporter reporter(what.run_folder(), RunOptions::PerLayerLog::kNo);
    fs::remove_all(run_folder() / "checkpoints");
    write_file(run_folder() / "checkpoints", "no folder");
    const RunSummary summary = trainer.run(reporter);
    EXPECT_EQ(summary.num_iterations, 30);
    ASSERT_TRUE(summary.failed_save.has_value());
    const std::string log = read_file(run_folder() / "log.txt");
    for (const char* iteration : {"10", "20", "30"})
      EXPECT_NE(log.find(fmt::format("ERROR: the checkpoint of iteration {} is not saved", iteration)),
                std::string::npos);
    EXPECT_NE(log.find("Not a directory"), std::string::npos) << log;
    EXPECT_NE(log.find("training goes on; there is no checkpoint yet"), std::string::npos) << log;
  }
}

TEST_F(SaverTest, OneWriterAFolderOfCheckpoints) {
  const std::string shared = (folder_ / "shared").string();
  const Trainer first(experiment({"--save", shared}, "one"));
  EXPECT_THROW(Trainer(experiment({"--save", shared}, "two")), UserError);
}

TEST_F(SaverTest, HalfWrittenFoldersGoWhenTheNextRunStarts) {
  const fs::path half = run_folder() / "checkpoints" / "iter_0000003.tmp4711";
  fs::create_directories(half);
  const Trainer trainer(experiment({}));
  EXPECT_FALSE(fs::exists(half));
}

TEST(ScheduleSettings, ReadBackToTheSameBits) {
  const Schedules schedules{
      .learning_rate = {.max_rate = 1.0 / 3.0,
                        .min_rate = 1e-300,
                        .warmup_init = 0.1,
                        .style = DecayStyle::kWsd,
                        .wsd_style = WsdStyle::kMinusSqrt,
                        .warmup_samples = 7,
                        .decay_samples = 1'000'000'000'000,
                        .wsd_decay_samples = 3},
      .end_learning_rate = LearningRateSchedule{.max_rate = 2.0 / 3.0, .style = DecayStyle::kInverseSquareRoot},
      .weight_decay = {.style = WeightDecaySchedule::Style::kCosine, .start = 0.1, .end = 0.3, .num_samples = 9}};
  const ScheduleSettings settings = to_settings(schedules);
  const Schedules read = schedules_from(settings);
  EXPECT_EQ(to_settings(read), settings);
  EXPECT_EQ(read.learning_rate.max_rate, schedules.learning_rate.max_rate);
  EXPECT_EQ(read.learning_rate.min_rate, schedules.learning_rate.min_rate);
  EXPECT_EQ(read.end_learning_rate->style, DecayStyle::kInverseSquareRoot);
  EXPECT_FALSE(schedules_from(to_settings({})).end_learning_rate.has_value());
  for (const auto& [key, value] : settings) {
    if (key.starts_with("decoupled_")) continue;
    ScheduleSettings broken = settings;
    broken.erase(key);
    EXPECT_THROW(schedules_from(broken), UserError) << key;
    broken[key] = "x" + value;
    EXPECT_THROW(schedules_from(broken), UserError) << key;
  }
}

}  // namespace
}  // namespace primus::train
