// Launcher file, hooks, patches, log file, and what slurm and container would run.
#include <gtest/gtest.h>

#include <sys/stat.h>
#include <nlohmann/json.hpp>

#include <algorithm>

#include "cli/program.hpp"

namespace primus::cli {
namespace {

using Words = std::vector<std::string>;
using Environment = std::map<std::string, std::string>;

const std::string kRoot = PRIMUS_SOURCE_DIR;
const std::string kQuickstart = kRoot + "/examples/quickstart/deepseek_v2_tiny.yaml";

class Launcher : public testing::Test {
 protected:
  Launcher() {
    const std::string worker =
        folder_.write("worker.sh", "#!/bin/sh\necho worker \"$PRIMUS_TEST_A\"\necho worker error >&2\ntouch started\n");
    chmod(worker.c_str(), 0755);
    make_folder(folder_.path() / "runner/helpers");
    environment_ = {{"PRIMUS_WORKER", worker}, {"PRIMUS_RUNNER_DIR", (folder_.path() / "runner").string()}};
  }

  ProgramResult run(Words words) const { return run_program(words, folder_.path().string(), environment_); }

  /// With `before` in front of the command.
  ProgramResult train(Words before, const Words& after = {}) const {
    before.insert(before.end(), {"train", "pretrain", "--config", kQuickstart, "--mock_data"});
    before.insert(before.end(), after.begin(), after.end());
    return run(before);
  }

  void hook(const std::string& name, const std::string& script) const {
    folder_.write("runner/helpers/hooks/" + name, script);
  }

  bool has_started() const { return std::filesystem::exists(folder_.path() / "started"); }

