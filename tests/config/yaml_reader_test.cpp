#include "config/yaml_reader.hpp"

#include <gtest/gtest.h>

namespace primus::config {
namespace {

struct Read {
  Node root;
  std::string problems;
};

Read read(const std::string& text) {
  std::vector<Problem> problems;
  Read result;
  result.root = read_yaml(text, "f.yaml", problems);
  for (const Problem& problem : problems) result.problems += to_text(problem) + "\n";
  return result;
}

TEST(YamlReader, EveryEntryKnowsItsLine) {
  const Read result = read("a: 1\nb:\n  c: two\n  d: [3, 4]\ne: >\n  folded\n");
  EXPECT_EQ(result.problems, "");
  EXPECT_EQ(result.root.find("a")->origin.line, 1);
  EXPECT_EQ(result.root.find("b")->origin.line, 2);
  EXPECT_EQ(result.root.find("b")->find("d")->origin.line, 4);
  EXPECT_EQ(result.root.find("b")->find("d")->items.size(), 2U);
  EXPECT_EQ(result.root.find("e")->origin.line, 5);
  EXPECT_EQ(result.root.find("e")->style, Node::Style::kQuoted);
}

TEST(YamlReader, QuotesMakeTexts) {
  const Read result = read("a: \"12\"\nb: 12\nc: '~'\nd:\ne: !!str 5\n");
  EXPECT_EQ(untyped_value(*result.root.find("a")), Value{std::string("12")});
  EXPECT_EQ(untyped_value(*result.root.find("b")), Value{std::int64_t{12}});
  EXPECT_FALSE(result.root.find("c")->is_null());
  EXPECT_TRUE(result.root.find("d")->is_null());
  EXPECT_EQ(untyped_value(*result.root.find("e")), Value{std::string("5")});
}

TEST(YamlReader, AnchorsAliasesAndMergeKeys) {
  const Read result = read("base: &base {lr: 1, seed: 2}\nrun:\n  <<: *base\n  lr: 3\nsame: *base\n");
  EXPECT_EQ(result.problems, "");
  EXPECT_EQ(result.root.find("run")->find("lr")->text, "3");
  EXPECT_EQ(result.root.find("run")->find("seed")->text, "2");
  EXPECT_EQ(result.root.find("same")->find("seed")->text, "2");
}

TEST(YamlReader, WindowsLineEndsAndByteOrderMark) {
  const Read result = read("\xEF\xBB\xBFlr: 1e-5\r\nseed: 3\r\n");
  EXPECT_EQ(result.problems, "");
  EXPECT_EQ(result.root.find("lr")->text, "1e-5");
  EXPECT_EQ(result.root.find("seed")->text, "3");
}

TEST(YamlReader, Faults) {
  EXPECT_EQ(read("lr: 1\nseed: 2\nlr: 3\n").problems,
            "f.yaml:3: lr: written twice, first at line 1; keep one of the two\n");
  EXPECT_EQ(read("a: [1, 2\nb: 3\n").problems,
            "f.yaml:2:2: not valid YAML: '[' is never closed\n      b: 3\n       ^\n");
  EXPECT_EQ(read("a: 1\n---\nb: 2\n").problems, "f.yaml: holds more than one YAML document (expected one)\n");
  EXPECT_EQ(read("[a]: 1\n").problems, "f.yaml:1: a key must be a plain name\n");
  EXPECT_EQ(read(std::string("a: 1\nb: \0\n", 9)).problems, "f.yaml:2: a NUL byte: this is no text file\n");
  EXPECT_EQ(read("a: *nowhere\n").problems,
            "f.yaml:1:4: not valid YAML: an alias (*name) of an anchor (&name) that is not above it\n      a: "
            "*nowhere\n         ^\n");
}

// A block ends in a line break that belongs to the notation; one that is written in quotes is part of the text.
TEST(YamlReader, BlocksHaveNoLineBreakAtTheirEnd) {
  const std::string text =
      "a: |\n  3e-4\nb: >\n  ([0]*1\n  +[1]*2)\nc: |+\n  x\n\n\nd: |\n  1\n  2\ne: \"x\\n\"\nf: >-\n  y\ng:\n  - |\n   "
      " z\n";
  for (const std::string& lines : {text, "\xEF\xBB\xBF" + text}) {
    const Read result = read(lines);
    EXPECT_EQ(result.problems, "");
    EXPECT_EQ(result.root.find("a")->text, "3e-4");
    EXPECT_EQ(result.root.find("b")->text, "([0]*1 +[1]*2)");
    EXPECT_EQ(result.root.find("c")->text, "x");
    EXPECT_EQ(result.root.find("d")->text, "1\n2");
    EXPECT_EQ(result.root.find("e")->text, "x\n");
    EXPECT_EQ(result.root.find("f")->text, "y");
    EXPECT_EQ(result.root.find("g")->items.at(0).text, "z");
  }
}

TEST(YamlReader, HostileSizesEndEarly) {
  EXPECT_EQ(read(std::string((1 << 20) + 1, 'a')).problems,
            "f.yaml: too large for a configuration file (expected at most 1 MiB)\n");
  EXPECT_NE(read(std::string(10'000, '[')).problems, "");
  std::string nested;
  for (int depth = 0; depth < 100; ++depth) nested += std::string(static_cast<std::size_t>(depth), ' ') + "a:\n";
  EXPECT_EQ(read(nested).problems, "f.yaml:65: nested deeper than 64 levels\n");
  std::string bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n";
  for (int level = 1; level < 10; ++level) {
    bomb += "a" + std::to_string(level) + ": &a" + std::to_string(level) + " [";
    for (int i = 0; i < 9; ++i) bomb += (i ? ", *a" : "*a") + std::to_string(level - 1);
    bomb += "]\n";
  }
  EXPECT_EQ(read(bomb).problems, "f.yaml:5: aliases expand to more than 20000 values\n");
}

}  // namespace
}  // namespace primus::config
