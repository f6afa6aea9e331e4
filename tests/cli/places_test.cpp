// Where messages say a value came from, that all problems are told in one run, and what a run of one process does with
// what a preset says of many.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <nlohmann/json.hpp>

#include "cli/program.hpp"

namespace primus::cli {
namespace {

using Json = nlohmann::json;
using Words = std::vector<std::string>;

const std::string kQuickstart = std::string(PRIMUS_SOURCE_DIR) + "/examples/quickstart/deepseek_v2_tiny.yaml";

class Places : public testing::Test {
 protected:
  Places() {
    bom_ = folder_.write("bom.yaml",
                         "work_group: w\nuser_name: u\nexp_name: e\nworkspace: ./output\nmodules:\n  pre_trainer:\n"
                         "    framework: megatron\n    config: pre_trainer.yaml\n    model: deepseek_v2_lite.yaml\n"
                         "    overrides:\n      mock_data: true\n");
    worker_ = folder_.write("worker.sh", "#!/bin/sh\nexit 0\n");
    chmod(worker_.c_str(), 0755);
  }

  ProgramResult run(const Words& words, std::map<std::string, std::string> environment = {}) const {
    environment.emplace("PRIMUS_WORKER", worker_);
    return run_program(words, folder_.path().string(), environment);
  }

  void expect_told(const ProgramResult& result, const std::vector<std::string>& parts) const {
    EXPECT_EQ(result.code, 2) << result.out << result.err;
    for (const std::string& part : parts)
      EXPECT_NE(result.err.find(part), std::string::npos) << part << "\n" << result.err;
  }

