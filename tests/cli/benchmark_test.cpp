// benchmark ops and benchmark step: what they start, and what they make of a worker's records. The workers are scripts.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "cli/program.hpp"

namespace primus::cli {
namespace {

using Json = nlohmann::json;
using Words = std::vector<std::string>;

const std::string kQuickstart = std::string(PRIMUS_SOURCE_DIR) + "/examples/quickstart/deepseek_v2_tiny.yaml";

class Benchmark : public testing::Test {
 protected:
  ProgramResult run(const Words& words, const std::string& script) {
    const std::string worker = folder_.write("worker.sh", "#!/bin/sh\n" + script);
    chmod(worker.c_str(), 0755);
    std::filesystem::create_directories(temporary());
    return run_program(words, folder_.path().string(), {{"PRIMUS_WORKER", worker}, {"TMPDIR", temporary().string()}});
  }

  std::filesystem::path temporary() const { return folder_.path() / "tmp"; }

  test::TestFolder folder_;
};

/// A worker that leaves records of six steps; the first two are slow.
constexpr const char* kSixSteps = R"(
folder=$(dirname "$2")
i=0
for ms in 900 800 100 110 90 300; do
  i=$((i + 1))
  echo "{\"iteration\": $i, \"elapsed_ms\": $ms, \"tokens_per_s_per_device\": $((1000000 / ms)), \"tflops_per_device\": 1.5, \"lm_loss\": 2.0, \"memory_peak_bytes\": $((i * 1048576)), \"memory_reserved_bytes\": 9437184}"
done > "$folder/metrics.jsonl"
echo '{"iteration": 6, "eval_loss": 1.0, "elapsed_ms": 5.0}' >> "$folder/metrics.jsonl"
echo a line of the training
)";

TEST_F(Benchmark, AStepsFiguresAreThoseAfterTheWarmUp) {
  const ProgramResult result = run(
      {"benchmark", "step", "--config", kQuickstart, "--steps", "6", "--warm-up", "2", "--format", "json"}, kSixSteps);
  ASSERT_EQ(result.code, 0) << result.err;
  const Json json = Json::parse(result.out);
  EXPECT_EQ(json["steps"], 4);
  EXPECT_EQ(json["median_ms"], 105.0);
  EXPECT_EQ(json["mad_ms"], 10.0);  // of 5, 5, 15, 195
  EXPECT_EQ(json["least_ms"], 90.0);
  EXPECT_EQ(json["most_ms"], 300.0);
  EXPECT_EQ(json["memory_peak_bytes"], 6.0 * 1048576);
  EXPECT_NE(result.err.find("a line of the training"), std::string::npos);
  EXPECT_TRUE(std::filesystem::is_empty(temporary())) << "nothing is kept";
}

TEST_F(Benchmark, AStepForPeople) {
  const ProgramResult result = run({"benchmark", "step", "--config", kQuickstart, "--steps", "6"}, kSixSteps);
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_NE(result.out.find("2 steps after 4"), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("195.0 ± 105.0"), std::string::npos) << result.out;
  EXPECT_EQ(result.out.find("a line of the training"), std::string::npos);
}

TEST_F(Benchmark, TheRunIsOfTheStepsAloneAndOverridesReachIt) {
  const ProgramResult result = run({"benchmark", "step", "--config", kQuickstart, "--steps", "5", "--lr", "0.5"},
                                   "cat \"$2\"\n" + std::string(kSixSteps));
  ASSERT_EQ(result.code, 0) << result.err;
  const std::size_t begin = result.err.find("{\n \"format\"");
  ASSERT_NE(begin, std::string::npos) << result.err;
  const Json settings = Json::parse(result.err.substr(begin, result.err.rfind('}') + 1 - begin))["settings"];
  EXPECT_EQ(settings["train_iters"]["value"], 5);
  EXPECT_EQ(settings["lr"]["value"], 0.5);
  EXPECT_EQ(settings["mock_data"]["value"], true);
  EXPECT_EQ(settings["log_interval"]["value"], 1);
  EXPECT_TRUE(settings["save"]["value"].is_null());
}

TEST_F(Benchmark, AFailedWorkersCodeIsPassedOn) {
  const ProgramResult step = run({"benchmark", "step", "--config", kQuickstart}, "exit 3\n");
  EXPECT_EQ(step.code, 3);
  EXPECT_TRUE(std::filesystem::is_empty(temporary()));
  EXPECT_EQ(run({"benchmark", "ops"}, "exit 2\n").code, 2);
  EXPECT_EQ(run({"benchmark", "step", "--config", kQuickstart}, "exit 0\n").code, 1) << "a run without records";
}

TEST_F(Benchmark, AWarmUpThatLeavesNothingIsRefused) {
  const ProgramResult result = run({"benchmark", "step", "--config", kQuickstart, "--steps", "4"}, "exit 0\n");
  EXPECT_EQ(result.code, 2);
  EXPECT_NE(result.err.find("--warm-up"), std::string::npos) << result.err;
}

TEST_F(Benchmark, OpsAreMeasuredByTheWorker) {
  const std::string tell = "echo \"$@\"\n";
  EXPECT_EQ(run({"benchmark", "ops"}, tell).out, "--benchmark ops --format text\n");
  EXPECT_EQ(run({"benchmark", "ops", "--filter", "grouped", "--device", "cpu", "--format", "json"}, tell).out,
            "--benchmark ops --filter grouped --format json --device cpu\n");
  EXPECT_EQ(run({"--format", "json", "direct", "--", "benchmark", "ops"}, tell).out, "--benchmark ops --format json\n");
  EXPECT_EQ(run({"benchmark", "ops", "--filtre", "x"}, tell).code, 2);
}

}  // namespace
}  // namespace primus::cli
