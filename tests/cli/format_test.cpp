// Answers for programs: one JSON document on standard output from every command, whatever happens; people's words go to
// the error stream.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <nlohmann/json.hpp>

#include "cli/program.hpp"

namespace primus::cli {
namespace {

using Json = nlohmann::json;
using Words = std::vector<std::string>;

const std::string kQuickstart = std::string(PRIMUS_SOURCE_DIR) + "/examples/quickstart/deepseek_v2_tiny.yaml";

class ForPrograms : public testing::Test {
 protected:
  ProgramResult run(Words words) const {
    words.insert(words.begin(), {"--format", "json"});
    return run_program(words, folder_.path().string(), environment_);
  }

  Json answer(const Words& words, int code) const {
    const ProgramResult result = run(words);
    EXPECT_EQ(result.code, code) << result.out << result.err;
    const Json json = Json::parse(result.out, nullptr, false);
    EXPECT_FALSE(json.is_discarded()) << result.out;
    return json;
  }

  /// The answer of a train whose worker is this script.
  Json train(const std::string& script, int code, const Words& before = {}) {
    const std::string worker = folder_.write("worker.sh", "#!/bin/sh\n" + script);
    chmod(worker.c_str(), 0755);
    environment_["PRIMUS_WORKER"] = worker;
    Words words = before;
    words.insert(words.end(), {"train", "pretrain", "--config", kQuickstart, "--mock_data", "--manual_gc"});
    return answer(words, code);
  }

  test::TestFolder folder_;
  std::map<std::string, std::string> environment_;
};

TEST_F(ForPrograms, ATrainIsOneDocument) {
  const Json json = train("echo step 1\necho to the error stream >&2\n", 0);
  EXPECT_EQ(json["ok"], true);
  EXPECT_EQ(json["exit_code"], 0);
  EXPECT_EQ(json["run_folder"], "output/quickstart/local/deepseek_v2_tiny");
  EXPECT_EQ(json["no_effect"][0]["key"], "manual_gc");
  EXPECT_FALSE(json["notes"].empty());
}

TEST_F(ForPrograms, AFailedWorkerIsOneDocumentToo) {
  const Json json = train("echo half a line\nexit 3\n", 3);
  EXPECT_EQ(json["ok"], false);
  EXPECT_EQ(json["exit_code"], 3);
  EXPECT_EQ(json["problems"][0]["message"], "worker 0 ended with exit code 3; its own words stand on standard error");
  const Json killed = train("kill -9 $$\n", 137);
  EXPECT_EQ(killed["signal"], 9);
  EXPECT_EQ(killed["exit_code"], 137);
}

TEST_F(ForPrograms, ALogFileAndAHookLeaveTheDocumentAlone) {
  folder_.write("runner/helpers/hooks/10.sh", "echo hook speaks\n");
  environment_["PRIMUS_RUNNER_DIR"] = (folder_.path() / "runner").string();
  EXPECT_EQ(train("echo worker speaks\n", 0, {"direct", "--log_file", "log.txt", "--"})["ok"], true);
  const std::string log = read_file(folder_.path() / "log.txt");
  EXPECT_NE(log.find("hook speaks"), std::string::npos) << log;
  EXPECT_NE(log.find("worker speaks"), std::string::npos) << log;
  EXPECT_EQ(train("echo worker\n", 0, {"direct", "--log_file", "log.txt", "--silent", "--"})["ok"], true);
  folder_.write("runner/helpers/hooks/20.sh", "echo env.PRIMUS_SKIP_MAIN_LAUNCH=1\n");
  EXPECT_EQ(train("exit 9\n", 0)["skipped"], "PRIMUS_SKIP_MAIN_LAUNCH");
}

TEST_F(ForPrograms, DataAndPictures) {
  folder_.write("text/a.txt", std::string(2000, 'a') + "end\n");
  const Words prepare = {"data", "prepare", "--input", "text", "--output-prefix", "out/train"};
  Words plan = prepare;
  plan.emplace_back("--dry-run");
  EXPECT_EQ(answer(plan, 0)["would_write"][0], "out/train_text_document.bin");
  const Json json = answer(prepare, 0);
  EXPECT_EQ(json["documents"], 1);
  EXPECT_EQ(json["wrote"].size(), 2U);
  folder_.write("run/metrics.jsonl", "{\"iteration\": 1, \"lm_loss\": 5.5}\n{\"iteration\": 2, \"lm_loss\": 5.0}\n");
  EXPECT_EQ(answer({"view", "loss", "--run", "run", "--dry-run"}, 0)["would_write"], "run/loss.svg");
  EXPECT_EQ(answer({"view", "loss", "--run", "run"}, 0)["last_loss"], 5.0);
  EXPECT_EQ(answer({"view", "loss", "--run", "text"}, 2)["exit_code"], 2);
}

TEST_F(ForPrograms, ACheckCarriesItsExitCode) {
  EXPECT_EQ(answer({"config", "check", kQuickstart}, 0)["exit_code"], 0);
  const Json json = answer({"config", "check", kQuickstart, "/nowhere.yaml"}, 2);
  EXPECT_EQ(json["exit_code"], 2);
  EXPECT_EQ(json["ok"], false);
}

TEST_F(ForPrograms, APlanHoldsTheOverridesAndTheData) {
  const Json json = answer({"--dry-run", "train", "pretrain", "--config", kQuickstart, "--mock_data", "--lr", "3e-3",
                            "--enable_primus_turbo", "--use_turbo_deepep"},
                           0);
  std::map<std::string, Json> overrides;
  for (const Json& entry : json["overrides"]) overrides[entry["key"]] = entry;
  EXPECT_EQ(overrides.at("lr")["value"], 3e-3);
  EXPECT_EQ(overrides.at("lr")["before"]["origin"]["layer"], "experiment");
  EXPECT_NE(overrides.at("use_turbo_deepep")["effects"].dump().find("moe_router_dtype"), std::string::npos);
  EXPECT_EQ(overrides.size(), 4U);
  EXPECT_TRUE(json["data"].empty());
}

TEST_F(ForPrograms, CompletionHasNone) {
  const Json json = answer({"completion", "bash"}, 2);
  EXPECT_EQ(json["problems"][0]["message"], "completion prints lines for a shell: it has no JSON");
}

// Notes of the launcher, of hooks and of the environment go beside the document, never into its stream.
TEST_F(ForPrograms, NotesStayOutOfTheDocument) {
  EXPECT_EQ(answer({"direct", "--nproc", "1", "--silent", "--", "config", "show", "--config", kQuickstart}, 0)["ok"],
            true);
  EXPECT_EQ(answer({"slurm", "-N", "1", "--", "direct", "--", "config", "keys", "train_iters"}, 0).is_discarded(),
            false);
}

}  // namespace
}  // namespace primus::cli
