// Standard streams that are closed or full, and names that a terminal would act on.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>

#include "cli/program.hpp"

namespace primus::cli {
namespace {

const std::string kProgram = std::string(PRIMUS_BIN_DIR) + "/primus-cli";
const std::string kQuickstart = std::string(PRIMUS_SOURCE_DIR) + "/examples/quickstart/deepseek_v2_tiny.yaml";

/// Exit code of the program behind a shell's redirections.
int code_of(const std::string& words, const std::string& redirections, const std::string& folder) {
  const std::string command = "cd " + folder + " && exec " + kProgram + " " + words + " " + redirections;
  const int status = std::system(command.c_str());
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

class Streams : public testing::Test {
 protected:
  std::string at(const std::string& name) const { return (folder_.path() / name).string(); }
  int code(const std::string& words, const std::string& redirections) const {
    return code_of(words, redirections, folder_.path().string());
  }

  test::TestFolder folder_;
};

TEST_F(Streams, AMessageThatNobodyHearsLeavesTheExitCode) {
  for (const char* ears : {"2>&-", "2>/dev/full", "<&- >&- 2>&-"}) EXPECT_EQ(code("trian", ears), 2) << ears;
}

TEST_F(Streams, AnAnswerThatCannotBeWrittenIsAFailure) {
  for (const char* words : {"--version", "--help", "config keys lr", "--format json config keys lr"}) {
    for (const char* mouth : {">&-", ">/dev/full"})
      EXPECT_EQ(code(words, std::string(mouth) + " 2>/dev/null"), 1) << words << mouth;
  }
  EXPECT_EQ(code("config show --config " + kQuickstart, ">/dev/full 2>/dev/null"), 1);
}

// A file that is opened must not get the number of a closed stream, and with it what is printed there.
TEST_F(Streams, NothingIsPrintedIntoFiles) {
  folder_.write("worker.sh", "#!/bin/sh\necho OF THE WORKER\n");
  ASSERT_EQ(std::system(("chmod +x " + at("worker.sh")).c_str()), 0);
  setenv("PRIMUS_WORKER", at("worker.sh").c_str(), 1);
  code("train pretrain --config " + kQuickstart + " --mock_data --export_config out.yaml", "<&- >&- 2>&-");
  unsetenv("PRIMUS_WORKER");
  EXPECT_EQ(read_file(at("out.yaml")).find("OF THE WORKER"), std::string::npos);
  EXPECT_EQ(read_file(at("out.yaml")).find("notes"), std::string::npos);
  EXPECT_EQ(read_file(at("output/quickstart/local/deepseek_v2_tiny/experiment.json")).front(), '{');
}

TEST_F(Streams, NamesOfFilesAreShownWithoutTheirControls) {
  const std::string name = "new\nline\x1b[31m.yaml";
  folder_.write(name, read_file(kQuickstart));
  const auto out_of = [&](const std::vector<std::string>& words) {
    return run_program(words, folder_.path().string()).out;
  };
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"config", "check", name},
        {"config", "diff", name, name},
        {"config", "diff", name, kQuickstart, "--lr", "1"},
        {"config", "explain", "lr", "--config", name},
        {"config", "show", "--origin", "--config", name},
        {"train", "pretrain", "--dry-run", "--mock_data", "--lr", "1", "--config", name}}) {
    const std::string out = out_of(words);
    EXPECT_NE(out.find("new\\x0aline\\x1b[31m.yaml"), std::string::npos) << out;
    EXPECT_EQ(out.find('\x1b'), std::string::npos) << out;
  }
  // What is shown is an experiment, also where a comment names the file.
  folder_.write("again.yaml", out_of({"config", "show", "--origin", "--config", name}));
  EXPECT_NE(out_of({"config", "check", "again.yaml"}).find("ok  again.yaml"), std::string::npos);
}

TEST_F(Streams, OddNames) {
  folder_.write("-dash.yaml", read_file(kQuickstart));
  EXPECT_EQ(code("config check -- -dash.yaml", ">/dev/null"), 0);
  EXPECT_EQ(code("config check ./-dash.yaml", ">/dev/null"), 0);
  std::filesystem::create_symlink("two.yaml", at("one.yaml"));
  std::filesystem::create_symlink("one.yaml", at("two.yaml"));
  const std::string loop = run_program({"config", "check", "one.yaml"}, folder_.path().string()).out;
  EXPECT_NE(loop.find("cannot be looked up"), std::string::npos) << loop;
  EXPECT_EQ(loop.find("did you mean 'one.yaml'"), std::string::npos) << "a file is no hint at itself: " << loop;
}

}  // namespace
}  // namespace primus::cli
