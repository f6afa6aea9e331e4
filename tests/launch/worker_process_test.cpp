#include "launch/worker_process.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <chrono>

#include "base/error.hpp"
#include "config/test_folder.hpp"

namespace primus::launch {
namespace {

using test::ScopedVariable;
using test::TestFolder;

WorkerCommand shell(const std::string& script) {
  return {"/bin/sh", {"-c", script}, {}};
}

WorkerOutcome run(const std::vector<WorkerCommand>& commands) {
  return run_workers(commands);
}

TEST(RunWorkers, ExitCodeIsPassedOn) {
  EXPECT_EQ(run({shell("exit 0")}).exit_code, 0);
  EXPECT_EQ(run({shell("exit 2")}).exit_code, 2);
  EXPECT_EQ(run({shell("exit 2")}).signal, 0);
}

TEST(RunWorkers, ASignalGives128AndItsNumber) {
  const WorkerOutcome outcome = run({shell("kill -9 $$")});
  EXPECT_EQ(outcome.exit_code, 137);
  EXPECT_EQ(outcome.signal, 9);
}

TEST(RunWorkers, EnvironmentAndArguments) {
  WorkerCommand command = shell("test \"$PRIMUS_TEST_A\" = 'b c' && test \"$1\" = 'x y'");
  command.arguments.insert(command.arguments.end(), {"sh", "x y"});
  command.environment["PRIMUS_TEST_A"] = "b c";
  EXPECT_EQ(run({command}).exit_code, 0);
}

TEST(RunWorkers, WorkersHaveAGroupOfTheirOwn) {
  const TestFolder folder;
  const std::string file = (folder.path() / "group").string();
  EXPECT_EQ(run({shell("cut -d ' ' -f 5 /proc/$$/stat > " + file)}).exit_code, 0);
  EXPECT_NE(std::stoi(read_file(file)), getpgrp());
}

TEST(RunWorkers, WhenOneFailsTheOthersEnd) {
  const auto begin = std::chrono::steady_clock::now();
  const WorkerOutcome outcome = run({shell("exec sleep 60"), shell("exit 7"), shell("exec sleep 60")});
  EXPECT_EQ(outcome.exit_code, 7);
  EXPECT_EQ(outcome.worker, 1U);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
}

TEST(RunWorkers, WhatCannotBeStartedIsNamed) {
  EXPECT_THROW(run({{"/nowhere/primus-worker", {}, {}}}), UserError);
  // The one that was started before is gone when the error arrives.
  EXPECT_THROW(run({shell("exec sleep 60"), {"/nowhere/primus-worker", {}, {}}}), UserError);
}

TEST(RunWorkers, TheSignalMaskIsAsBefore) {
  sigset_t before;
  sigset_t after;
  sigprocmask(SIG_SETMASK, nullptr, &before);
  run({shell("exit 0")});
  sigprocmask(SIG_SETMASK, nullptr, &after);
  for (const int signal : {SIGINT, SIGTERM, SIGCHLD, SIGTSTP}) {
    EXPECT_EQ(sigismember(&before, signal), sigismember(&after, signal)) << signal;
  }
}

TEST(FindWorker, TheVariableNamesIt) {
  const TestFolder folder;
  const std::string program = folder.write("worker", "#!/bin/sh\n");
  const ScopedVariable named("PRIMUS_WORKER", program);
  try {
    find_worker();
    FAIL() << "a file that cannot be executed was accepted";
  } catch (const UserError& error) {
    EXPECT_EQ(std::string(error.what()),
              "worker program " + program + " cannot be executed: Permission denied (PRIMUS_WORKER names it)");
  }
  chmod(program.c_str(), 0755);
  EXPECT_EQ(find_worker(), program);
}

TEST(ShellText, QuotesWhatAShellWouldSplit) {
  EXPECT_EQ(shell_text({"/a/b", {"--x", "c d", "it's", ""}, {{"V", "1 2"}}}), R"(V='1 2' /a/b --x 'c d' 'it'\''s' '')");
}

}  // namespace
}  // namespace primus::launch
