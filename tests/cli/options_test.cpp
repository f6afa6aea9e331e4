// Options of every command: whatever is wrong with one is told in this program's words, not in those of its parser.
#include <gtest/gtest.h>

#include <algorithm>
#include <regex>

#include "base/text.hpp"
#include "cli/program.hpp"

namespace primus::cli {
namespace {

using Words = std::vector<std::string>;

const std::string kQuickstart = std::string(PRIMUS_SOURCE_DIR) + "/examples/quickstart/deepseek_v2_tiny.yaml";

/// An option as a command's help shows it.
struct ShownOption {
  std::string name;
  std::string type;  // "": a switch
  bool takes_many = false;
  bool is_required = false;
};

std::vector<ShownOption> options_of(const Words& command) {
  Words words = command;
  words.push_back("--help");
  std::vector<ShownOption> options;
  for (const std::string& line : split(run_program(words).out, '\n')) {
    const std::size_t dashes = line.find("--");
    if (!line.starts_with("  -") || line.starts_with("  --key")) continue;
    std::string rest = line.substr(dashes, line.find("  ", dashes) - dashes);
    const std::size_t space = rest.find(' ');
    ShownOption option{rest.substr(0, std::min(space, rest.find(','))), "", false, false};
    if (space != std::string::npos) option.type = rest.substr(space + 1);
    // "Excludes: --rank" is no type; "F,B,W x 3" and "DIR ..." take several, and --sweep may stand there several times.
    option.type = option.type.substr(0, option.type.find("Excludes:"));
    option.takes_many = option.type.find("...") != std::string::npos || option.type.find(" x ") != std::string::npos ||
                        option.name == "--sweep";
    option.is_required = option.type.find("REQUIRED") != std::string::npos;
    if (option.name != "--help") options.push_back(option);
  }
  return options;
}

ProgramResult run_with(const Words& command, const Words& more) {
  Words words = command;
  words.insert(words.end(), more.begin(), more.end());
  return run_program(words);
}

void expect_own_words(const ProgramResult& result, const std::string& part, const std::string& what) {
  EXPECT_EQ(result.code, 2) << what << result.err;
  EXPECT_NE(result.err.find(part), std::string::npos) << what << ": " << result.err;
  for (const char* theirs :
       {"At Most", "At Least", "required but", "Could not convert", " required ", "not in {", "RunTime"})
    EXPECT_EQ(result.err.find(theirs), std::string::npos) << what << ": " << result.err;
}

TEST(Options, OfEveryCommand) {
  int num_options = 0;
  for (const Words& command : all_commands()) {
    for (const ShownOption& option : options_of(command)) {
      const std::string what = testing::PrintToString(command) + " " + option.name;
      ++num_options;
      if (option.type.empty()) {
        expect_own_words(run_with(command, {option.name + "=maybe"}), option.name + ": takes no value (found 'maybe')",
                         what);
        continue;
      }
      expect_own_words(run_with(command, {option.name}), option.name + ": needs a value", what);
      expect_own_words(run_with(command, {option.name + "="}), option.name + ": needs a value", what);
      // The next option is not its value.
      expect_own_words(run_with(command, {option.name, "--format"}), option.name + ": needs a value", what);
      if (option.takes_many) continue;
      expect_own_words(run_with(command, {option.name, "1", option.name, "1"}), option.name + ": is given twice", what);
    }
  }
  EXPECT_GT(num_options, 100);
}

TEST(Options, MissingOnesAreToldTogether) {
  for (const Words& command : all_commands()) {
    std::string expected;
    for (const ShownOption& option : options_of(command)) {
      if (option.is_required) expected += (expected.empty() ? "" : ".*") + option.name + ": is missing";
    }
    if (expected.empty()) continue;
    const ProgramResult result = run_program(command);
    EXPECT_EQ(result.code, 2);
    std::string one_line = result.err;
    std::replace(one_line.begin(), one_line.end(), '\n', ' ');
    EXPECT_TRUE(std::regex_search(one_line, std::regex(expected))) << expected << "\n" << result.err;
  }
}

TEST(Options, WrongValues) {
  struct Case {
    Words words;
    std::string message;
  };
  const std::string input = "/dev/null";
  const Words prepare = {"data", "prepare", "--input", input, "--output-prefix", "x"};
  const auto with = [](Words words, const Words& more) {
    words.insert(words.end(), more.begin(), more.end());
    return words;
  };
  for (const Case& wrong : {
           Case{{"config", "show", "--config", kQuickstart, "--format", "xml"},
                "--format: wrong value (expected one of yaml, json, found 'xml'); see primus-cli config show --help"},
           Case{{"config", "keys", "--format", "xml"},
                "--format: wrong value (expected one of text, json, markdown, found 'xml')"},
           Case{{"config", "show", "--config", kQuickstart, "--world-size", "x"},
                "--world-size: not a number of processes (expected integer >= 1, found 'x')"},
           Case{{"config", "show", "--config", kQuickstart, "--world-size", "0"},
                "--world-size: not a number of processes"},
           Case{with(prepare, {"--workers", "x"}), "--workers: wrong type (expected an integer, found 'x')"},
           Case{with(prepare, {"--documents", "page"}),
                "--documents: wrong value (expected one of auto, file, line, json, found 'page')"},
           Case{{"data", "info", "x", "--samples", "-1"},
                "--samples: wrong value (expected an integer >= 0, found '-1')"},
           Case{{"view", "loss", "--run", "x", "--of", "gain"}, "--of: wrong value (expected one of loss, "},
           Case{{"view", "pipeline", "--stages", "0"},
                "--stages: wrong value (expected an integer from 1 to 1000000, found '0')"},
           Case{{"view", "pipeline", "--message", "x"},
                "--message: wrong value (expected a number from 0 to 1e9, found 'x')"},
           Case{{"view", "pipeline", "--colour", "red"},
                "--colour: wrong value (expected one of pass, micro-batch, found 'red')"},
           Case{{"data", "shuffle", "--input", "a", "--output-prefix", "b", "--seed", "x"},
                "--seed: wrong type (expected an integer, found 'x')"},
           Case{{"view", "pipeline", "--stages", "4", "--times", "1,2"}, "--times: wrong number of values"},
           Case{{"checkpoint", "prune", "a", "--keep-last", "-1"},
                "--keep-last: wrong value (expected a number above 0, found '-1')"},
           Case{{"checkpoint", "diff", "a", "b", "--tolerance", "x"},
                "--tolerance: wrong value (expected a number >= 0, found 'x')"},
           Case{{"checkpoint", "import", "--from", "a", "--to", "b", "--dtype", "int4"},
                "--dtype: wrong value (expected one of keep, fp32, bf16, fp16, found 'int4')"},
       }) {
    expect_own_words(run_program(wrong.words), "error: command line: " + wrong.message,
                     testing::PrintToString(wrong.words));
  }
}

}  // namespace
}  // namespace primus::cli