  test::TestFolder folder_;
  std::string bom_;
  std::string worker_;
};

TEST_F(Places, AnInheritedExpertParallelSizeFollowsTheProcessesEverywhere) {
  const std::string note = "expert_model_parallel_size: 8 -> 1, because of 1 process";
  const Words train = {"train", "pretrain", "--config", bom_};
  const auto with = [&](Words words, const Words& more) {
    words.insert(words.end(), train.begin(), train.end());
    words.insert(words.end(), more.begin(), more.end());
    return words;
  };
  const std::string patch = folder_.write("ok.sh", "exit 0\n");
  folder_.write("runner/helpers/hooks/ok.sh", "exit 0\n");
  const std::vector<std::pair<Words, std::map<std::string, std::string>>> cases = {
      {with({}, {}), {}},
      {with({"direct", "--patch", patch, "--"}, {}), {}},
      {with({"direct", "--"}, {}), {{"PRIMUS_RUNNER_DIR", (folder_.path() / "runner").string()}}},
      {with({"--dry-run", "direct", "--single", "--"}, {}), {}},
      {with({"--dry-run", "direct", "--nproc", "1", "--"}, {}), {}},
      {with({"--dry-run"}, {"--world-size", "1"}), {}},
      {with({"--dry-run"}, {}), {{"RUN_MODE", "single"}}}};
  for (const auto& [words, environment] : cases) {
    const ProgramResult result = run(words, environment);
    EXPECT_EQ(result.code, 0) << testing::PrintToString(words) << result.err;
    EXPECT_NE(result.out.find(note), std::string::npos) << result.out;
  }
  EXPECT_EQ(run({"config", "check", bom_}, {{"WORLD_SIZE", "1"}}).code, 0);
  EXPECT_EQ(run({"config", "params", "--config", bom_}, {{"WORLD_SIZE", "1"}}).code, 0);
  // Nobody wrote 2, so nobody is told of it.
  const ProgramResult two = run(with({"direct", "--nproc", "2", "--"}, {}));
  EXPECT_EQ(two.code, 2);
  EXPECT_EQ(two.err,
            "error: command line: --nproc: training in several processes is planned for a later release (expected 1, "
            "found 2)\n");
}

TEST_F(Places, APlanSetsApartWhatATrainRefuses) {
  const ProgramResult plan = run({"--dry-run", "train", "pretrain", "--config", bom_, "--fp8", "hybrid"});
  const std::size_t refused = plan.out.find("planned (a real train refuses these)\n");
  const std::size_t yields = plan.out.find("planned (a real train computes the same numbers without these)\n");
  ASSERT_NE(refused, std::string::npos) << plan.out;
  ASSERT_NE(yields, std::string::npos) << plan.out;
  EXPECT_NE(plan.out.find("  fp8 = hybrid", refused), std::string::npos);
  EXPECT_NE(plan.out.find("  expert_model_parallel_size = 8", yields), std::string::npos);
  EXPECT_NE(plan.out.find("  moe_shared_expert_overlap = true", yields), std::string::npos);
  const Json checked = Json::parse(run({"config", "check", bom_, "--format", "json"}).out);
  EXPECT_EQ(checked["files"][0]["planned"], 0) << checked;
}

TEST_F(Places, ValuesOfALauncherFileAreNamedByIt) {
  const std::string file = folder_.write("launch.yaml",
                                         "main: {debug: maybe}\nslurm: {gpus_per_node: many}\n"
                                         "direct:\n  nnodes: 0\n  master_port: 80\n  numa: maybe\n");
  expect_told(run({"--config", file, "train", "pretrain", "--config", bom_}),
              {"5 problems", "launch.yaml:1: main.debug: wrong type (expected true or false, found text 'maybe')",
               "launch.yaml:2: slurm.gpus_per_node: not a number", "launch.yaml:4: direct.nnodes: out of range",
               "launch.yaml:5: direct.master_port: out of range", "launch.yaml:6: direct.numa: wrong value"});
  const std::string other = folder_.write(
      "other.yaml", "direct:\n  env: [USING_UEP=7]\n  patch: [none.sh]\n  nnodes: 2\n  gpus_per_node: 2\n");
  expect_told(
      run({"--config", other, "train", "pretrain", "--config", bom_}),
      {"other.yaml:2: direct.env USING_UEP: not an allowed value", "other.yaml:3: direct.patch: there is no file",
       "other.yaml:", "direct.gpus_per_node: training in several processes"});
  expect_told(run({"direct", "--env", "USING_UEP=7", "--", "train", "pretrain", "--config", bom_}),
              {"command line: --env USING_UEP: not an allowed value"});
  expect_told(run({"train", "pretrain", "--config", bom_}, {{"USING_UEP", "7"}}), {"environment: USING_UEP: "});
}

TEST_F(Places, AllProblemsAreToldInOneRun) {
  const std::string wrong = folder_.write(
      "wrong.yaml",
      "work_group: w\nuser_name: a/b\nexp_name: ..\nworkspace: ./output\nenv:\n  USING_UEP: 7\n  NNODES: 3\n"
      "  WORLD_SIZE: 4\nmodules:\n  pre_train:\n    framework: megatron\n    config: pre_trainer.yaml\n"
      "    model: deepseek_v2_lite.yaml\n    overrides: {lrr: 1, lr: fast}\n");
  expect_told(
      run({"config", "show", "--config", wrong}),
      {"wrong.yaml:6: env.USING_UEP: not an allowed value", "wrong.yaml:8: env.WORLD_SIZE: contradicts NNODES 3",
       "wrong.yaml:2: user_name: ", "wrong.yaml:3: exp_name: ", "the name of a module holds the word trainer",
       "wrong.yaml:14: modules.pre_train.overrides.lrr: unknown key",
       "wrong.yaml:14: modules.pre_train.overrides.lr: wrong type"});
}

TEST_F(Places, ControlCharactersReachNoTerminal) {
  const Words word = {"--tokenizer_type=HuggingFaceTokenizer", "--mock_data=false",
                      "--tokenizer_model=deepseek-ai/\x1b[31mDeepSeek-V2\x07", "--vocab_size=100"};
  const auto with = [&](Words words) {
    words.insert(words.end(), word.begin(), word.end());
    return words;
  };
  const std::string exp = kQuickstart;
  for (const Words& words :
       {with({"--dry-run", "train", "pretrain", "--config", exp}), with({"config", "show", "--config", exp}),
        with({"config", "show", "--origin", "--config", exp}), with({"config", "diff", exp, bom_}),
        with({"config", "params", "--config", exp}), with({"config", "explain", "tokenizer_model", "--config", exp}),
        Words{"config", "keys", "\x1b[1m"}, Words{"config", "show", "--config", exp, "\x1b[1m"}, Words{"\x1b[1m"},
        Words{"config", "show", "--config", "\x1b.yaml"}}) {
    const ProgramResult result = run(words);
    EXPECT_EQ((result.out + result.err).find('\x1b'), std::string::npos) << testing::PrintToString(words);
  }
}

TEST_F(Places, ConfigShowWritesWhatResolvesToTheSame) {
  const Words words = {"--tokenizer_model", "a\x1b${HOME} $${X} \xc2\x9b", "--exp_name", "run ${HOME}"};
  Words show = {"config", "show", "--config", bom_};
  show.insert(show.end(), words.begin(), words.end());
  const ProgramResult shown = run(show);
  ASSERT_EQ(shown.code, 0) << shown.err;
  const std::string copy = folder_.write("copy.yaml", shown.out);
  const Json again = Json::parse(run({"config", "show", "--config", copy, "--format", "json"}).out);
  ASSERT_TRUE(again["ok"]) << again;
  EXPECT_EQ(again["settings"]["tokenizer_model"], words[1]);
  EXPECT_EQ(again["exp_name"], words[3]);
}

TEST_F(Places, ExplainNamesRulesAndWhatAKeySwitchesOn) {
  const auto expect_explained = [&](const std::string& key, const std::vector<std::string>& parts) {
    const ProgramResult result = run({"config", "explain", key});
    EXPECT_EQ(result.code, 0) << result.err;
    for (const std::string& part : parts)
      EXPECT_NE(result.out.find(part), std::string::npos) << part << "\n" << result.out;
  };
  expect_explained("use_turbo_deepep", {"rule       deepep: ", "rule       sync_free_stage: ",
                                        "switches   with true: moe_shared_expert_overlap true -> false"});
  expect_explained("turbo_sync_free_moe_stage",
                   {"with 2: use_turbo_deepep false -> true", "rule       grouped_gemm: "});
  expect_explained("fp8", {"beside it  are read: ", "fp8_recipe"});
  expect_explained("fp8_recipe", {"state      planned; read only beside fp8"});
  expect_explained("workspace", {"meaning    Folder of all runs", "default    none: it must be written"});
  expect_explained("lora.dim", {"default    32", "values     integer >= 1"});
  expect_explained("torch_compile.enable", {"no effect: there is no Python runtime"});
  const ProgramResult used = run({"config", "explain", "fp8_recipe", "--config", bom_, "--fp8_recipe", "mxfp8"});
  EXPECT_NE(used.out.find("no effect  nothing that reads it is switched on"), std::string::npos) << used.out;
  const ProgramResult entry = run({"config", "explain", "lora.dim", "--config", bom_, "--lora.dim=4"});
  EXPECT_NE(entry.out.find("value      4\n"), std::string::npos) << entry.out << entry.err;
  const ProgramResult name = run({"config", "explain", "workspace", "--config", bom_});
  EXPECT_NE(name.out.find("value      ./output\n"), std::string::npos) << name.out << name.err;
  const Json json = Json::parse(run({"config", "explain", "fp8_recipe", "--format", "json"}).out);
  EXPECT_EQ(json["read_beside"], Json::parse(R"([{"key": "fp8"}])"));
}

TEST_F(Places, SmallThings) {
  EXPECT_EQ(run({"--format", "json", "--version"}).out.front(), '{');
  expect_told(run({"help"}), {"unknown command 'help'; see primus-cli --help"});
  expect_told(run({"train", "pretrain", bom_}), {"unexpected '" + bom_ + "'; write --config " + bom_});
  expect_told(
      run({"data", "prepare", "--input", bom_, "--output-prefix", "x", "--tokenizer-type", "MultimodalTokenizer"}),
      {"--tokenizer-type: this tokenizer is planned for a later release"});
  expect_told(run({"train", "pretrain", "--config", bom_, "--export_config", "."}),
              {"--export_config: '.' is a folder"});
  expect_told(run({"direct", "--log_file", bom_ + "/log", "--", "train", "pretrain", "--config", bom_}),
              {"--log_file: ", "is no folder"});
  expect_told(run({"train", "pretrain", "--config", bom_, "--workspace", ""}), {"--workspace: needs a value"});
  expect_told(run({"--config", ".", "train", "pretrain", "--config", bom_}), {"no file, but a folder"});
  expect_told(run({"direct", "--env", ".", "--", "train", "pretrain", "--config", bom_}),
              {"neither a variable nor a file"});
  EXPECT_EQ(run({"slurm", "--", "config", "keys", "lr"}).err, "note: slurm has no effect: config starts no worker\n");
  const std::string failing = folder_.write("failing.sh", "#!/bin/sh\nexit 7\n");
  chmod(failing.c_str(), 0755);
  const ProgramResult seven = run({"train", "pretrain", "--config", bom_}, {{"PRIMUS_WORKER", failing}});
  EXPECT_EQ(seven.code, 7);
  EXPECT_EQ(seven.err.substr(0, seven.err.find('\n')), "error: worker 0 ended with exit code 7");
}

}  // namespace
}  // namespace primus::cli
