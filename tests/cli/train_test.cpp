// Starting the worker, with scripts in its place.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <chrono>
#include <csignal>
#include <thread>

#include "base/folder_lock.hpp"
#include "cli/program.hpp"
#include "config/experiment.hpp"

namespace primus::cli {
namespace {

const std::string kQuickstart = std::string(PRIMUS_SOURCE_DIR) + "/examples/quickstart/deepseek_v2_tiny.yaml";
constexpr const char* kRun = "output/quickstart/local/deepseek_v2_tiny";

// Says what it gets, and ends as it is told to.
constexpr const char* kListening = R"(trap 'echo got INT; exit 130' INT
trap 'echo got TERM; echo TERM > ended; exit 0' TERM
trap 'echo got HUP; exit 129' HUP
trap 'echo got USR1' USR1
echo ready
while :; do sleep 0.05; done
)";

class Train : public testing::Test {
 protected:
  std::map<std::string, std::string> with_worker(const std::string& script) const {
    const std::string worker = folder_.write("worker.sh", "#!/bin/sh\n" + script);
    chmod(worker.c_str(), 0755);
    return {{"PRIMUS_WORKER", worker}};
  }

  static std::vector<std::string> words() {
    return {"direct",   "--env",     "PRIMUS_TEST_A=b c", "--",   "train", "pretrain",
            "--config", kQuickstart, "--mock_data",       "--lr", "3e-3"};
  }

  ProgramResult run(const std::string& script) const {
    return run_program(words(), folder_.path().string(), with_worker(script));
  }

