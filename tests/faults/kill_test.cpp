// SIGKILL at any moment: the run goes on from its last checkpoint, on the curve of the run that nobody killed.
#include <algorithm>
#include <csignal>
#include <random>

#include "faults/worker_run.hpp"
#include "support/soak.hpp"

namespace primus::faults {
namespace {

/// PRIMUS_SOAK=1 (make test SOAK=1): all of them.
int num_kills() {
  return test::rounds(10, 100);
}

struct Undisturbed {
  std::vector<std::string> curve;
  std::vector<std::string> state;
  long num_operations = 0;
};

const std::vector<std::string> kKeepTwo = {"--save_keep_last", "2"};

const Undisturbed& undisturbed() {
  static const Undisturbed kRun = [] {
    const WorkerRun run(kKeepTwo);
    const long num_operations = run.num_operations();
    return Undisturbed{run.curve(), run.state(12), num_operations};
  }();
  return kRun;
}

void finish_and_compare(const WorkerRun& run, const std::string& when) {
  const Ended ended = run.run();
  ASSERT_EQ(ended.exit_code, 0) << when << "\n" << ended.err;
  EXPECT_EQ(ended.out.find("WARNING"), std::string::npos) << when << "\n" << ended.out;
  EXPECT_EQ(run.curve(), undisturbed().curve) << when;
  EXPECT_EQ(run.state(12), undisturbed().state) << when;
}

// Between two runs of the same experiment lie kills at ever other operations on the folder of checkpoints: writes,
// fsyncs, renames, removals, the link. Each start takes up what the killed one left.
TEST(Kill, InsideASaveAtEveryKindOfOperation) {
  const long num_operations = undisturbed().num_operations;
  ASSERT_GT(num_operations, 50);
  std::mt19937 random(20240607);
  const int num_inside = num_kills() / 2;
  for (int i = 0; i < num_inside; ++i) {
    const WorkerRun run(kKeepTwo);
    // Evenly over the run, and by chance within.
    const long at = 1 + (num_operations - 1) * i / num_inside + static_cast<long>(random() % 13);
    const std::string fault = "path=" + run.checkpoints().string() + ";do=kill;at=";
    const Ended first = run.run(fault + std::to_string(std::min(at, num_operations)));
    EXPECT_EQ(first.signal, SIGKILL) << at << "\n" << first.err;
    // Once more, in the run that goes on.
    const Ended second = run.run(fault + std::to_string(1 + static_cast<long>(random() % 20)));
    EXPECT_TRUE(second.signal == SIGKILL || second.exit_code == 0) << second.err;
    finish_and_compare(run, "operation " + std::to_string(at));
  }
}

TEST(Kill, AtRandomMoments) {
  const auto start = std::chrono::steady_clock::now();
  WorkerRun(kKeepTwo).run();
  const auto whole = std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - start);
  std::mt19937 random(4711);
  const WorkerRun run(kKeepTwo);
  int num_killed = 0;
  while (num_killed < num_kills() - num_kills() / 2) {
    const auto moment =
        std::chrono::milliseconds(static_cast<long>(random() % static_cast<unsigned>(whole.count() + 1)));
    num_killed += run.run("", moment).signal == SIGKILL ? 1 : 0;
    // A run that came to its end is started anew.
    if (std::filesystem::exists(run.checkpoints() / "iter_0000012")) std::filesystem::remove_all(run.checkpoints());
  }
  finish_and_compare(run, "random moments");
}

// Beside training the writer is another thread: killed there, too.
TEST(Kill, BesideTraining) {
  std::vector<std::string> words = kKeepTwo;
  words.insert(words.end(), {"--async_save", "True"});
  for (const long at : {7L, 40L}) {
    const WorkerRun run(words);
    EXPECT_EQ(run.run("path=" + run.checkpoints().string() + ";do=kill;at=" + std::to_string(at)).signal, SIGKILL);
    finish_and_compare(run, "beside training, operation " + std::to_string(at));
  }
}

}  // namespace
}  // namespace primus::faults
