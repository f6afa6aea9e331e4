// What a launch must not do: write over its own inputs, tell one fault and hide the next, start what cannot run.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <nlohmann/json.hpp>

#include "cli/program.hpp"

namespace primus::cli {
namespace {

using Words = std::vector<std::string>;
using Environment = std::map<std::string, std::string>;

const std::string kRoot = PRIMUS_SOURCE_DIR;
const std::string kQuickstart = kRoot + "/examples/quickstart/deepseek_v2_tiny.yaml";

class LaunchFaults : public testing::Test {
 protected:
  LaunchFaults() {
    const std::string worker = folder_.write("bin/worker.sh", "#!/bin/sh\ntouch started\n");
    chmod(worker.c_str(), 0755);
    make_folder(folder_.path() / "runner/helpers");
    environment_ = {{"PRIMUS_WORKER", worker}, {"PRIMUS_RUNNER_DIR", at("runner")}};
    std::filesystem::copy_file(kQuickstart, at("exp.yaml"));
  }

  std::string at(const std::string& name) const { return (folder_.path() / name).string(); }

  ProgramResult train(Words before, const Words& after = {}) const {
    before.insert(before.end(), {"train", "pretrain", "--config", "exp.yaml", "--mock_data"});
    before.insert(before.end(), after.begin(), after.end());
    return run_program(before, folder_.path().string(), environment_);
  }

  /// Everything of a refused run.
  void expect_refused(const ProgramResult& result, const std::vector<std::string>& parts) const {
    EXPECT_EQ(result.code, 2);
    EXPECT_EQ(result.out, "");
    expect_holds(result.err, parts);
    EXPECT_FALSE(has_started());
  }

  bool has_started() const { return std::filesystem::exists(at("started")); }

