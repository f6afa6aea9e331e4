// What a run leaves for other programs, without a run: progress.txt, rejected results, energy counters, MLflow's file
// store.
#include <gmock/gmock.h>

#include <cstdlib>
#include <fstream>

#include "base/text.hpp"
#include "data/temporary_folder.hpp"
#include "train/energy_meter.hpp"
#include "train/mlflow_run.hpp"
#include "train/progress_log.hpp"
#include "train/rejected_results.hpp"

namespace primus::train {
namespace {

namespace fs = std::filesystem;
using data::TemporaryFolder;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr std::time_t kNoon = 1'700'000'000;

std::vector<std::string> fields_of_line(const ProgressLog& log, std::size_t line) {
  return split(split(read_file(log.path()), '\n').at(line), '\t');
}

TEST(RejectedResults, HaveMegatronsForm) {
  const TemporaryFolder folder;
  const fs::path path = folder / "rejected.log";
  ::setenv("SLURM_JOBID", "4711", 1);
  const RejectedResults log(path);
  log.add({.step = 7,
           .device = "cpu",
           .rejection = Rejection::kSameAgain,
           .result = 2.5,
           .message = "it's a jump\nof the loss"},
          kNoon);
  ::unsetenv("SLURM_JOBID");
  log.add({.step = 8, .rank = 3, .device = "cuda:0", .message = "the loss is not finite"}, kNoon);
  const std::vector<std::string> lines = split(read_file(path.string()), '\n');
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_TRUE(lines[0].starts_with("ts=2023-11-1")) << lines[0];
  EXPECT_THAT(lines[0], testing::ContainsRegex("node=[^ ]+ device=cpu jobID=4711 rank=0 iteration=7 "
                                               "status=first_rerun_reproducible result=2.5 message='it\"s a jump"));
  EXPECT_THAT(lines[1], HasSubstr("device=cuda:0 jobID=N/A rank=3 iteration=8 status=rerun_disabled "));
}

// Twice on one rank, or once what a second rerun confirmed; the machine's faults and other text do not count.
TEST(RejectedResults, PassOverWhatWasRejectedAgain) {
  const TemporaryFolder folder;
  const fs::path path = folder / "rejected.log";
  EXPECT_THAT(rejected_again(path), ElementsAre());
  const auto line = [](int step, int rank, const char* status) {
    return "ts=now node=n device=0 jobID=j rank=" + std::to_string(rank) + " iteration=" + std::to_string(step) +
           " status=" + status + " result=nan message='loss'\n";
  };
  std::ofstream(path) << line(9, 0, "rerun_disabled") << line(4, 0, "RerunValidationStatus.RERUN_DISABLED")
                      << line(4, 0, "rerun_disabled") << line(9, 1, "rerun_disabled")
                      << line(5, 2, "first_rerun_reproducible") << line(5, 2, "first_rerun_reproducible")
                      << line(6, 0, "first_rerun_not_reproducible") << line(6, 0, "first_rerun_not_reproducible")
                      << line(1, 0, "second_rerun_reproducible") << "iteration=12 status=rerun_disabled rank=0\n"
                      << "ts=now rank=x iteration=3 status=second_rerun_reproducible \nts=\n\n"
                      << "ts=now rank=0 iteration=99999999999999999999 status=second_rerun_reproducible message=''\n";
  EXPECT_THAT(rejected_again(path), ElementsAre(1, 4, 5));
}

TEST(RejectedResults, AFileThatCannotBeWrittenIsAnError) {
  const TemporaryFolder folder;
  EXPECT_THROW(RejectedResults(fs::path(folder / "none") / "rejected.log"), UserError);
  EXPECT_THROW(RejectedResults(folder.path()), UserError);
}

TEST(ProgressLog, HasMegatronsFields) {
  const TemporaryFolder folder;
  ::setenv("SLURM_JOB_ID", "4711", 1);
  const ProgressLog log(folder / "checkpoints", 2, {}, kNoon);
  log.saved({.iteration = 100, .num_flops = 6e15, .num_tokens = 2.5e9}, ProgressLog::Writing::kInStep, kNoon + 100);
  ::unsetenv("SLURM_JOB_ID");
  const std::vector<std::string> start = fields_of_line(log, 0);
  EXPECT_THAT(std::vector(start.begin() + 1, start.end()), ElementsAre("Job ID: 4711", "# GPUs: 2", "Starting job"));
  EXPECT_EQ(start[0].size(), std::string("2023-11-14 22:13:20").size());
  const std::vector<std::string> saved = fields_of_line(log, 1);
  EXPECT_THAT(std::vector(saved.begin() + 2, saved.end()),
              ElementsAre("# GPUs: 2", "Saved checkpoint", "Iteration: 100", "Job throughput: 30.0 TFLOP/s/GPU",
                          "Cumulative throughput: 30.0 TFLOP/s/GPU", "Floating-point operations: 6.00e+15",
                          "Tokens (in billions): 2.50"));
}

// The second job's own rate counts what it did itself; the cumulative one what was done since the first job's start.
TEST(ProgressLog, CountsOverTheJobsOfOneSize) {
  const TemporaryFolder folder;
  ProgressLog(folder.path(), 1, {}, kNoon).saved({10, 4e15, 0}, ProgressLog::Writing::kInStep, kNoon + 100);
  const ProgressLog second(folder.path(), 1, {10, 4e15, 0}, kNoon + 200);
  second.saved({20, 8e15, 0}, ProgressLog::Writing::kInStep, kNoon + 300);
  EXPECT_THAT(read_file(second.path()), HasSubstr("Job throughput: 40.0 TFLOP/s/GPU\tCumulative throughput: 26.7 "));
  // Another number of devices begins anew, behind the checkpoint that is there.
  const ProgressLog wider(folder.path(), 4, {20, 8e15, 0}, kNoon + 400);
  wider.saved({30, 12e15, 0}, ProgressLog::Writing::kInStep, kNoon + 450);
  EXPECT_THAT(read_file(wider.path()), HasSubstr("Job throughput: 20.0 TFLOP/s/GPU\tCumulative throughput: 20.0 "));
}

TEST(ProgressLog, TellsOfSavesBesideTraining) {
  const TemporaryFolder folder;
  const ProgressLog log(folder.path(), 1, {}, kNoon);
  log.saved({5, 1e12, 0}, ProgressLog::Writing::kBesideTraining, kNoon + 1);
  log.saved_beside(5, kNoon + 2);
  EXPECT_EQ(fields_of_line(log, 1)[3], "Saving async checkpoint");
  EXPECT_EQ(fields_of_line(log, 2)[3], "Saved async checkpoint");
  EXPECT_EQ(fields_of_line(log, 2)[4], "Iteration: 5");
}

TEST(ProgressLog, RefusesAFolderThatCannotBeWritten) {
  const TemporaryFolder folder;
  write_file(folder / "file", "");
  EXPECT_THAT(data::user_error([&] { ProgressLog(folder / "file", 1, {}, kNoon); }), HasSubstr("file"));
}

// ---- energy ----

void set_counter(const fs::path& zone, const std::string& name, std::uint64_t range, std::uint64_t value) {
  fs::create_directories(zone);
  write_file(zone / "name", name + "\n");
  write_file(zone / "max_energy_range_uj", std::to_string(range) + "\n");
  write_file(zone / "energy_uj", std::to_string(value) + "\n");
}

TEST(Energy, AddsThePackagesUpOverTheEndOfTheirRange) {
  const TemporaryFolder folder;
  const fs::path root(folder.path());
  set_counter(root / "intel-rapl:0", "package-0", 1000000, 900000);
  set_counter(root / "intel-rapl:1", "package-1", 1000000, 0);
  set_counter(root / "intel-rapl:0:0", "core", 1000000, 0);  // a part of the first package
  set_counter(root / "intel-rapl:2", "psys", 1000000, 0);
  const FoundMeter found = processor_meter(root);
  ASSERT_NE(found.meter, nullptr) << found.why_not;
  EXPECT_EQ(found.meter->joules(), 0.0);
  for (const char* zone : {"intel-rapl:0:0", "intel-rapl:2"}) set_counter(root / zone, "other", 1000000, 500000);
  set_counter(root / "intel-rapl:0", "package-0", 1000000, 100000);  // began again at 0
  set_counter(root / "intel-rapl:1", "package-1", 1000000, 300000);
  EXPECT_DOUBLE_EQ(*found.meter->joules(), 0.5);
  set_counter(root / "intel-rapl:1", "package-1", 1000000, 400000);
  EXPECT_DOUBLE_EQ(*found.meter->joules(), 0.6);
  fs::remove(root / "intel-rapl:1/energy_uj");
  EXPECT_FALSE(found.meter->joules().has_value());
}

TEST(Energy, SaysWhyThereIsNone) {
  const TemporaryFolder folder;
  EXPECT_THAT(processor_meter(folder.path()).why_not, HasSubstr("there are no counters"));
  EXPECT_THAT(processor_meter(folder / "nowhere").why_not, HasSubstr("nowhere"));
}

// ---- MLflow ----

TEST(Mlflow, WritesAStore) {
  const TemporaryFolder folder;
  fs::path of_run;
  {
    MlflowRun run({folder / "mlruns", "it's one", "first", "me"}, folder / "id", 0);
    of_run = run.folder();
    run.parameter("lr", "0.001");
    run.parameter("odd:name*", "x");
    run.metric("perf/rate", 2.5, 1);
    run.metric("lm loss", std::nan(""), 1);
    write_file(folder / "log.txt", "text");
    run.artifact(folder / "log.txt", "logs");
    EXPECT_THAT(read_file(of_run / "meta.yaml"), HasSubstr("status: 1\n"));
    run.end(MlflowRun::Status::kFinished);
  }
  EXPECT_THAT(read_file(of_run / "meta.yaml"), HasSubstr("status: 3\n"));
  EXPECT_EQ(read_file(of_run / "params/lr"), "0.001");
  EXPECT_EQ(read_file(of_run / "params/odd_name_"), "x");
  EXPECT_THAT(split(read_file(of_run / "metrics/perf/rate"), ' '), ElementsAre(testing::_, "2.5", "1\n"));
  EXPECT_THAT(read_file(of_run / "metrics/lm loss"), HasSubstr(" nan 1"));
  EXPECT_EQ(read_file(of_run / "artifacts/logs/log.txt"), "text");
  EXPECT_EQ(read_file(of_run / "tags/mlflow.runName"), "first");
  EXPECT_THAT(read_file(of_run.parent_path() / "meta.yaml"), HasSubstr("name: 'it''s one'\n"));
  EXPECT_TRUE(fs::exists(folder / "mlruns/0/meta.yaml"));
}

TEST(Mlflow, RunsOfOneNameShareAnExperimentAndARunGoesOn) {
  const TemporaryFolder folder;
  fs::path first_folder;
  {
    MlflowRun first({folder / "m", "it's one", "a", "me"}, folder / "id", 0);
    first_folder = first.folder();
    for (std::int64_t step = 1; step <= 5; ++step) first.metric("loss", 1.0 / static_cast<double>(step), step);
  }
  EXPECT_THAT(read_file(first_folder / "meta.yaml"), HasSubstr("status: 4\n"));  // nobody ended it
  MlflowRun other({folder / "m", "it's one", "b", "me"}, folder / "other", 0);
  EXPECT_EQ(other.folder().parent_path(), first_folder.parent_path());
  EXPECT_NE(other.folder(), first_folder);
  MlflowRun again({folder / "m", "it's one", "a", "me"}, folder / "id", 3);
  EXPECT_EQ(again.folder(), first_folder);
  EXPECT_EQ(split(read_file(first_folder / "metrics/loss"), '\n').size(), 4U);  // three lines and the end
  EXPECT_THAT(read_file(first_folder / "meta.yaml"), HasSubstr("status: 1\n"));
}

// A killed process may leave a part of a line, whose step then reads as an earlier one.
TEST(Mlflow, HalfALineIsTakenOut) {
  const TemporaryFolder folder;
  const MlflowNames names{folder / "m", "e", "a", "me"};
  fs::path of_run;
  {
    const MlflowRun first(names, folder / "id", 0);
    of_run = first.folder();
    for (const std::int64_t step : {1, 2}) first.metric("loss", 0.5, step);
  }
  const std::string whole = read_file(of_run / "metrics/loss");
  for (const char* part : {"17", "1700000000000 0.5", "1700000000000 0.5 1"}) {
    write_file(of_run / "metrics/loss", whole + part);
    const MlflowRun again(names, folder / "id", 2);
    EXPECT_EQ(read_file(of_run / "metrics/loss"), whole) << part;
  }
  fs::remove_all(of_run / "metrics");
  const MlflowRun again(names, folder / "id", 2);
  again.metric("loss", 0.5, 3);
  EXPECT_THAT(read_file(of_run / "metrics/loss"), testing::EndsWith(" 0.5 3\n"));
}

// Addresses in its files are escaped, as MLflow reads them: a # would end the path.
TEST(Mlflow, AddressesAreEscaped) {
  const TemporaryFolder folder;
  const MlflowRun run({folder / "a b#%41\xC3\xA9", "e", "a", "me"}, folder / "id", 0);
  for (const fs::path& meta : {run.folder() / "meta.yaml", run.folder().parent_path() / "meta.yaml"})
    EXPECT_THAT(read_file(meta), HasSubstr("'file://" + folder.path() + "/a%20b%23%2541%C3%A9/"));
}

TEST(Mlflow, FindsItsStore) {
  EXPECT_EQ(mlflow_store("", "standard"), "standard");
  EXPECT_EQ(mlflow_store("file:///a/b", "standard"), "/a/b");
  EXPECT_EQ(mlflow_store("file:rel", "standard"), "rel");
  EXPECT_EQ(mlflow_store("/a/b", "standard"), "/a/b");
  EXPECT_EQ(mlflow_store("/a%20b", "standard"), "/a%20b");
  EXPECT_EQ(mlflow_store("file:///a%20b%23c%", "standard"), "/a b#c%");
  EXPECT_EQ(mlflow_store("file://localhost/a", "standard"), "/a");
  EXPECT_THAT(data::user_error([] { mlflow_store("https://host", "x"); }), HasSubstr("nothing is sent anywhere"));
}

}  // namespace
}  // namespace primus::train