  test::TestFolder folder_;
};

TEST_F(Train, WritesTheRunFolderAndPassesTheExperiment) {
  const ProgramResult result = run("echo \"$@ $PRIMUS_TEST_A\"\n");
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_NE(result.out.find(std::string("--experiment ") + kRun + "/experiment.json b c\n"), std::string::npos)
      << result.out;
  const auto experiment = config::Experiment::from_json(read_file(folder_.path() / kRun / "experiment.json"));
  EXPECT_DOUBLE_EQ(experiment.get_double("lr"), 3e-3);
  EXPECT_EQ(experiment.setting("lr").origin.layer, config::Layer::kCommandLine);
  EXPECT_NE(read_file(folder_.path() / kRun / "experiment.yaml").find("lr: 0.003  # command line"), std::string::npos);
}

TEST_F(Train, NotesComeBeforeTheWorkersFirstLine) {
  const ProgramResult result = run("echo first\n");
  const std::size_t note = result.out.find("tokenizer_type: ByteTokenizer -> NullTokenizer");
  ASSERT_NE(note, std::string::npos) << result.out;
  EXPECT_LT(note, result.out.find("first"));
}

TEST_F(Train, ExitCodeIsTheWorkers) {
  EXPECT_EQ(run("exit 1\n").code, 1);
  EXPECT_EQ(run("exit 2\n").code, 2);
}

TEST_F(Train, AKilledWorkerIsReported) {
  const ProgramResult result = run("kill -9 $$\n");
  EXPECT_EQ(result.code, 137);
  EXPECT_EQ(result.err,
            "error: the worker was ended by signal 9 (Killed)\n"
            "       often the system's answer to a lack of memory: see `dmesg`\n"
            "       run folder " +
                std::string(kRun) + "\n");
}

TEST_F(Train, DrawsTheLossCurve) {
  const ProgramResult result =
      run("echo '{\"iteration\": 10, \"lm_loss\": 5.9, \"bigram_loss\": 2.57}' > " + std::string(kRun) +
          "/metrics.jsonl\n"
          "echo '{\"iteration\": 20, \"lm_loss\": null}' >> " +
          kRun +
          "/metrics.jsonl\n"
          "echo '{\"iteration\": 20, \"eval_loss\": 3.1}' >> " +
          kRun +
          "/metrics.jsonl\n"
          "echo '{\"iteration\": 30, \"lm_loss\": 2.1}' >> " +
          kRun +
          "/metrics.jsonl\n"
          "printf '{\"iteration\": 40, \"lm_lo' >> " +
          kRun + "/metrics.jsonl\n");
  EXPECT_EQ(result.code, 0);
  EXPECT_NE(result.out.find(std::string("loss curve  ") + kRun + "/loss.svg"), std::string::npos) << result.out;
  EXPECT_NE(read_file(folder_.path() / kRun / "loss.svg").find("<svg"), std::string::npos);
  const ProgramResult view =
      run_program({"view", "loss", "--run", kRun, "--out", "other.svg"}, folder_.path().string());
  EXPECT_EQ(view.code, 0) << view.err;
  EXPECT_EQ(view.out,
            "training loss  5.9000 -> 2.1000 over 2 log lines\nheld-out loss  3.1000\ncurve          other.svg\n");
}

TEST_F(Train, ARunWithoutLossIsDoneAllTheSame) {
  const ProgramResult result = run("echo '{}' > " + std::string(kRun) + "/metrics.jsonl\n");
  EXPECT_EQ(result.code, 0);
  EXPECT_NE(result.err.find("note: no loss curve: "), std::string::npos);
}

TEST_F(Train, MissingWorkerIsNamed) {
  const ProgramResult result = run_program(words(), folder_.path().string(), {{"PRIMUS_WORKER", "/nowhere/worker"}});
  EXPECT_EQ(result.code, 2);
  EXPECT_EQ(
      result.err,
      "error: worker program /nowhere/worker cannot be executed: No such file or directory (PRIMUS_WORKER names it)\n");
  EXPECT_FALSE(std::filesystem::exists(folder_.path() / "output"));
}

TEST_F(Train, AGpuThatIsNotThereIsNamedBeforeTheStart) {
  // Beside the stand-in worker there is no GPU half, whatever this build has.
  std::vector<std::string> gpu = words();
  gpu.insert(gpu.begin() + 1, {"--device", "cuda"});
  const ProgramResult result = run_program(gpu, folder_.path().string(), with_worker("touch started\n"));
  EXPECT_EQ(result.code, 2);
  EXPECT_NE(result.err.find("--device: this build has no CUDA half (expected cpu, found cuda)"), std::string::npos)
      << result.err;
  EXPECT_FALSE(std::filesystem::exists(folder_.path() / "started"));
  // A plan may be made for another machine.
  gpu.insert(gpu.begin(), "--dry-run");
  const ProgramResult plan = run_program(gpu, folder_.path().string());
  EXPECT_EQ(plan.code, 0) << plan.err;
  EXPECT_NE(plan.out.find("--device cuda"), std::string::npos) << plan.out;
}

TEST_F(Train, RefusedBeforeAnythingIsStarted) {
  const ProgramResult result =
      run_program({"train", "pretrain", "--config", kQuickstart, "--mock_data", "--is_hybrid_model"},
                  folder_.path().string(), with_worker("touch started\n"));
  EXPECT_EQ(result.code, 2);
  EXPECT_FALSE(std::filesystem::exists(folder_.path() / "started"));
  EXPECT_FALSE(std::filesystem::exists(folder_.path() / "output"));
}

TEST_F(Train, ARunThatHoldsTheFolderKeepsItsExperiment) {
  ASSERT_EQ(run("exit 0\n").code, 0);
  const std::string before = read_file(folder_.path() / kRun / "experiment.json");
  const FolderLock other_run(folder_.path() / kRun);
  std::vector<std::string> changed = words();
  changed.back() = "2e-3";
  const ProgramResult result = run_program(changed, folder_.path().string(), with_worker("touch started\n"));
  EXPECT_EQ(result.code, 1);
  EXPECT_NE(result.err.find("another run writes to this folder now"), std::string::npos) << result.err;
  EXPECT_EQ(read_file(folder_.path() / kRun / "experiment.json"), before);
  EXPECT_FALSE(std::filesystem::exists(folder_.path() / "started"));
}

TEST_F(Train, DebugShowsTheWorkersCommandAndTellsTheWorker) {
  std::vector<std::string> debug = words();
  debug.insert(debug.begin(), "--debug");
  const ProgramResult result =
      run_program(debug, folder_.path().string(), with_worker("echo level $PRIMUS_LOG_LEVEL\n"));
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_NE(result.out.find("worker command  "), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("level DEBUG\n"), std::string::npos) << result.out;
}

TEST_F(Train, WhatIsReadOnlyBesidePlannedFeaturesIsSaidToBeSo) {
  std::vector<std::string> detail = words();
  detail.insert(detail.end(), {"--conv_L_cache", "5"});
  const ProgramResult started = run_program(detail, folder_.path().string(), with_worker("exit 0\n"));
  EXPECT_EQ(started.code, 0) << started.err;
  EXPECT_NE(started.out.find("conv_L_cache: read only beside lfm_layer_types"), std::string::npos) << started.out;
  detail.insert(detail.begin(), "--dry-run");
  const ProgramResult plan = run_program(detail, folder_.path().string());
  EXPECT_NE(plan.out.find("[no effect: read only beside lfm_layer_types]"), std::string::npos) << plan.out;
}

TEST_F(Train, TokensAreHidden) {
  const ProgramResult plan = run_program({"--dry-run", "direct", "--env", "HF_TOKEN=abcsecret", "--", "train",
                                          "pretrain", "--config", kQuickstart, "--mock_data"},
                                         folder_.path().string());
  EXPECT_EQ(plan.code, 0) << plan.err;
  EXPECT_EQ(plan.out.find("abcsecret"), std::string::npos) << plan.out;
  EXPECT_NE(plan.out.find("HF_TOKEN=(hidden)"), std::string::npos) << plan.out;
}

TEST_F(Train, PathsThatCannotBeLookedUpAreConfigurationErrors) {
  std::filesystem::create_symlink("loop.yaml", folder_.path() / "loop.yaml");
  for (const std::string& path : {std::string("loop.yaml"), std::string(300, 'x') + ".yaml"}) {
    const ProgramResult result = run_program({"config", "check", kQuickstart, path}, folder_.path().string());
    EXPECT_EQ(result.code, 2) << result.err;
    EXPECT_NE(result.out.find("2 checked, 1 failed"), std::string::npos) << result.out << result.err;
  }
}

TEST_F(Train, SignalsReachTheWorker) {
  struct Case {
    int signal;
    const char* text;
    int code;
  };
  for (const Case& expected :
       {Case{SIGINT, "got INT", 130}, Case{SIGTERM, "got TERM", 0}, Case{SIGHUP, "got HUP", 129}}) {
    Program program(words(), folder_.path().string(), with_worker(kListening));
    ASSERT_TRUE(program.has_printed("ready"));
    program.send(SIGUSR1);
    EXPECT_TRUE(program.has_printed("got USR1"));
    program.send(expected.signal);
    const ProgramResult result = program.wait();
    EXPECT_EQ(result.code, expected.code);
    EXPECT_NE(result.out.find(expected.text), std::string::npos) << result.out;
  }
}

TEST_F(Train, StopAndContinueStopAndContinueBoth) {
  Program program(words(), folder_.path().string(),
                  with_worker("echo ready\nwhile :; do date +%N > ticks; sleep 0.05; done\n"));
  ASSERT_TRUE(program.has_printed("ready"));
  program.send(SIGTSTP);
  ASSERT_TRUE(program.is_stopped());
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  const std::string stopped = read_file(folder_.path() / "ticks");
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  EXPECT_EQ(read_file(folder_.path() / "ticks"), stopped);
  program.send(SIGCONT);
  bool ticks = false;
  for (int i = 0; i < 200 && !ticks; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    const std::string now = read_file(folder_.path() / "ticks");
    ticks = !now.empty() && now != stopped;
  }
  EXPECT_TRUE(ticks);
  program.send(SIGTERM);
  EXPECT_EQ(program.wait().code, 143);
}

TEST_F(Train, AKilledLauncherTakesTheWorkerAlong) {
  Program program(words(), folder_.path().string(), with_worker(kListening));
  ASSERT_TRUE(program.has_printed("ready"));
  program.send(SIGKILL);
  EXPECT_EQ(program.wait().code, 137);
  bool ended = false;
  for (int i = 0; i < 500 && !ended; ++i) {
    ended = std::filesystem::exists(folder_.path() / "ended");
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  EXPECT_TRUE(ended);
}

TEST_F(Train, ATerminalStaysATerminal) {
  if (!has_terminals()) GTEST_SKIP() << "no pseudo-terminals here (is /dev/pts mounted?)";
  Program program(words(), folder_.path().string(), with_worker("test -t 1 && echo terminal\n"),
                  Program::Output::kTerminal);
  const ProgramResult result = program.wait();
  EXPECT_EQ(result.code, 0);
  EXPECT_NE(result.out.find("terminal\r\n"), std::string::npos) << result.out;
}

// Runs on real data files, with faults in them.
class TrainData : public Train {
 protected:
  TrainData() {
    folder_.write("text/a.txt", std::string(3000, 'a') + "end\n");
    const ProgramResult result =
        run_program({"data", "prepare", "--input", "text", "--output-prefix", "out/train"}, folder_.path().string());
    EXPECT_EQ(result.code, 0) << result.err;
  }

  ProgramResult train(const std::vector<std::string>& overrides) const {
    std::vector<std::string> all = {
        "train", "pretrain", "--config", kQuickstart, "--eval_iters", "0", "valid_data_path=null"};
    all.insert(all.end(), overrides.begin(), overrides.end());
    return run_program(all, folder_.path().string(), with_worker("touch started\n"));
  }

  /// Refused with 2, before anything is started or written, with a message that holds `text`.
  void expect_refused(const std::vector<std::string>& overrides, const std::string& text) const {
    const ProgramResult result = train(overrides);
    EXPECT_EQ(result.code, 2) << result.err;
    EXPECT_NE(result.err.find(text), std::string::npos) << result.err;
    EXPECT_FALSE(std::filesystem::exists(folder_.path() / "started")) << text;
    EXPECT_FALSE(std::filesystem::exists(folder_.path() / "output")) << text;
  }

  static constexpr const char* kGood = "out/train_text_document";
};

TEST_F(TrainData, GoodDataStarts) {
  EXPECT_EQ(train({"--train_data_path", kGood}).code, 0);
  EXPECT_TRUE(std::filesystem::exists(folder_.path() / "started"));
}

TEST_F(TrainData, BadListsAreRefusedBeforeTheStart) {
  const std::string good = kGood;
  expect_refused({"train_data_path=-1 " + good + " 2 " + good},
                 "command line: train_data_path: has a weight that is not a number >= 0");
  expect_refused({"train_data_path=0.5 " + good + " " + good},
                 "train_data_path: gives some prefixes a weight and others none");
  expect_refused({"train_data_path=0 " + good}, "train_data_path: has no weight above zero");
}

TEST_F(TrainData, DamagedFilesAreRefusedBeforeTheStart) {
  const std::string bin = read_file(folder_.path() / "out/train_text_document.bin");
  const std::string idx = read_file(folder_.path() / "out/train_text_document.idx");
  folder_.write("out/short.bin", bin.substr(0, 100));
  folder_.write("out/short.idx", idx);
  expect_refused({"--train_data_path", "out/short"}, "out/short.bin: has 100 bytes, but its index tells of");
  folder_.write("out/torn.bin", bin);
  folder_.write("out/torn.idx", idx.substr(0, 30));
  expect_refused({"--train_data_path", "out/torn"}, "out/torn.idx: has 30 bytes, fewer than the 34");
  folder_.write("out/other.bin", bin);
  folder_.write("out/other.idx", std::string(idx.size(), 'x'));
  expect_refused({"--train_data_path", "out/other"}, "does not begin with MMIDIDX");
}

TEST_F(TrainData, WrongVocabularyAndEmptySplitsAreRefusedBeforeTheStart) {
  std::string bin = read_file(folder_.path() / "out/train_text_document.bin");
  bin[1] = 40;  // token 97 + 40 · 256
  folder_.write("out/big.bin", bin);
  folder_.write("out/big.idx", read_file(folder_.path() / "out/train_text_document.idx"));
  expect_refused({"--train_data_path", "out/big"}, "out/big.bin holds token 10337, outside the vocabulary of 257 ids");
  expect_refused({"train_data_path=null", "--data_path", kGood, "--split", "0,1,0"}, "holds no sample to train on");
  folder_.write("small/a.txt", "few words\n");
  ASSERT_EQ(
      run_program({"data", "prepare", "--input", "small", "--output-prefix", "out/small"}, folder_.path().string())
          .code,
      0);
  expect_refused({"--train_data_path", "out/small_text_document"}, "the largest file has 11 tokens");
}

TEST_F(TrainData, DryRunsWriteNothing) {
  const auto quiet = [&](std::vector<std::string> command, const std::string& text) {
    for (const bool in_front : {true, false}) {
      std::vector<std::string> all = command;
      all.insert(in_front ? all.begin() : all.end(), "--dry-run");
      const ProgramResult result = run_program(all, folder_.path().string());
      EXPECT_EQ(result.code, 0) << result.err;
      EXPECT_NE(result.out.find(text), std::string::npos) << result.out;
    }
  };
  quiet({"data", "prepare", "--input", "text", "--output-prefix", "new/train"},
        "would read 1 file, 2.93 KiB\nwould write new/train_text_document.bin\n");
  EXPECT_FALSE(std::filesystem::exists(folder_.path() / "new"));
  folder_.write("run/metrics.jsonl", "{\"iteration\": 10, \"lm_loss\": 5.9}\n");
  quiet({"view", "loss", "--run", "run"}, "would draw run/loss.svg from run/metrics.jsonl\n");
  EXPECT_FALSE(std::filesystem::exists(folder_.path() / "run/loss.svg"));
}

TEST_F(Train, NamesThatAreNoTextAreRefused) {
  for (const char* option : {"--exp_name", "--workspace", "--tokenizer_model"}) {
    std::vector<std::string> bad = words();
    bad.insert(bad.end(), {option,
                           "a\xFF"
                           "b"});
    const ProgramResult result = run_program(bad, folder_.path().string(), with_worker("touch started\n"));
    EXPECT_EQ(result.code, 2) << option;
    EXPECT_NE(result.err.find("not valid UTF-8"), std::string::npos) << result.err;
  }
  std::vector<std::string> null = words();
  null.insert(null.end(), {"--workspace", "null"});
  EXPECT_EQ(run_program(null, folder_.path().string(), with_worker("touch started\n")).code, 2);
  EXPECT_FALSE(std::filesystem::exists(folder_.path() / "started"));
}

TEST(Data, PrepareWritesTrainingData) {
  const test::TestFolder folder;
  folder.write("text/a.txt", std::string(1000, 'a') + "end\n");
  folder.write("text/b.txt", "something else\n");
  const ProgramResult result =
      run_program({"data", "prepare", "--input", "text", "--output-prefix", "out/train"}, folder.path().string());
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_NE(result.out.find("wrote out/train_text_document.bin\n"), std::string::npos) << result.out;
  EXPECT_EQ(result.err, "");
  EXPECT_TRUE(std::filesystem::exists(folder.path() / "out/train_text_document.idx"));
  EXPECT_EQ(run_program({"data", "prepare", "--input", "nowhere", "--output-prefix", "x"}, folder.path().string()).code,
            2);
}

}  // namespace
}  // namespace primus::cli