  test::TestFolder folder_;
  Environment environment_;
};

TEST_F(LaunchFaults, ExportNeverWritesOverWhatTheRunReads) {
  const std::string before = read_file(at("exp.yaml"));
  folder_.write("base.yaml", "train_iters: 3\n");
  folder_.write("child.yaml", "extends: exp.yaml\n");
  const std::string patch = folder_.write("patch.sh", "true\n");
  const std::string variables = folder_.write("vars.env", "A=1\n");
  const std::string launcher = folder_.write("launcher.yaml", "main: {}\n");
  std::filesystem::create_symlink("exp.yaml", at("link.yaml"));
  for (const char* name : {"exp.yaml", "./exp.yaml", "link.yaml"}) {
    expect_refused(train({}, {"--export_config", name}),
                   {"--export_config: '" + std::string(name) + "' is what is read (a file of the experiment)"});
    expect_refused(train({"--dry-run"}, {"--export_config", name}), {"is what is read"});
    expect_refused(train({"direct", "--log_file", name, "--"}), {"--log_file: '" + std::string(name) + "' is what"});
  }
  // What the experiment extends, scripts, variables, the launcher file, a preset.
  expect_refused(train({}, {"--config", "child.yaml"}), {"given twice"});
  expect_refused(
      run_program({"train", "pretrain", "--config", "child.yaml", "--mock_data", "--export_config", "exp.yaml"},
                  folder_.path().string(), environment_),
      {"is what is read (a file of the experiment)"});
  expect_refused(train({"direct", "--patch", patch, "--"}, {"--export_config", "patch.sh"}), {"(a patch)"});
  expect_refused(train({"direct", "--env", variables, "--"}, {"--export_config", "vars.env"}),
                 {"(a file of variables)"});
  expect_refused(train({"--config", launcher}, {"--export_config", "launcher.yaml"}), {"(the launcher file)"});
  EXPECT_EQ(read_file(at("exp.yaml")), before);
}

TEST_F(LaunchFaults, ExportMakesANewFileOrReplacesItsOwn) {
  folder_.write("notes.txt", "mine\n");
  expect_refused(
      train({}, {"--export_config", "notes.txt"}),
      {"'notes.txt' is there already, and --export_config did not write it", "remove it, or name another file"});
  EXPECT_EQ(read_file(at("notes.txt")), "mine\n");
  for (const char* steps : {"5", "6"}) {
    const ProgramResult result = train({}, {"--export_config", "new/resolved.yaml", "--train_iters", steps});
    EXPECT_EQ(result.code, 0) << result.err;
    expect_holds(read_file(at("new/resolved.yaml")), {"train_iters: " + std::string(steps) + "  # command line"});
  }
}

TEST_F(LaunchFaults, NoAnswerIsWrittenOverWhatItIsMadeOf) {
  const std::string metrics = folder_.write("run/metrics.jsonl", "{\"iteration\":1,\"lm_loss\":3.0}\n");
  const std::string before = read_file(metrics);
  for (const Words& words :
       {Words{"view", "loss", "--run", "run", "--out", "run/metrics.jsonl"},
        Words{"view", "loss", "--run", "run", "--csv", "run/metrics.jsonl"},
        Words{"projection", "memory", "--config", "exp.yaml", "--format", "csv", "--out", "exp.yaml"},
        Words{"view", "memory", "--config", "exp.yaml", "--format", "svg", "--out", "exp.yaml"}}) {
    const ProgramResult result = run_program(words, folder_.path().string(), environment_);
    EXPECT_EQ(result.code, 2) << result.out;
    expect_holds(result.err, {"' is what is read (", "and would be written over"});
  }
  EXPECT_EQ(read_file(metrics), before);
  EXPECT_EQ(read_file(at("exp.yaml")), read_file(kQuickstart));
}

TEST_F(LaunchFaults, ADryRunWritesNothing) {
  const ProgramResult result =
      train({"--dry-run", "direct", "--log_file", "log.txt", "--"}, {"--export_config", "x.yaml"});
  EXPECT_EQ(result.code, 0) << result.err;
  expect_holds(result.out, {"export      x.yaml (not written by a dry run)"});
  for (const char* name : {"x.yaml", "log.txt", "output", "started"})
    EXPECT_FALSE(std::filesystem::exists(at(name))) << name;
}

TEST_F(LaunchFaults, OneOfNodesAndDevicesAloneCounts) {
  environment_["NNODES"] = "2";
  expect_holds(train({"--dry-run"}, {"--global_batch_size", "128"}).out, {"16 processes (NNODES, 8 devices a node)"});
  expect_refused(train({}),
                 {"environment: NNODES: training in several processes is planned for a later release (expected 1, "
                  "found 2)"});
  environment_ = {{"GPUS_PER_NODE", "4"}};
  expect_holds(train({"--dry-run"}, {"--global_batch_size", "128"}).out, {"4 processes (GPUS_PER_NODE, one node)"});
  environment_ = {{"SLURM_JOB_ID", "1"}, {"SLURM_NNODES", "2"}};
  for (const Words& command : {Words{"config", "show"}, Words{"train", "pretrain", "--dry-run"}}) {
    Words words = command;
    words.insert(words.end(),
                 {"--config", "exp.yaml", "--mock_data", "--global_batch_size", "128", "--format", "json"});
    const ProgramResult result = run_program(words, folder_.path().string(), environment_);
    EXPECT_EQ(nlohmann::json::parse(result.out)["world"]["size"], 16) << result.out;
  }
}

TEST_F(LaunchFaults, FaultsOfAModeHideNoOthers) {
  expect_refused(
      train({"--dry-run", "slurm", "-N", "x", "stray", "--", "direct", "--"}, {"--lrr", "3", "--device", "tpu"}),
      {"error: 4 problems", "--nodes: not a number", "unexpected 'stray' among the options of slurm",
       "--lrr: unknown key", "unknown device 'tpu'"});
  expect_refused(train({"--dry-run", "container", "--memory", "1x", "--volume", "--"}, {"--lrr", "3"}),
                 {"error: 4 problems", "--image: no image is named", "--memory: not an amount of memory",
                  "--volume: needs a value", "--lrr: unknown key"});
  expect_refused(train({"direct", "--nproc", "0", "--env", "1X=3", "--patch", "none.sh", "--"}, {"--lrr", "3"}),
                 {"error: 4 problems", "--nproc: not a number of processes", "--env: not a variable",
                  "there is no file none.sh", "--lrr: unknown key"});
  const ProgramResult unfinished = run_program({"direct", "--nproc", "two", "--", "train"});
  EXPECT_EQ(unfinished.code, 2);
  expect_holds(unfinished.err, {"error: 2 problems", "--nproc: not a number", "command of train is missing"});
  const std::string file = folder_.write("launcher.yaml", "slurrm: {}\n");
  expect_refused(train({"--config", file, "--dry-run"}, {"--lrr", "3", "--world-size", "x"}),
                 {"error: 3 problems", "slurrm: unknown key of a launcher file", "--lrr: unknown key",
                  "--world-size: not a number of processes (expected integer >= 1, found 'x')"});
  // Without --dry-run neither: what cannot run there yet is one more fault.
  folder_.write("runner/.primus.yaml", "container: {options: {image: x}}\n");
  expect_refused(train({"slurm", "-N", "2", "--"}, {"--lrr", "3", "--global_batch_size", "128"}),
                 {"error: 2 problems", "slurm: starting a run through Slurm is planned", "--lrr: unknown key"});
}

TEST_F(LaunchFaults, FaultsOfALauncherFileAreToldAtTheirLine) {
  folder_.write(
      "runner/.primus.yaml",
      "slurm:\n  nodes: many\ncontainer:\n  options:\n    image: x\n    volume: [/a:/b:zz]\n    memory: 1x\n");
  const std::string file = at("runner/.primus.yaml");
  expect_refused(
      train({"--dry-run", "slurm", "--", "container", "--cpus", "two", "--"}),
      {"error: 4 problems", file + ":2: slurm.nodes: not a number",
       file + ":6: container.options.volume: unknown mount option 'zz'",
       file + ":7: container.options.memory: not an amount of memory", "command line: --cpus: not a number"});
  // What a faulty file would have said is not told as missing.
  folder_.write("runner/.primus.yaml", "container: {image: x}\n");
  const ProgramResult faulty = train({"--dry-run", "container", "--"});
  EXPECT_EQ(faulty.err, "error: " + file + ":1: container.image: unknown key of a launcher file\n");
  // A folder of hooks that is not there hides nothing.
  environment_["PRIMUS_RUNNER_DIR"] = "/nowhere";
  expect_refused(train({}, {"--lrr", "3"}),
                 {"error: 2 problems", "PRIMUS_RUNNER_DIR: there is no folder", "--lrr: unknown key"});
}

TEST_F(LaunchFaults, TheRunsFolderMustBePossible) {
  folder_.write("taken", "");
  expect_refused(train({}, {"--workspace", "taken"}),
                 {"error: command line: workspace: the run's folder taken/", "taken is no folder"});
  expect_refused(train({}, {"--workspace", "/dev/null"}), {"command line: workspace: the run's folder /dev/null/"});
  expect_refused(train({}, {"--exp_name", std::string(300, 'x')}), {"File name too long"});
  EXPECT_EQ(train({"--dry-run"}, {"--workspace", "taken"}).code, 0) << "a plan makes no folder";
}

TEST_F(LaunchFaults, ALogThatCannotBeWrittenSaysSoOnce) {
  const ProgramResult result = train({"direct", "--log_file", "/dev/full", "--"});
  EXPECT_EQ(result.code, 0);
  EXPECT_EQ(result.err, "note: the log file cannot be written: No space left on device\n");
  EXPECT_TRUE(has_started());
}

TEST_F(LaunchFaults, EmptyVariablesCountAsUnset) {
  environment_.insert(
      {{"SLURM_JOB_ID", "1"}, {"SLURM_NODELIST", ""}, {"SLURM_NNODES", ""}, {"MASTER_ADDR", ""}, {"NNODES", ""}});
  EXPECT_EQ(train({"--dry-run"}).code, 0) << train({"--dry-run"}).err;
  environment_["SLURM_JOB_ID"] = "";
  environment_["SLURM_NNODES"] = "2";
  expect_holds(train({"--dry-run"}).out, {"1 process "});
  environment_["SLURM_JOB_ID"] = "1";
  environment_["SLURM_NNODES"] = "x";
  expect_refused(train({"--dry-run"}),
                 {"error: environment: SLURM_NNODES: not a number (expected integer >= 1, found 'x')"});
  environment_ = {{"NODE_RANK", "3"}};
  expect_refused(train({"--dry-run"}),
                 {"NODE_RANK: no node of this run has that number (expected 0, or NNODES beside it"});
}

TEST_F(LaunchFaults, HooksAreNamedWhenWhatTheyAskedForIsWrong) {
  folder_.write("runner/helpers/hooks/10_lr.sh", "echo extra.lrr=3\necho env.USING_UEP=perhaps\n");
  const ProgramResult result = train({});
  EXPECT_EQ(result.code, 2);
  expect_holds(result.err, {"hook 10_lr.sh: --lrr: unknown key", "hook 10_lr.sh: USING_UEP: not an allowed value"});
  EXPECT_FALSE(has_started());
  folder_.write("runner/helpers/hooks/10_lr.sh", "echo env.1X=3\n");
  const ProgramResult malformed = train({});
  EXPECT_EQ(malformed.code, 1);
  expect_holds(malformed.err, {"10_lr.sh printed 'env.1X=3' (expected env.NAME=VALUE); nothing was started"});
  EXPECT_FALSE(has_started());
}

TEST_F(LaunchFaults, AMissingCheckpointIsToldBeforeAnythingStarts) {
  expect_refused(
      train({}, {"--load", "nowhere"}),
      {"error: command line: --load: there is no checkpoint, and exit_on_missing_checkpoint is on (expected a "
       "checkpoint, a folder of them, or a Hugging Face folder, found nowhere)"});
  expect_refused(train({}, {"--load", "exp.yaml"}), {"--load: is no folder", "found exp.yaml"});
  expect_refused(train({}, {"--pretrained_checkpoint", "nowhere"}),
                 {"--pretrained_checkpoint: there is no checkpoint"});
  folder_.write("ckpt/iter_0000004/weights.bin", "x");
  expect_refused(train({}, {"--load", "ckpt", "--ckpt_step", "5"}),
                 {"--ckpt_step: there is no checkpoint of this step in ckpt (expected 4, found 5)"});
  const ProgramResult plan = train({"--dry-run"}, {"--load", "nowhere"});
  EXPECT_EQ(plan.code, 0) << plan.err;
  expect_holds(plan.out, {"start\n  a real train refuses load: there is no checkpoint"});
  expect_holds(train({"--dry-run"}, {"--load", "ckpt"}).out, {"start\n  ckpt/iter_0000004 (load)"});
  expect_holds(train({"--dry-run"}).out, {"start\n  random weights\n"});
  const ProgramResult random = train({}, {"--load", "nowhere", "--exit_on_missing_checkpoint", "False"});
  EXPECT_EQ(random.code, 0) << random.err;
  EXPECT_TRUE(has_started());
}

TEST_F(LaunchFaults, AContainerSeesWhatTheRunNeeds) {
  const test::TestFolder elsewhere;
  std::filesystem::copy_file(kQuickstart, elsewhere.path() / "exp.yaml");
  elsewhere.write("tokens/a.bin", "");
  elsewhere.write("tokens/a.idx", "");
  elsewhere.write("tokenizer/tokenizer.json", "{}");
  make_folder(elsewhere.path() / "ckpt");
  elsewhere.write("scripts/patch.sh", "true");
  const auto there = [&](const char* name) { return (elsewhere.path() / name).string(); };
  environment_["DOCKER_IMAGE"] = "some/image";
  const ProgramResult result = run_program({"--dry-run",
                                            "container",
                                            "--volume",
                                            there("ckpt") + ":" + there("ckpt") + ":ro",
                                            "--",
                                            "direct",
                                            "--patch",
                                            there("scripts/patch.sh"),
                                            "--log_file",
                                            there("logs/run.txt"),
                                            "--",
                                            "train",
                                            "pretrain",
                                            "--config",
                                            there("exp.yaml"),
                                            "--train_data_path",
                                            there("tokens/a"),
                                            "--load",
                                            there("ckpt"),
                                            "--workspace",
                                            there("runs")},
                                           folder_.path().string(), environment_);
  EXPECT_EQ(result.code, 0) << result.err;
  const std::string whole = elsewhere.path().string();
  expect_holds(result.out, {" --volume=" + whole + ":" + whole + " ", " --workdir=" + folder_.path().string() + " ",
                            "--volume=" + std::string(PRIMUS_BIN_DIR).substr(0, 5)});
  EXPECT_EQ(result.out.find("--volume=" + there("tokens")), std::string::npos) << "lies in what is mounted";
  expect_holds(result.out, {"--volume=" + folder_.path().string() + ":"});
}

}  // namespace
}  // namespace primus::cli
