// Disks that are full, read-only, over quota, failing, slow: training goes on, and what was saved stays whole.
#include <filesystem>

#include "checkpoint/checkpoint_root.hpp"
#include "faults/worker_run.hpp"

namespace primus::faults {
namespace {

std::string fault(const WorkerRun& run, const std::string& rest) {
  return "path=" + run.checkpoints().string() + ";" + rest;
}

std::vector<std::string> half_written(const WorkerRun& run) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(run.checkpoints())) {
    if (entry.path().filename().string().find(".tmp") != std::string::npos) names.push_back(entry.path().filename());
  }
  return names;
}

/// The number of the first such operation of the second of six saves; what does not divide by six comes before them.
long first_of_second_save(const std::string& op) {
  constexpr long kNumSaves = 6;
  const long all = WorkerRun().num_operations(op);
  return all % kNumSaves + all / kNumSaves + 1;
}

// The disk fills up in the middle of the second save and has room again in the middle of the run.
TEST(Disk, FullForAWhile) {
  const WorkerRun whole;
  ASSERT_EQ(whole.run().exit_code, 0);
  const long first = first_of_second_save("write") + 1;
  for (const char* writing : {"False", "True"}) {
    const WorkerRun run({"--async_save", writing});
    const Ended ended =
        run.run(fault(run, "op=write;do=ENOSPC;at=" + std::to_string(first) + ";until=" + std::to_string(first + 1)));
    EXPECT_EQ(ended.exit_code, 0) << ended.err;
    EXPECT_NE(ended.err.find("ERROR: the checkpoint of iteration 4 is not saved: "), std::string::npos) << ended.err;
    EXPECT_NE(ended.err.find("No space left on device"), std::string::npos) << ended.err;
    EXPECT_NE(ended.err.find("training goes on; the last whole checkpoint is that of iteration 2"), std::string::npos)
        << ended.err;
    EXPECT_EQ(run.curve(), whole.curve());
    EXPECT_EQ(run.state(2), whole.state(2));
    EXPECT_EQ(run.state(12), whole.state(12));
    EXPECT_FALSE(std::filesystem::exists(run.checkpoints() / "iter_0000004"));
    EXPECT_TRUE(half_written(run).empty());
  }
}

TEST(Disk, EveryErrorAtEveryKindOfOperation) {
  struct Case {
    const char* op;
    const char* error;
    const char* text;
  };
  for (const Case& each :
       {Case{"write", "EIO", "Input/output error"}, Case{"fsync", "EIO", "Input/output error"},
        Case{"mkdir", "EROFS", "Read-only file system"}, Case{"open", "EACCES", "Permission denied"},
        Case{"write", "EDQUOT", "Disk quota exceeded"}, Case{"rename", "EROFS", "Read-only file system"},
        Case{"symlink", "EROFS", "Read-only file system"}}) {
    const WorkerRun run;
    // The first checkpoint is whole before the disk fails for good.
    const long at = first_of_second_save(each.op);
    const Ended ended = run.run(fault(
        run, std::string("op=") + each.op + ";do=" + each.error + ";at=" + std::to_string(at) + ";until=1000000"));
    // Trained to the end, but the last checkpoint is not there: that is a failure.
    EXPECT_EQ(ended.exit_code, 1) << each.op << " " << ended.err;
    EXPECT_NE(ended.out.find("all iterations done"), std::string::npos) << each.op << ended.out;
    EXPECT_NE(ended.err.find(each.text), std::string::npos) << each.op << ended.err;
    EXPECT_FALSE(run.state(2).empty());
    EXPECT_EQ(checkpoint::CheckpointRoot(run.checkpoints()).latest(), 2) << each.op << " " << each.error;
    // With a whole disk the run is done from there.
    const Ended again = run.run();
    EXPECT_EQ(again.exit_code, 0) << again.err;
    EXPECT_NE(again.out.find("continuing this run after iteration 2 "), std::string::npos) << again.out;
  }
}

TEST(Disk, ShortWritesInterruptionsAndSlownessChangeNothing) {
  const WorkerRun whole;
  ASSERT_EQ(whole.run().exit_code, 0);
  for (const char* rest :
       {"op=write;do=short", "op=write;do=EINTR", "op=fsync;do=EINTR", "op=fsync;do=slow;at=1;until=20"}) {
    const WorkerRun run;
    const Ended ended = run.run(fault(run, rest));
    EXPECT_EQ(ended.exit_code, 0) << rest << "\n" << ended.err;
    EXPECT_EQ(ended.err, "") << rest;
    EXPECT_EQ(run.curve(), whole.curve()) << rest;
    for (const std::int64_t iteration : {2, 4, 6, 8, 10, 12}) EXPECT_EQ(run.state(iteration), whole.state(iteration));
  }
}

// Records wait while the disk is full, and that is told once; training and checkpoints are as ever.
TEST(Disk, FullForTheRecords) {
  const WorkerRun whole;
  ASSERT_EQ(whole.run().exit_code, 0);
  const WorkerRun run;
  const Ended ended = run.run("path=metrics.jsonl;op=write;do=ENOSPC;at=4;until=6");
  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  const std::size_t told = ended.err.find("records wait for room");
  ASSERT_NE(told, std::string::npos) << ended.err;
  EXPECT_NE(ended.err.find("No space left on device"), std::string::npos) << ended.err;
  EXPECT_EQ(ended.err.find("records wait for room", told + 1), std::string::npos) << ended.err;
  // So short a time is bridged by what the process holds back.
  EXPECT_EQ(run.curve(), whole.curve());
  EXPECT_EQ(run.state(12), whole.state(12));
}

// A disk that takes a second for a save does not hold up a run that saves beside training.
TEST(Disk, SlowBesideTraining) {
  const WorkerRun run({"--async_save", "True", "--save_interval", "8"});
  const Ended ended = run.run(fault(run, "op=fsync;do=slow;at=1;until=6"));
  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  const std::size_t saved = ended.out.find("saved the checkpoint of iteration 8");
  const std::size_t next = ended.out.find("iteration        9/");
  ASSERT_NE(saved, std::string::npos) << ended.out;
  ASSERT_NE(next, std::string::npos) << ended.out;
  EXPECT_LT(next, saved);
}

}  // namespace
}  // namespace primus::faults
