// What surrounds an experiment: variables, launcher files, odd files in the place of configurations, data of a plan,
// run scripts. Whatever is wrong is told in one run, with exit code 2.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <array>
#include <chrono>
#include <cstdio>

#include "cli/program.hpp"

namespace primus::cli {
namespace {

using Words = std::vector<std::string>;

const std::string kRoot = PRIMUS_SOURCE_DIR;
const std::string kQuickstart = kRoot + "/examples/quickstart/deepseek_v2_tiny.yaml";

class Surroundings : public testing::Test {
 protected:
  ProgramResult run(const Words& words) const { return run_program(words, folder_.path().string(), environment_); }

  ProgramResult train(Words before, const Words& after = {"--mock_data"}) const {
    before.insert(before.end(), {"train", "pretrain", "--config", kQuickstart});
    before.insert(before.end(), after.begin(), after.end());
    return run(before);
  }

  test::TestFolder folder_;
  std::map<std::string, std::string> environment_;
};

TEST_F(Surroundings, AllFaultsOfWorldEnvironmentAndExperimentInOneRun) {
  environment_ = {{"NNODES", "2"}, {"GPUS_PER_NODE", "8"}, {"USING_UEP", "yes"}};
  const ProgramResult started = train({}, {"--mock_data", "--lrr", "3"});
  EXPECT_EQ(started.code, 2);
  expect_holds(started.err, {"USING_UEP: not an allowed value (expected 0 or 1, found 'yes')",
                             "NNODES x GPUS_PER_NODE: training in several processes is planned", "--lrr: unknown key"});
  environment_["NNODES"] = "none";
  for (const Words& words : {Words{"--dry-run", "train", "pretrain", "--config", kQuickstart, "--lrr", "3"},
                             Words{"config", "show", "--config", kQuickstart, "--lrr", "3"}}) {
    const ProgramResult planned = run(words);
    EXPECT_EQ(planned.code, 2);
    expect_holds(planned.err, {"error: 3 problems", "NNODES: not a number", "USING_UEP", "--lrr: unknown key"});
  }
  const ProgramResult checked = run({"config", "check", kQuickstart, "/nowhere.yaml"});
  EXPECT_EQ(checked.code, 2);
  expect_holds(checked.out, {"NNODES: not a number", "USING_UEP", "file '/nowhere.yaml' does not exist"});
}

struct WrongVariable {
  const char* name;
  const char* value;
  const char* expected;
};

TEST_F(Surroundings, DocumentedVariablesAreChecked) {
  for (const auto& [name, value, expected] :
       {WrongVariable{"USING_UEP", "true", "0 or 1"}, WrongVariable{"USING_AINIC", "2", "0 or 1"},
        WrongVariable{"PRIMUS_DETERMINISTIC", "on", "0 or 1"}, WrongVariable{"ENABLE_NUMA_BINDING", "-", "0 or 1"},
        WrongVariable{"OMP_NUM_THREADS", "0", "integer >= 1, or several with commas"},
        WrongVariable{"OMP_NUM_THREADS", "4,x", "integer >= 1, or several with commas"},
        WrongVariable{"PRIMUS_LOG_LEVEL", "debug", "one of TRACE, DEBUG, INFO, SUCCESS, WARNING, ERROR, CRITICAL"},
        WrongVariable{"PRIMUS_TURBO_MOE_DISPATCH_COMBINE_BACKEND", "UCCL", "TURBO or DEEP_EP"},
        WrongVariable{"CUDA_DEVICE_MAX_CONNECTIONS", "33", "integer from 1 to 32"},
        WrongVariable{"HSA_KERNARG_POOL_SIZE", "12MB", "integer >= 1"},
        WrongVariable{"RUN_MODE", "many", "single or torchrun"}, WrongVariable{"WORLD_SIZE", "none", "integer >= 1"}}) {
    environment_ = {{name, value}};
    const ProgramResult result = train({"--dry-run"});
    EXPECT_EQ(result.code, 2) << name;
    expect_holds(result.err, {std::string(name) + ": ", std::string("expected ") + expected, value});
    // The same in an experiment's own environment and behind --env.
    if (std::string(name) == "WORLD_SIZE") continue;
    environment_.clear();
    EXPECT_EQ(train({"--dry-run", "direct", "--env", std::string(name) + "=" + value, "--"}).code, 2) << name;
    folder_.write("exp.yaml", "env: {" + std::string(name) + ": \"" + value + "\"}\nextends: " + kQuickstart + "\n");
    const ProgramResult own = run({"--dry-run", "train", "pretrain", "--config", "exp.yaml", "--mock_data"});
    EXPECT_EQ(own.code, 2) << name;
    expect_holds(own.err, {"exp.yaml:1: env." + std::string(name) + ": not an allowed value"});
    environment_ = {{"PRIMUS_SKIP_VALIDATION", "1"}};
    EXPECT_EQ(run({"--dry-run", "train", "pretrain", "--config", "exp.yaml", "--mock_data"}).code, 0) << name;
  }
  environment_ = {{"OMP_NUM_THREADS", "4,2"}, {"USING_UEP", ""}, {"PRIMUS_LOG_LEVEL", "DEBUG"},
                  {"RUN_MODE", "single"},     {"NNODES", "2"},   {"GPUS_PER_NODE", "8"}};
  const ProgramResult fine = train({"--dry-run"});
  EXPECT_EQ(fine.code, 0) << fine.err;
  expect_holds(fine.out, {"1 process (RUN_MODE)"});
}

TEST_F(Surroundings, NamesOfVariables) {
  folder_.write("l.yaml",
                "direct:\n  env:\n    - A B=1\n    - FINE=1\n    - 1X\ncontainer:\n  options:\n    env: [x-y=1]\n");
  const ProgramResult result = train({"--config", "l.yaml", "--dry-run"});
  EXPECT_EQ(result.code, 2);
  expect_holds(result.err, {"l.yaml:3: direct.env: not a variable", "found 'A B=1'",
                            "l.yaml:5: direct.env: not a variable", "l.yaml:8: container.options.env: not a variable"});
  const ProgramResult unset = train({"--dry-run", "direct", "--env", "PRIMUS_TEST_NOT_SET", "--"});
  EXPECT_EQ(unset.code, 0) << unset.err;
  expect_holds(unset.out, {"--env PRIMUS_TEST_NOT_SET: the variable is not set here"});
}

TEST_F(Surroundings, PipesAndFoldersInTheFilesPlace) {
  ASSERT_EQ(mkfifo((folder_.path() / "pipe").c_str(), 0600), 0);
  const auto begin = std::chrono::steady_clock::now();
  const ProgramResult pipe = run({"config", "show", "--config", "pipe"});
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
  EXPECT_EQ(pipe.code, 2);
  expect_holds(pipe.err, {"'pipe' is a pipe that nobody writes into (expected a YAML file)"});
  expect_holds(run({"config", "show", "--config", "/dev/null"}).err, {"'/dev/null' is a device, not a file"});
  expect_holds(run({"config", "show", "--config", "."}).err, {"is a folder"});
  environment_["HOME"] = folder_.path().string();
  ASSERT_EQ(mkfifo((folder_.path() / ".primus.yaml").c_str(), 0600), 0);
  const ProgramResult launcher = train({"--dry-run"});
  EXPECT_EQ(launcher.code, 2);
  expect_holds(launcher.err, {".primus.yaml: is a pipe that nobody writes into (expected a launcher file)"});
}

TEST_F(Surroundings, SilenceWithoutALogFileIsTold) {
  const std::string worker = folder_.write("worker.sh", "#!/bin/sh\necho heard\n");
  chmod(worker.c_str(), 0755);
  environment_["PRIMUS_WORKER"] = worker;
  const ProgramResult result = train({"direct", "--silent", "--"});
  EXPECT_EQ(result.code, 0);
  EXPECT_EQ(result.out, "");
  expect_holds(result.err, {"note: --silent without --log_file"});
}

TEST_F(Surroundings, ARefusedTrainNamesTheModelsParts) {
  const auto experiment = [](const char* name) { return kRoot + "/examples/megatron/configs/MI355X/" + name; };
  const ProgramResult v4 = run({"direct", "--nproc", "1", "--", "train", "pretrain", "--config",
                                experiment("deepseek_v4_flash-BF16-pretrain.yaml")});
  EXPECT_EQ(v4.code, 2);
  expect_holds(v4.err, {"this model has DeepSeek-V4's compressed attention", "this model has routing by token id",
                        "this model has sliding windows"});
  const ProgramResult checked = run({"config", "check", "--train", experiment("deepseek_v4_flash-BF16-pretrain.yaml")});
  EXPECT_EQ(checked.code, 2);
  expect_holds(checked.out, {"this model has routing by token id"});
  folder_.write(
      "linear.yaml",
      "work_group: a\nuser_name: b\nexp_name: c\nworkspace: d\nmodules:\n  pre_trainer:\n    framework: "
      "megatron\n    config: pre_trainer.yaml\n    model: qwen3_30B_A3B.yaml\n    overrides: {mock_data: true, "
      "train_iters: 1, experimental_attention_variant: gdn2, linear_attention_freq: 4}\n");
  expect_holds(run({"config", "check", "--train", "linear.yaml"}).out, {"this model has linear attention"});
}

TEST_F(Surroundings, APlanLooksAtItsData) {
  folder_.write("text/a.txt", std::string(2000, 'a') + "end\n");
  ASSERT_EQ(run({"data", "prepare", "--input", "text", "--output-prefix", "out/train"}).code, 0);
  const Words data = {"--train_data_path", "out/train_text_document"};
  const ProgramResult plan = train({"--dry-run"}, data);
  EXPECT_EQ(plan.code, 0) << plan.err;
  expect_holds(plan.out, {"data (the index of each file was read, its tokens were not)",
                          "train_data_path: out/train_text_document: 1 sequences, 2,005 tokens"});
  folder_.write("out/train_text_document.idx", "no index");
  const ProgramResult damaged = train({"--dry-run"}, data);
  EXPECT_EQ(damaged.code, 0) << damaged.err;
  expect_holds(damaged.out, {"out/train_text_document", ".idx"});
  expect_holds(train({"--dry-run"}).out, {"mock_data: token ids are made up, no file is read"});
}

struct ScriptVariable {
  const char* settings;
  const char* told;  // "" if the script goes on
};

/// Exit code and output of a run script whose program is a stand-in that prints its words.
std::pair<int, std::string> script(const std::string& name, const std::string& settings) {
  const std::string command = "env -i PATH=\"$PATH\" PRIMUS_CLI=/bin/echo " + settings + " bash '" + kRoot +
                              "/examples/moe_package/" + name + "' 2>&1";
  FILE* pipe = popen(command.c_str(), "r");
  std::string text;
  std::array<char, 4096> buffer{};
  while (const std::size_t count = std::fread(buffer.data(), 1, buffer.size(), pipe)) text.append(buffer.data(), count);
  const int status = pclose(pipe);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, text};
}

TEST(RunScripts, EveryVariableMeansWhatItSaysOrIsRefused) {
  for (const auto& [settings, told] : {
           ScriptVariable{"FP8=yes", "FP8 is 'yes'; it may be True or False (or 1 or 0)"},
           ScriptVariable{"VPP=x", "VPP is 'x'; it may be a whole number from 1 on"},
           ScriptVariable{"VPP=0", "VPP is '0'; it may be a whole number from 1 on"},
           ScriptVariable{"NNODES=08", "NNODES is '08'"},
           ScriptVariable{"RECOMPUTE_LAYERS=-1", "RECOMPUTE_LAYERS is '-1'; it may be a whole number from 0 on"},
           ScriptVariable{"'MoE_Features=*'", "MoE_Features is '*'; it may be features from 0 to 8"},
           ScriptVariable{"'MoE_Features=3,4'", "MoE_Features is '3,4'"},
           ScriptVariable{"MoE_Features=9", "MoE_Features is '9'"},
           ScriptVariable{"DRY_RUN=maybe", "DRY_RUN is 'maybe'"},
           ScriptVariable{"LAUNCH=k8s", "LAUNCH is 'k8s'; it may be one of: direct slurm container"},
           ScriptVariable{"SYNC_FREE_STAGE=4", "SYNC_FREE_STAGE is '4'; it may be one of: 1 2 3"},
           ScriptVariable{"RECOMP_IDS=1-3", "RECOMP_IDS is '1-3'"},
           ScriptVariable{"CP_COMM_TYPE=ring", "CP_COMM_TYPE is 'ring'"},
           ScriptVariable{"OPTIMIZER='adam x'", "OPTIMIZER is 'adam x'"},
       }) {
    const auto [code, text] = script("run_deepseek_v2_lite_pretrain_mi355x.sh", settings);
    EXPECT_EQ(code, 2) << settings << text;
    expect_holds(text, {told});
  }
  // All of them at once, and before any arithmetic of the script's own.
  const auto [code, text] =
      script("run_deepseek_v3_pretrain_mi355x.sh", "NNODES=x PP=y PRETRAIN_TYPE=INT8 TURBO_RMS_NORM=2");
  EXPECT_EQ(code, 2);
  expect_holds(text, {"NNODES is 'x'", "PP is 'y'", "PRETRAIN_TYPE is 'INT8'", "TURBO_RMS_NORM is '2'"});
  expect_holds(script("run_moe_4T_pretrain.sh", "CHIP=MI300X").second, {"there is no experiment of moe_4T for it"});
}

TEST(RunScripts, SwitchesInEverySpelling) {
  const auto words = [](const std::string& settings) {
    const auto [code, text] = script("run_deepseek_v2_lite_pretrain_mi355x.sh", settings);
    EXPECT_EQ(code, 0) << settings << text;
    return text;
  };
  for (const char* on : {"True", "true", "TRUE", "1"}) {
    const std::string value = std::string("=") + on;
    expect_holds(words("PROFILE" + value + " FP8" + value), {"--profile True", "--fp8 hybrid"});
    expect_holds(words("ENABLE_MTP" + value + " DUMP_PP_DATA" + value), {"--mtp_num_layers 1", "--dump_pp_data True"});
    expect_holds(words("DRY_RUN" + value), {"--dry-run direct -- train"});
  }
  for (const char* off : {"False", "false", "0", ""}) {
    const std::string text = words(std::string("DRY_RUN=") + off + " DUMP_PP_DATA=" + off + " PROFILE=" + off);
    for (const char* absent : {"--dry-run", "--dump_pp_data", "--profile"})
      EXPECT_EQ(text.find(absent), std::string::npos) << off << text;
  }
}

}  // namespace
}  // namespace primus::cli
