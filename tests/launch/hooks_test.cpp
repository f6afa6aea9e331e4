#include "launch/hooks.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <csignal>

#include "base/error.hpp"
#include "config/test_folder.hpp"

namespace primus::launch {
namespace {

using test::ScopedVariable;
using test::TestFolder;

std::vector<std::string> names(const std::vector<Script>& scripts) {
  std::vector<std::string> result;
  for (const Script& script : scripts) result.push_back(script.path.filename());
  return result;
}

TEST(FindHooks, CommonOnesFirstThenTheCommandsByName) {
  const TestFolder folder;
  for (const char* name : {"b.sh", "a.py", "README.md", "train/pretrain/0.sh", "train/posttrain/x.sh", "after/z.sh",
                           "train/pretrain/after/y.py"})
    folder.write(std::string("helpers/hooks/") + name, "");
  using Names = std::vector<std::string>;
  EXPECT_EQ(names(find_hooks(folder.path(), "train", "pretrain", ScriptKind::kHook)), (Names{"a.py", "b.sh", "0.sh"}));
  EXPECT_EQ(names(find_hooks(folder.path(), "train", "pretrain", ScriptKind::kAfterHook)), (Names{"z.sh", "y.py"}));
  EXPECT_TRUE(find_hooks("", "train", "pretrain", ScriptKind::kHook).empty());
  EXPECT_TRUE(find_hooks("/nowhere", "train", "pretrain", ScriptKind::kHook).empty());
}

class RunScript : public testing::Test {
 protected:
  ScriptWishes run(const std::string& text, ScriptKind kind = ScriptKind::kHook,
                   const std::string& name = "s.sh") const {
    ScriptWishes wishes;
    run_script({kind, folder_.write(name, text)}, std::vector<std::string>{"train", "a b"}, wishes);
    return wishes;
  }

  std::string error_of(const std::string& text, ScriptKind kind = ScriptKind::kHook) const {
    try {
      run(text, kind);
    } catch (const UserError& error) {
      EXPECT_EQ(error.exit_code(), ExitCode::kFailedWhileRunning);
      const std::string message = error.what();
      return message.substr(message.find("s.sh"));
    }
    return "";
  }

  TestFolder folder_;
};

TEST_F(RunScript, LinesOfTheProtocol) {
  const ScopedVariable unset("PRIMUS_TEST_HOOK", std::nullopt);
  const ScriptWishes wishes =
      run("echo extra.lr=3e-4\necho extra.data=a b=c\necho env.PRIMUS_TEST_HOOK=1 2\necho just talk\n"
          "echo env. follows\necho environment=1\necho extra.no value\necho extra.min_lr=--3\nprintf extra.last=end");
  EXPECT_EQ(wishes.words, (std::vector<std::string>{"--lr=3e-4", "--data=a b=c", "--min_lr=--3", "--last=end"}));
  EXPECT_EQ(wishes.environment.size(), 1U);
  EXPECT_STREQ(std::getenv("PRIMUS_TEST_HOOK"), "1 2");
  EXPECT_EQ(wishes.sources.at("--lr"), "hook s.sh");
  EXPECT_EQ(wishes.sources.at("PRIMUS_TEST_HOOK"), "hook s.sh");
}

TEST_F(RunScript, MalformedLinesOfTheProtocolAreErrors) {
  for (const char* line : {"env.1X=3", "env.=3", "env. = 3", "env.A-B=3", "env.A.B=3", "env.A =3", "env.A", "env."}) {
    EXPECT_EQ(error_of("echo '" + std::string(line) + "'"),
              "s.sh printed '" + std::string(line) + "' (expected env.NAME=VALUE); nothing was started");
  }
  for (const char* line :
       {"extra.=3", "extra.lr = 3", "extra.l r=3", "extra.-lr=3", "extra.a.=3", "extra.lr", "extra."}) {
    EXPECT_EQ(error_of("echo '" + std::string(line) + "'"),
              "s.sh printed '" + std::string(line) + "' (expected extra.KEY=VALUE); nothing was started");
  }
  EXPECT_EQ(std::getenv("A"), nullptr);
  // A script that failed by itself says more than its last line does.
  EXPECT_EQ(error_of("echo env.1X=3; exit 4"), "s.sh failed with exit code 4; nothing was started");
}

TEST_F(RunScript, AnOverrideBehindTheCommandSaysThatItHasNoEffect) {
  testing::internal::CaptureStdout();
  EXPECT_TRUE(run("echo extra.lr=3", ScriptKind::kAfterHook).words.empty());
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "hook s.sh: extra.lr has no effect behind the command\n");
}

TEST_F(RunScript, SecretsOfHooksAreNotShown) {
  const ScopedVariable unset("HF_TOKEN", std::nullopt);
  testing::internal::CaptureStdout();
  run("echo env.HF_TOKEN=abc");
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "hook s.sh: HF_TOKEN=(hidden)\n");
}

