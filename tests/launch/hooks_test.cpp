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
      run("echo extra.lr=3e-4\necho extra.data=a b=c\necho env.PRIMUS_TEST_HOOK=1 2\necho just talk\necho env.=x\n"
          "echo extra.no value\nprintf extra.last=end");
  EXPECT_EQ(wishes.words, (std::vector<std::string>{"--lr", "3e-4", "--data", "a b=c", "--last", "end"}));
  EXPECT_EQ(wishes.environment.size(), 1U);
  EXPECT_STREQ(std::getenv("PRIMUS_TEST_HOOK"), "1 2");
}

TEST_F(RunScript, ArgumentsAndPython) {
  EXPECT_EQ(run("echo extra.second=$2").words[1], "a b");
  EXPECT_EQ(run("import sys; print('extra.first=' + sys.argv[1])", ScriptKind::kHook, "s.py").words[1], "train");
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
