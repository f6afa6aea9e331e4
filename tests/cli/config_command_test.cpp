// config show, diff, params, keys, check, explain: answers for people and programs, and exit codes.
#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <nlohmann/json.hpp>

#include "cli/program.hpp"

namespace primus::cli {
namespace {

using Json = nlohmann::json;
using Words = std::vector<std::string>;

const std::string kRoot = PRIMUS_SOURCE_DIR;
const std::string kQuickstart = kRoot + "/examples/quickstart/deepseek_v2_tiny.yaml";
const std::string kLite = kRoot + "/examples/moe_package/configs/MI355X/deepseek_v2_lite-pretrain-baseline.yaml";

ProgramResult config(Words words, const std::string& folder = "/tmp") {
  words.insert(words.begin(), "config");
  return run_program(words, folder);
}

Json json_of(Words words, int code = 0) {
  words.insert(words.end(), {"--format", "json"});
  const ProgramResult result = config(words);
  EXPECT_EQ(result.code, code) << result.err;
  EXPECT_EQ(result.err, "");
  return Json::parse(result.out);
}

TEST(ConfigShow, IsAnExperimentThatResolvesToTheSame) {
  const ProgramResult shown = config({"show", "--config", kQuickstart, "--lr", "3e-4"});
  ASSERT_EQ(shown.code, 0) << shown.err;
  expect_holds(shown.out, {"      lr: 0.0003\n", "    model: deepseek_v2_tiny.yaml\n"});
  const test::TestFolder folder;
  const std::string copy = folder.write("copy.yaml", shown.out);
  const ProgramResult same = config({"diff", kQuickstart, copy, "--lr", "3e-4"});
  EXPECT_EQ(same.code, 0) << same.out << same.err;
}

TEST(ConfigShow, OriginSaysWhoSetWhat) {
  const ProgramResult shown = config({"show", "--config", kQuickstart, "--origin", "lr=3e-4", "--lr=4e-4"});
  EXPECT_EQ(shown.code, 0) << shown.err;
  expect_holds(shown.out, {"lr: 0.0004  # command line", "deepseek_v2_tiny.yaml:"});
  const Json json = json_of({"show", "--config", kQuickstart, "--origin", "lr=3e-4"});
  EXPECT_EQ(json["settings"]["lr"]["value"], 3e-4);
  EXPECT_EQ(json["settings"]["lr"]["layer"], "command line");
  EXPECT_EQ(json["settings"]["num_layers"]["layer"], "model preset");
  EXPECT_TRUE(json["ok"]);
  EXPECT_EQ(json_of({"show", "--config", kQuickstart})["settings"]["lr"], 2e-3);
}

TEST(ConfigDiff, TellsKeyByKeyAndByItsExitCode) {
  const ProgramResult same = config({"diff", kQuickstart, kQuickstart});
  EXPECT_EQ(same.code, 0) << same.err;
  EXPECT_EQ(same.out, kQuickstart + " and " + kQuickstart + " resolve to the same\n");
  const test::TestFolder folder;
  const std::string other = folder.write(
      "other.yaml", "extends: " + kQuickstart + "\nexp_name: other\nmodules: {pre_trainer: {overrides: {lr: 0.5}}}\n");
  const ProgramResult result = config({"diff", kQuickstart, other});
  EXPECT_EQ(result.code, 1) << result.err;
  expect_holds(result.out, {"  - exp_name: deepseek_v2_tiny  # ", "  + exp_name: other  # ", "other.yaml:3\n",
                            "  - lr: 0.002  # ", "2 differences in all\n"});
  const Json json = json_of({"diff", kQuickstart, other}, 1);
  EXPECT_FALSE(json["equal"]);
  EXPECT_EQ(json["differences"][1]["key"], "lr");
  EXPECT_EQ(json["differences"][1]["y"]["value"], 0.5);
  EXPECT_EQ(json["differences"][1]["y"]["line"], 3);
}

TEST(ConfigParams, CountsPresetsExactly) {
  const ProgramResult text = config({"params", "--preset", "deepseek_v2_lite", "--by-layer"});
  EXPECT_EQ(text.code, 0) << text.err;
  expect_holds(text.out,
               {"15,706,484,224", "vocabulary  102,400 (HuggingFaceTokenizer of deepseek-ai/DeepSeek-V2-Lite)",
                "0 dense", "1-26 MoE, each", "shared_experts"});
  EXPECT_EQ(json_of({"params", "--preset", "deepseek_v2.yaml"})["total"], 235'741'434'880);
  const Json v3 = json_of({"params", "--preset", "deepseek_v3", "--by-layer"});
  EXPECT_EQ(v3["total"], 671'026'419'200);
  EXPECT_EQ(v3["by_layer"].size(), 61U);
  EXPECT_EQ(v3["vocabulary"]["size"], 129'280);
  EXPECT_EQ(json_of({"params", "--preset", "mixtral_8x7B_v0.1"})["total"], 46'702'792'704);
}

TEST(ConfigParams, CountsFlopsOfPredictionDepthsApart) {
  const Json v3 = json_of({"params", "--preset", "deepseek_v3"});
  const Json without = json_of({"params", "--preset", "deepseek_v3", "--mtp_num_layers", "null"});
  EXPECT_EQ(v3["flops_per_token"], without["flops_per_token"]);
  EXPECT_EQ(without["mtp"]["flops_per_token"], 0);
  EXPECT_GT(v3["mtp"]["flops_per_token"], 0);
  expect_holds(config({"params", "--preset", "deepseek_v3"}).out,
               {"(causal attention counted half), main model\n", "more for multi-token prediction (1 depth)"});
  EXPECT_EQ(config({"params", "--preset", "deepseek_v2"}).out.find("main model"), std::string::npos);
}

TEST(ConfigParams, OfAPresetTakesOverrides) {
  const Json longer = json_of({"params", "--preset", "deepseek_v2_lite", "--seq_length", "8192"});
  const Json usual = json_of({"params", "--preset", "deepseek_v2_lite"});
  EXPECT_EQ(longer["seq_length"], 8192);
  EXPECT_EQ(longer["total"], usual["total"]);
  EXPECT_GT(longer["flops_per_token"], usual["flops_per_token"]);
}

TEST(ConfigParams, OfAnExperimentUsesItsVocabulary) {
  const Json json =
      json_of({"params", "--config", kQuickstart, "--mock_data", "--num_layers", "2", "moe_layer_freq=1"});
  EXPECT_GT(json["total"], 0);
  std::int64_t sum = 0;
  for (const auto& [name, count] : json["by_component"].items()) sum += count.get<std::int64_t>();
  EXPECT_EQ(json["total"], sum);
}

TEST(ConfigParams, Refusals) {
  EXPECT_EQ(config({"params"}).err, "error: command line: --config or --preset is missing (expected one of them)\n");
  const ProgramResult preset = config({"params", "--preset", "deepseek_v2_light"});
  EXPECT_EQ(preset.code, 2);
  expect_holds(preset.err, {"--preset: file", "did you mean 'deepseek_v2_lite.yaml'?"});
  expect_holds(config({"params", "--preset", "deepseek_v2", "--lrr", "3"}).err, {"--lrr: unknown key"});
  EXPECT_EQ(config({"params", "--preset", "deepseek_v2", "--num_layers", "1000000000"}).code, 2);
  EXPECT_EQ(config({"params", "--preset", "deepseek_v2", "--config", kQuickstart}).code, 2);
}

TEST(ConfigKeys, AreFoundByNamePatternMeaningAreaAndState) {
  expect_holds(config({"keys", "moe_layer_freq"}).out, {"moe_layer_freq = ", "1 key\n"});
  const std::string routers = config({"keys", "moe_router_*"}).out;
  expect_holds(routers, {"moe_router_topk", "moe_router_dtype"});
  EXPECT_EQ(routers.find("train_iters"), std::string::npos);
  expect_holds(config({"keys", "of the decay", "--area", "learning-rate"}).out, {"min_lr = 0.0"});
  const Json json = json_of({"keys", "--state", "no-effect"});
  ASSERT_FALSE(json["keys"].empty());
  for (const Json& key : json["keys"]) {
    EXPECT_EQ(key["state"], "no effect");
    EXPECT_FALSE(key["note"].get<std::string>().empty());
  }
}

TEST(ConfigKeys, Refusals) {
  const std::vector<std::pair<Words, std::string>> cases = {
      {{"keys", "moe_router_tpok"}, "no key fits 'moe_router_tpok'; did you mean 'moe_router_topk'?"},
      {{"keys", "use_turbo_grouped_mlp"},
       "no key fits 'use_turbo_grouped_mlp'; it was removed: use_turbo_grouped_gemm is its successor"},
      {{"keys", "--state", "planed"}, "did you mean 'planned'?"},
      {{"keys", "--area", "tourbo"}, "there is no area 'tourbo'"},
      {{"keys", "--format", "xml"}, "expected one of text, json, markdown, found 'xml'"},
  };
  for (const auto& [words, message] : cases) {
    const ProgramResult result = config(words);
    EXPECT_EQ(result.code, 2);
    EXPECT_EQ(result.out, "");
    expect_holds(result.err, {message});
  }
}

TEST(ConfigKeys, TheDocumentIsCurrent) {
  const ProgramResult generated = config({"keys", "--format", "markdown"});
  EXPECT_EQ(generated.code, 0);
  EXPECT_EQ(read_file(kRoot + "/docs/keys.md"), generated.out) << "run tools/docs_keys";
}

TEST(ConfigCheck, ALineEachAndTwoIfOneFails) {
  const ProgramResult good = config({"check", kQuickstart, kLite});
  EXPECT_EQ(good.code, 0) << good.out;
  expect_holds(good.out, {"ok  " + kQuickstart + ": ", "2 checked, 0 failed\n"});
  const test::TestFolder folder;
  const std::string bad = folder.write(
      "bad.yaml", "extends: " + kQuickstart + "\nmodules: {pre_trainer: {overrides: {lrr: 1, train_iters: many}}}\n");
  const ProgramResult result = config({"check", bad, kQuickstart, "/nowhere.yaml"});
  EXPECT_EQ(result.code, 2);
  expect_holds(result.out, {"FAILED  " + bad + ": 2 problems\n", "lrr: unknown key; did you mean 'lr'?",
                            "FAILED  /nowhere.yaml: ", "file '/nowhere.yaml' does not exist", "3 checked, 2 failed\n"});
  const Json json = json_of({"check", bad, kQuickstart}, 2);
  EXPECT_FALSE(json["ok"]);
  EXPECT_EQ(json["files"][0]["problems"].size(), 2U);
  EXPECT_TRUE(json["files"][1]["ok"]);
}

TEST(ConfigCheck, OverridesAreOfEveryFile) {
  EXPECT_EQ(config({"check", kQuickstart, kLite, "--train_iters", "5"}).code, 0);
  const ProgramResult result = config({"check", kQuickstart, kLite, "--lrr", "3"});
  EXPECT_EQ(result.code, 2);
  expect_holds(result.out, {"--lrr: unknown key; did you mean 'lr'?", "2 checked, 2 failed\n"});
  EXPECT_EQ(config({"check", "--", kQuickstart}).code, 0);
  expect_holds(config({"check", "--lr", "3"}).err, {"no experiment is named"});
}

TEST(ConfigCheck, AsATrainRefusesPlannedKeys) {
  const test::TestFolder folder;
  const std::string planned = folder.write(
      "planned.yaml", "extends: " + kQuickstart + "\nmodules: {pre_trainer: {overrides: {optimizer: soap}}}\n");
  EXPECT_EQ(config({"check", planned}).code, 0);
  EXPECT_EQ(config({"check", planned, "--train"}).code, 2);
}

TEST(ConfigExplain, OneKeyInItself) {
  const ProgramResult result = config({"explain", "--micro-batch-size"});
  EXPECT_EQ(result.code, 0) << result.err;
  expect_holds(result.out, {"micro_batch_size\n", "  meaning    ", "  default    ", "  state      works"});
  expect_holds(config({"explain", "layernorm_epsilon"}).out, {"norm_epsilon\n  also       layernorm_epsilon\n"});
}

TEST(ConfigExplain, AndInAnExperiment) {
  const ProgramResult result = config({"explain", "lr", "--config", kQuickstart, "--lr", "3e-4", "lr=4e-4"});
  EXPECT_EQ(result.code, 0) << result.err;
  expect_holds(result.out, {"  value      0.0004\n  set by     command line\n  overrode   0.0003 (command line)\n",
                            "  overrode   0.002 (experiment, ", " (module preset, "});
  const Json json = json_of({"explain", "lr", "--config", kQuickstart, "--lr", "3e-4"});
  EXPECT_EQ(json["experiment"]["value"], 3e-4);
  EXPECT_EQ(json["experiment"]["overrode"][0]["layer"], "experiment");
}

TEST(ConfigExplain, TellsWhatASwitchSwitchedOn) {
  const ProgramResult result = config({"explain", "use_turbo_deepep", "--config", kLite, "--enable_primus_turbo",
                                       "--use_turbo_deepep", "--moe_router_dtype", "fp32"});
  EXPECT_EQ(result.code, 0) << result.err;
  expect_holds(result.out, {"moe_token_dispatcher_type: ", "because of use_turbo_deepep"});
}

TEST(ConfigExplain, Refusals) {
  EXPECT_EQ(config({"explain", "lrr"}).err, "error: command line: lrr: unknown key; did you mean 'lr'?\n");
  EXPECT_EQ(config({"explain", "use_turbo_grouped_mlp"}).err,
            "error: command line: use_turbo_grouped_mlp: this key was removed; write use_turbo_grouped_gemm instead\n");
  expect_holds(config({"explain", "lora.foo"}).err, {"unknown entry of lora (expected one of enabled, dim, "});
  expect_holds(config({"params", "--preset", "mixtral"}).err, {"did you mean 'mixtral_8x7B_v0.1.yaml'?"});
  expect_holds(config({"params", kQuickstart}).err, {"write --config " + kQuickstart});
  EXPECT_EQ(config({"explain", "lr", "--lr", "3"}).code, 2);
  EXPECT_EQ(config({"explain"}).code, 2);
}

TEST(Json, ErrorsAreOneDocumentOnStandardOutput) {
  const Words wrong = {"show", "--config", kQuickstart, "--lrr", "3", "--num_layers", "-1"};
  const Json json = json_of(wrong, 2);
  EXPECT_FALSE(json["ok"]);
  EXPECT_EQ(json["exit_code"], 2);
  ASSERT_EQ(json["problems"].size(), 2U);
  EXPECT_EQ(json["problems"][0]["key"], "--lrr");
  EXPECT_EQ(json["problems"][0]["hint"], "did you mean 'lr'?");
  EXPECT_EQ(json["problems"][1]["expected"], "integer >= 1");
  // For every command, with the option in front.
  const ProgramResult train =
      run_program({"--format", "json", "--dry-run", "train", "pretrain", "--config", "/nowhere.yaml"});
  EXPECT_EQ(train.code, 2);
  EXPECT_EQ(train.err, "");
  EXPECT_EQ(Json::parse(train.out)["problems"][0]["file"], "/nowhere.yaml");
  EXPECT_EQ(Json::parse(run_program({"--format", "json", "trian"}).out)["problems"].size(), 1U);
}

TEST(Json, PlanOfADryRun) {
  const ProgramResult result = run_program(
      {"--format", "json", "--dry-run", "train", "pretrain", "--config", kQuickstart, "--mock_data", "--manual_gc"},
      "/tmp", {{"NCCL_DEBUG", "INFO"}});
  ASSERT_EQ(result.code, 0) << result.out;
  const Json json = Json::parse(result.out);
  EXPECT_EQ(json["settings"]["mock_data"]["value"], true);
  EXPECT_EQ(json["no_effect"][0]["key"], "manual_gc");
  EXPECT_NE(json["worker"].get<std::string>().find("primus-worker"), std::string::npos);
  EXPECT_NE(json["environment"].dump().find("NCCL_DEBUG"), std::string::npos);
}

TEST(ConfigCommands, BehindAModeTheyRunHere) {
  const ProgramResult result = run_program({"slurm", "-N", "2", "--", "direct", "--", "config", "keys", "train_iters"});
  EXPECT_EQ(result.code, 0) << result.err;
  expect_holds(result.err, {"note: slurm has no effect: config starts no worker\n"});
  EXPECT_EQ(run_program({"direct", "--", "config", "keys", "train_iters"}).err, "");
}

TEST(ConfigCommands, TakeMilliseconds) {
  for (const Words& words : {Words{"show", "--config", kLite}, Words{"params", "--preset", "deepseek_v3"},
                             Words{"keys", "--format", "json"}, Words{"explain", "lr", "--config", kLite}}) {
    auto best = std::chrono::steady_clock::duration::max();
    for (int i = 0; i < 10; ++i) {
      const auto begin = std::chrono::steady_clock::now();
      config(words);
      best = std::min(best, std::chrono::steady_clock::now() - begin);
    }
    // 20 ms on a quiet machine; sanitizers and busy ones take longer.
    EXPECT_LT(best, std::chrono::milliseconds(200)) << testing::PrintToString(words);
  }
}

TEST(ConfigDiff, WhatNamesTheRunHasAnOriginToo) {
  const test::TestFolder folder;
  const auto experiment = [&](const char* file, const std::string& lines, const char* model) {
    return folder.write(file, lines +
                                  "user_name: b\nworkspace: d\nmodules:\n  pre_trainer:\n    framework: megatron\n"
                                  "    config: pre_trainer.yaml\n    model: " +
                                  model + "\n    overrides: {mock_data: true}\n");
  };
  const std::string x =
      experiment("x.yaml", "work_group: a\nexp_name: one\nenv: {A: \"1\", B: \"2\"}\n", "deepseek_v2_lite");
  const std::string y =
      experiment("y.yaml", "exp_name: two\nwork_group: a\nenv:\n  A: \"3\"\n", "deepseek_v2_lite.yaml");
  const Json json = json_of({"diff", x, y, "--work_group", "c"}, 1);
  std::map<std::string, Json> by_key;
  for (const Json& entry : json["differences"]) by_key[entry["key"]] = entry;
  ASSERT_EQ(by_key.size(), 4U) << json;
  EXPECT_EQ(by_key["exp_name"]["x"], (Json{{"value", "one"}, {"layer", "experiment"}, {"file", x}, {"line", 2}}));
  EXPECT_EQ(by_key["exp_name"]["y"], (Json{{"value", "two"}, {"layer", "experiment"}, {"file", y}, {"line", 1}}));
  EXPECT_EQ(by_key["env.A"]["y"]["line"], 4);
  EXPECT_EQ(by_key["env.B"]["x"]["value"], "2");
  EXPECT_EQ(by_key["env.B"]["y"], Json({{"value", nullptr}})) << "not there";
  EXPECT_EQ(by_key["model"]["x"]["line"], 10);
  expect_holds(config({"diff", x, y}).out, {"  - exp_name: one  # ", "x.yaml:2\n", "  + exp_name: two  # ",
                                            "y.yaml:1\n", "  - env.B: \"2\"  # ", "  + env.B: (not written)\n"});
}

TEST(ConfigExplain, WhatNamesTheRun) {
  const ProgramResult result = config({"explain", "--exp-name", "--config", kQuickstart, "--exp_name", "other"});
  EXPECT_EQ(result.code, 0) << result.err;
  expect_holds(result.out,
               {"exp_name\n  meaning", "default    none: it must be written\n", "values     text\n",
                "value      other\n", "set by     command line\n", "overrode   deepseek_v2_tiny (experiment, ",
                "examples/quickstart/deepseek_v2_tiny.yaml:"});  // from where the test stands, if within
  const Json json = json_of({"explain", "exp_name", "--config", kQuickstart});
  EXPECT_EQ(json["required"], true);
  EXPECT_FALSE(json.contains("default"));
  EXPECT_EQ(json["experiment"]["origin"]["file"], kQuickstart);
  EXPECT_TRUE(json["experiment"]["origin"].contains("line"));
}

TEST(ConfigExplain, ASpellingIsNoOtherName) {
  for (const char* spelling : {"micro-batch-size", "--micro-batch-size", "--micro_batch_size", "micro_batch_size"})
    EXPECT_EQ(config({"explain", spelling}).out.find("also"), std::string::npos) << spelling;
  expect_holds(config({"explain", "--layernorm-epsilon"}).out, {"norm_epsilon\n  also       --layernorm-epsilon\n"});
}

TEST(ConfigCheck, JsonCountsParameters) {
  const Json json = json_of({"check", kQuickstart, kLite});
  EXPECT_EQ(json["files"][1]["parameters"]["total"], json_of({"params", "--config", kLite})["total"]);
  EXPECT_GT(json["files"][0]["parameters"]["active"], 0);
}

}  // namespace
}  // namespace primus::cli