TEST_F(RunScript, ArgumentsAndPython) {
  EXPECT_EQ(run("echo extra.second=$2").words[0], "--second=a b");
  EXPECT_EQ(run("import sys; print('extra.first=' + sys.argv[1])", ScriptKind::kHook, "s.py").words[0],
            "--first=train");
}

TEST_F(RunScript, FailuresSayWhatAndWhat) {
  EXPECT_EQ(error_of("exit 3"), "s.sh failed with exit code 3; nothing was started");
  EXPECT_EQ(error_of("exit 2"), "s.sh failed with exit code 2; nothing was started");
  EXPECT_EQ(error_of("exit 2", ScriptKind::kPatch), "");
  EXPECT_EQ(error_of("exit 3", ScriptKind::kAfterHook), "s.sh failed with exit code 3; the command itself had ended");
  EXPECT_EQ(error_of("kill -9 $$"), "s.sh was ended by signal 9; nothing was started");
  ScriptWishes wishes;
  EXPECT_THROW(run_script({ScriptKind::kHook, "/nowhere/s.sh"}, {}, wishes), UserError);
}

// A script of that name was meant; a folder or a pipe was not.
TEST(FindHooks, ALinkThatLeadsNowhereIsToldWhenItIsRun) {
  const TestFolder folder;
  folder.write("helpers/hooks/keep", "");
  const auto hooks = folder.path() / "helpers/hooks";
  std::filesystem::create_symlink("/nowhere.sh", hooks / "lost.sh");
  std::filesystem::create_directory(hooks / "folder.sh");
  ASSERT_EQ(mkfifo((hooks / "pipe.sh").c_str(), 0600), 0);
  const std::vector<Script> found = find_hooks(folder.path(), "train", "pretrain", ScriptKind::kHook);
  ASSERT_EQ(names(found), std::vector<std::string>{"lost.sh"});
  ScriptWishes wishes;
  EXPECT_THROW(run_script(found[0], {}, wishes), UserError);
}

TEST_F(RunScript, AValueWithANulByteIsNoVariable) {
  EXPECT_NE(error_of("printf 'env.PRIMUS_TEST_HOOK=a\\0b\\n'").find("(expected env.NAME=VALUE)"), std::string::npos);
  EXPECT_EQ(std::getenv("PRIMUS_TEST_HOOK"), nullptr);
}

TEST_F(RunScript, AFailureLeavesNoWishes) {
  const ScopedVariable unset("PRIMUS_TEST_HOOK", std::nullopt);
  ScriptWishes wishes;
  const Script patch{ScriptKind::kPatch, folder_.write("p.sh", "echo env.PRIMUS_TEST_HOOK=1\necho extra.lr=1\nexit 2")};
  run_script(patch, {}, wishes);
  EXPECT_TRUE(wishes.words.empty());
  EXPECT_EQ(std::getenv("PRIMUS_TEST_HOOK"), nullptr);
}

}  // namespace
}  // namespace primus::launch