  test::TestFolder folder_;
  Environment environment_;
};

TEST_F(Launcher, FileIsSearchedInOrderAndNeverMerged) {
  folder_.write("runner/.primus.yaml", "direct: {env: [PRIMUS_TEST_A=runner]}\n");
  expect_holds(train({}).out, {"worker runner\n"});
  folder_.write("home/.primus.yaml", "direct: {log_file: \"\"}\n");
  environment_["HOME"] = (folder_.path() / "home").string();
  expect_holds(train({}).out, {"worker \n"});
  const std::string named = folder_.write("named.yaml", "direct:\n  env:\n    - PRIMUS_TEST_A=named\n");
  expect_holds(train({"--config", named}).out, {"worker named\n"});
  expect_holds(train({"direct", "--config", named, "--env", "PRIMUS_TEST_A=typed", "--"}).out, {"worker typed\n"});
}

TEST_F(Launcher, FileSwitches) {
  folder_.write("runner/.primus.yaml", "main: {dry_run: true, debug: true}\n");
  const ProgramResult result = train({});
  EXPECT_EQ(result.code, 0) << result.err;
  expect_holds(result.out, {"plan of deepseek_v2_tiny", "runner/.primus.yaml", "PRIMUS_LOG_LEVEL=DEBUG"});
  EXPECT_FALSE(has_started());
}

TEST_F(Launcher, FileWithFaults) {
  const std::string file =
      folder_.write("bad.yaml",
                    "main: {dry_run: perhaps}\nslurrm: {}\ndirect:\n  numa: never\n  patches: [x]\n"
                    "container: {options: {\"a b\": 1}}\n");
  const ProgramResult result = train({"--config", file});
  EXPECT_EQ(result.code, 2);
  EXPECT_EQ(result.err, "error: 5 problems\n  " + file +
                            ":1: main.dry_run: wrong type (expected true or false, found text 'perhaps')\n  " + file +
                            ":2: slurrm: unknown key of a launcher file; did you mean 'slurm'?\n  " + file +
                            ":4: direct.numa: wrong value (expected auto, true, false, found text 'never')\n  " + file +
                            ":5: direct.patches: unknown key of a launcher file; did you mean 'patch'?\n  " + file +
                            ":6: container.options.a b: not the name of an option\n");
  const ProgramResult experiment = train({"--config", kQuickstart});
  EXPECT_EQ(experiment.code, 2);
  expect_holds(experiment.err, {"this is an experiment, not a launcher file"});
  // Also where the command then has none.
  expect_holds(run({"--config", kQuickstart, "train", "pretrain", "--lr", "1"}).err,
               {"this is an experiment, not a launcher file"});
  const std::string yaml = folder_.write("broken.yaml", "main: [\n");
  expect_holds(train({"--config", yaml}).err, {"not valid YAML"});
  // Commands that only look at a configuration are not held up by it.
  folder_.write("runner/.primus.yaml", "nonsense: 1\n");
  EXPECT_EQ(train({}).code, 2);
  EXPECT_EQ(run({"config", "keys", "train_iters"}).code, 0);
}

TEST_F(Launcher, UnreadableFile) {
  if (geteuid() == 0) GTEST_SKIP() << "root reads everything";
  const std::string file = folder_.write("runner/.primus.yaml", "main: {}\n");
  chmod(file.c_str(), 0);
  const ProgramResult result = train({});
  EXPECT_NE(result.code, 0);
  expect_holds(result.err, {file, "Permission denied"});
}

TEST_F(Launcher, AFolderInTheFilesPlace) {
  make_folder(folder_.path() / "runner/.primus.yaml");
  const ProgramResult result = train({});
  EXPECT_NE(result.code, 0);
  expect_holds(result.err, {"runner/.primus.yaml"});
}

TEST_F(Launcher, HooksAddVariablesAndOverrides) {
  hook("10_env.sh", "echo \"env.PRIMUS_TEST_A=from hook\"\necho hello from $0\n");
  hook("20_more.sh", "test \"$PRIMUS_TEST_A\" = 'from hook' || exit 9\necho second saw \"$1\" \"$2\"\n");
  hook("train/pretrain/lr.py", "print('extra.lr=0.25')\nprint('extra.backend_path=/somewhere')\n");
  hook("train/posttrain/never.sh", "exit 1\n");
  const ProgramResult result = train({});
  EXPECT_EQ(result.code, 0) << result.err;
  expect_holds(result.out,
               {"hook 10_env.sh: PRIMUS_TEST_A=from hook\n", "hello from ", "second saw train pretrain\n",
                "hook lr.py: --lr 0.25\n", "worker from hook\n", "--backend_path: there is no Python backend"});
  EXPECT_NE(read_file(folder_.path() / "output/quickstart/local/deepseek_v2_tiny/experiment.yaml")
                .find("lr: 0.25  # command line"),
            std::string::npos);
}

TEST_F(Launcher, AHookThatFailsEndsTheRun) {
  hook("10_bad.sh", "echo on its way\necho broken >&2\nexit 7\n");
  const ProgramResult result = train({});
  EXPECT_EQ(result.code, 1);
  expect_holds(result.out, {"on its way\n"});
  EXPECT_EQ(result.err, "broken\nerror: hook " + (folder_.path() / "runner/helpers/hooks/10_bad.sh").string() +
                            " failed with exit code 7; nothing was started\n");
  EXPECT_FALSE(has_started());
}

TEST_F(Launcher, WrongConfigurationIsToldBeforeAnyHookRuns) {
  hook("10_touch.sh", "touch hooked\n");
  EXPECT_EQ(train({}, {"--lrr", "3"}).code, 2);
  EXPECT_EQ(run({"train", "pretrain", "--config", kQuickstart, "--dry-run"}).code, 0);
  EXPECT_EQ(run({"config", "show", "--config", kQuickstart}).code, 0);
  EXPECT_FALSE(std::filesystem::exists(folder_.path() / "hooked"));
  EXPECT_EQ(train({}).code, 0);
  EXPECT_TRUE(std::filesystem::exists(folder_.path() / "hooked"));
}

TEST_F(Launcher, AHookMayStopTheRunAndOthersRunAfterIt) {
  hook("after/report.sh", "echo after with $PRIMUS_EXIT_CODE\n");
  const ProgramResult result = train({});
  EXPECT_EQ(result.code, 0) << result.err;
  expect_holds(result.out, {"after with 0\n"});
  hook("after/report.sh", "exit 3\n");
  const ProgramResult failed = train({});
  EXPECT_EQ(failed.code, 1);
  expect_holds(failed.err, {"failed with exit code 3; the command itself had ended with exit code 0"});
  std::filesystem::remove(folder_.path() / "started");
  hook("10_skip.sh", "echo env.PRIMUS_SKIP_MAIN_LAUNCH=1\n");
  EXPECT_EQ(train({}).code, 0);
  EXPECT_FALSE(has_started());
}

// A script behind the command adds to what is told of it, and never stands in its place.
TEST_F(Launcher, AFailingScriptBehindTheRunKeepsTheRunsOutcome) {
  const nlohmann::json whole = nlohmann::json::parse(train({"--format", "json"}).out);
  hook("after/10_bad.sh", "exit 3\n");
  hook("after/20_other.sh", "touch other_ran\n");
  const ProgramResult result = train({"--format", "json"});
  EXPECT_EQ(result.code, 1);
  const nlohmann::json json = nlohmann::json::parse(result.out);
  EXPECT_EQ(json["ok"], false);
  EXPECT_EQ(json["exit_code"], 1);
  EXPECT_EQ(json["command_exit_code"], 0);
  ASSERT_EQ(json["problems"].size(), 1U);
  expect_holds(json["problems"][0]["text"], {"10_bad.sh failed with exit code 3"});
  for (const auto& [name, value] : whole.items()) EXPECT_TRUE(json.contains(name)) << name;
  EXPECT_TRUE(std::filesystem::exists(folder_.path() / "other_ran"));
}

TEST_F(Launcher, PatchesRunBehindHooksAndMaySkipThemselves) {
  const std::string patch = folder_.write("patch.sh", "echo env.PRIMUS_TEST_A=patched\n");
  const std::string skip = folder_.write("skip.sh", "echo env.PRIMUS_TEST_A=skipped\nexit 2\n");
  const ProgramResult result = train({"direct", "--patch", patch, "--patch", skip, "--"});
  EXPECT_EQ(result.code, 0) << result.err;
  expect_holds(result.out, {"patch skip.sh skipped itself\n", "worker patched\n"});
  const std::string bad = folder_.write("bad.sh", "exit 1\n");
  EXPECT_EQ(train({"direct", "--patch", bad, "--"}).err,
            "error: patch " + bad + " failed with exit code 1; nothing was started\n");
}

TEST_F(Launcher, DryRunListsScriptsAndRunsNone) {
  hook("10_touch.sh", "touch hooked\n");
  const std::string patch = folder_.write("patch.sh", "touch hooked\n");
  const ProgramResult result = train({"--dry-run", "direct", "--patch", patch, "--log_file", "logs/a.txt", "--"});
  EXPECT_EQ(result.code, 0) << result.err;
  expect_holds(result.out, {"hook        ", "10_touch.sh (not run by a dry run)", "patch       " + patch,
                            "log file    logs/a.txt"});
  EXPECT_FALSE(std::filesystem::exists(folder_.path() / "hooked"));
  EXPECT_FALSE(std::filesystem::exists(folder_.path() / "logs"));
}

TEST_F(Launcher, LogFileHoldsEverythingAndSilentShowsErrorsOnly) {
  const ProgramResult result = train({"direct", "--log_file", "logs/run.txt", "--"});
  EXPECT_EQ(result.code, 0) << result.err;
  expect_holds(result.out, {"worker \n", "run folder"});
  expect_holds(result.err, {"worker error\n"});
  const std::string log = read_file(folder_.path() / "logs/run.txt");
  expect_holds(log, {"worker \n", "worker error\n", "run folder"});
  const ProgramResult silent = train({"direct", "--log_file=logs/run.txt", "--silent", "--"});
  EXPECT_EQ(silent.out, "");
  EXPECT_EQ(silent.err, "worker error\n");
  EXPECT_GT(read_file(folder_.path() / "logs/run.txt").size(), log.size());
  const ProgramResult quiet = train({"direct", "--silent", "--"});
  EXPECT_EQ(quiet.code, 0);
  EXPECT_EQ(quiet.out, "");
  EXPECT_EQ(train({"direct", "--log_file", "/proc/nowhere/x", "--"}).code, 1);
}

TEST_F(Launcher, LogFileHoldsTheLastErrorToo) {
  hook("10_bad.sh", "exit 7\n");
  EXPECT_EQ(train({"direct", "--log_file", "run.txt", "--"}).code, 1);
  expect_holds(read_file(folder_.path() / "run.txt"), {"error: hook "});
}

TEST_F(Launcher, EnvTakesFilesAndNames) {
  const std::string file = folder_.write("vars.env", "# comment\n\nexport PRIMUS_TEST_A=\"of a file\"\nOTHER=1\n");
  expect_holds(train({"direct", "--env", file, "--"}).out, {"worker of a file\n"});
  environment_["PRIMUS_TEST_A"] = "inherited";
  expect_holds(train({"direct", "--env", "PRIMUS_TEST_A", "--"}).out, {"worker inherited\n"});
  const std::string bad = folder_.write("bad.env", "OK=1\nnot a variable\n");
  const ProgramResult result = train({"direct", "--env", bad, "--"});
  EXPECT_EQ(result.code, 2);
  expect_holds(result.err, {bad + ":2: not a variable"});
}

TEST_F(Launcher, BindingIsAVariableOfTheWorker) {
  const std::string worker = folder_.write("told.sh", "#!/bin/sh\necho binding \"$ENABLE_NUMA_BINDING\"\n");
  chmod(worker.c_str(), 0755);
  environment_["PRIMUS_WORKER"] = worker;
  expect_holds(train({}).out, {"binding \n"});
  expect_holds(train({"direct", "--numa", "--"}).out, {"binding 1\n"});
  expect_holds(train({"direct", "--numa", "--no-numa", "--"}).out, {"binding 0\n"});
  const std::string file = folder_.write("numa.yaml", "direct:\n  numa: true\n");
  expect_holds(train({"--config", file}).out, {"binding 1\n"});
  expect_holds(train({"direct", "--config", file, "--no-numa", "--"}).out, {"binding 0\n"});
  environment_["ENABLE_NUMA_BINDING"] = "0";
  expect_holds(train({"--config", file}).out, {"binding 0\n"});
  expect_holds(train({"direct", "--numa", "--"}).out, {"binding 1\n"});
}

TEST_F(Launcher, OptionsWithoutEffectSaySoOnce) {
  const ProgramResult result = train({"direct", "--script", "x.py", "--single", "--"});
  EXPECT_EQ(result.code, 0) << result.err;
  expect_holds(result.out, {"--script: there is no Python entry"});
  EXPECT_EQ(result.out.find("--single"), std::string::npos);
}

TEST_F(Launcher, LaunchVariablesAreChecked) {
  environment_["NNODES"] = "2";
  environment_["NODE_RANK"] = "2";
  environment_["MASTER_PORT"] = "80";
  const ProgramResult result = train({"--dry-run"}, {"--global_batch_size=128"});
  EXPECT_EQ(result.code, 2);
  EXPECT_EQ(result.err,
            "error: 2 problems\n"
            "  environment: MASTER_PORT: out of range (expected integer from 1024 to 65535, found '80')\n"
            "  environment: NODE_RANK: no node of this run has that number (expected 0 to 1, found '2')\n");
  environment_["PRIMUS_SKIP_VALIDATION"] = "1";
  EXPECT_EQ(train({"--dry-run"}, {"--global_batch_size=128"}).code, 0);
}

TEST_F(Launcher, EnvironmentIsExplained) {
  environment_.insert({{"ENABLE_NUMA_BINDING", "1"},
                       {"HSA_KERNARG_POOL_SIZE", "12582912"},
                       {"USING_UEP", "1"},
                       {"HF_TOKEN", "secret-text"}});
  const ProgramResult result = train({"--dry-run"});
  EXPECT_EQ(result.code, 0) << result.err;
  expect_holds(result.out, {"ENABLE_NUMA_BINDING=1: where it is 1, a GPU's worker",
                            "HSA_KERNARG_POOL_SIZE=12582912: passed on to the workers",
                            "USING_UEP=1: ", "PRIMUS_TURBO_MOE_DISPATCH_COMBINE_BACKEND=DEEP_EP", "HF_TOKEN=(hidden)"});
  EXPECT_EQ(result.out.find("secret-text"), std::string::npos);
}

TEST_F(Launcher, SlurmPrintsWhatItWouldRun) {
  folder_.write("runner/.primus.yaml",
                "slurm: {nodes: 1, time: \"4:00:00\", partition: main, gpus_per_node: 4, exclusive: true}\n"
                "container: {options: {image: some/image, device: [/dev/kfd]}}\n");
  const ProgramResult result =
      train({"--dry-run", "slurm", "srun", "-N", "2", "-t", "1:00:00", "--"}, {"global_batch_size=64"});
  EXPECT_EQ(result.code, 0) << result.err;
  expect_holds(result.out,
               {"slurm       srun --nodes=2 --time=1:00:00 --partition=main --exclusive --ntasks-per-node=1 ",
                "primus-cli container -- train pretrain --config " + kQuickstart,
                "NNODES=2 NODE_RANK=$SLURM_NODEID GPUS_PER_NODE=4", "container   docker run --rm --device=/dev/kfd",
                " some/image ", "8 processes (nodes of slurm x devices)"});
  const ProgramResult batch = train({"slurm", "--dry-run", "sbatch", "--nodes=2", "--", "direct", "--env", "A=1", "--"},
                                    {"global_batch_size=64"});
  expect_holds(batch.out,
               {"slurm       sbatch --nodes=2 ", "'--wrap=srun ", "primus-cli direct --env A=1 -- train pretrain"});
}

TEST_F(Launcher, ContainerPrintsWhatItWouldRun) {
  environment_["NCCL_DEBUG"] = "INFO";
  environment_["SLURM_JOB_ID"] = "77";
  environment_["DOCKER_IMAGE"] = "from/environment";
  folder_.write(
      "runner/.primus.yaml",
      "container: {options: {image: x, name: job, privileged: true, volume: [/a:/a]}, env: [MINE=1, UNSET_NAME]}\n");
  const ProgramResult result =
      train({"--dry-run", "container", "--volume", "/b:/b:ro", "--privileged", "--clean", "--"});
  EXPECT_EQ(result.code, 0) << result.err;
  expect_holds(result.out,
               {" run --rm --name=job-77 --privileged --volume=/a:/a --volume=/b:/b:ro ", " from/environment ",
                " direct --env MINE=1 --env NCCL_DEBUG=INFO ", "--clean: it would remove every container of the host"});
  EXPECT_EQ(result.out.find("UNSET_NAME"), std::string::npos);
}

}  // namespace
}  // namespace primus::cli
