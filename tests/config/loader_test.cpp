#include "config/loader.hpp"

#include <gtest/gtest.h>

#include "config/test_folder.hpp"
#include "config/yaml_reader.hpp"

namespace primus::config {
namespace {

using test::ScopedVariable;
using test::TestFolder;

std::string text_of(const std::vector<Problem>& problems, const TestFolder& folder) {
  std::string text;
  for (const Problem& problem : problems) text += to_text(problem) + "\n";
  // Folder names are random; golden texts have none.
  const std::string prefix = folder.path().string() + "/";
  for (std::size_t at = text.find(prefix); at != std::string::npos; at = text.find(prefix))
    text.erase(at, prefix.size());
  return text;
}

TEST(Loader, LaterBasesWinAndTheFileBeatsThemAll) {
  const TestFolder folder;
  folder.write("base/a.yaml", "lr: 1\nseed: 1\nmap: {x: 1, y: 1}\nlist: [1, 2]\n");
  folder.write("base/b.yaml", "seed: 2\nmap: {y: 2}\n");
  const std::string top = folder.write("top.yaml", "extends: [base/a.yaml, base/b.yaml]\nmap:\n  z: 3\nlist: [9]\n");
  std::vector<Problem> problems;
  const Node node = load_file(top, problems);
  EXPECT_EQ(text_of(problems, folder), "");
  EXPECT_EQ(to_text(untyped_value(node)), "{list: [9], lr: 1, map: {x: 1, y: 2, z: 3}, seed: 2}");
  EXPECT_EQ(node.find("seed")->origin.file, (folder.path() / "base/b.yaml").string());
  EXPECT_EQ(node.find("map")->find("x")->origin.line, 3);
  EXPECT_EQ(node.find("map")->find("z")->origin.file, top);
  EXPECT_EQ(node.find("map")->find("z")->origin.line, 3);
}

TEST(Loader, BasesIsAnotherNameOfExtends) {
  const TestFolder folder;
  folder.write("a.yaml", "lr: 1\n");
  std::vector<Problem> problems;
  const Node node = load_file(folder.write("top.yaml", "bases:\n  - a.yaml\nseed: 2\n"), problems);
  EXPECT_EQ(to_text(untyped_value(node)), "{lr: 1, seed: 2}");
}

TEST(Loader, Faults) {
  const TestFolder folder;
  folder.write("one.yaml", "extends: two.yaml\n");
  folder.write("two.yaml", "extends: one.yaml\n");
  folder.write("gone.yaml", "seed: 1\nextends: tow.yaml\n");
  folder.write("shape.yaml", "- a\n- b\n");
  folder.write("typed.yaml", "extends: {a: b}\n");
  const auto faults = [&](const std::string& name) {
    std::vector<Problem> problems;
    load_file(folder.path() / name, problems);
    return text_of(problems, folder);
  };
  EXPECT_EQ(faults("one.yaml"), "two.yaml:1: extends: extends itself: one.yaml -> two.yaml -> one.yaml\n");
  EXPECT_EQ(faults("gone.yaml"), "gone.yaml:2: extends: file 'tow.yaml' does not exist; did you mean 'two.yaml'?\n");
  EXPECT_EQ(faults("shape.yaml"), "shape.yaml:1: wrong shape (expected a map of keys, found a list)\n");
  EXPECT_EQ(faults("typed.yaml"),
            "typed.yaml:1: extends: wrong type (expected file name or list of file names, found a map)\n");
  EXPECT_EQ(faults("ones.yaml"), "ones.yaml: file 'ones.yaml' does not exist; did you mean 'one.yaml'?\n");
}

TEST(Loader, BasesThatMultiplyEnd) {
  const TestFolder folder;
  for (int level = 0; level < 12; ++level) {
    const std::string next = std::to_string(level + 1) + ".yaml";
    folder.write(std::to_string(level) + ".yaml", "extends: [" + next + ", " + next + "]\n");
  }
  folder.write("12.yaml", "seed: 1\n");
  std::vector<Problem> problems;
  load_file(folder.path() / "0.yaml", problems);
  EXPECT_FALSE(problems.empty());
}

struct Substitution {
  const char* yaml;
  const char* value;
};

class Environment : public testing::TestWithParam<Substitution> {};

TEST_P(Environment, IsFilledInAndTyped) {
  const ScopedVariable set("PRIMUS_TEST_SET", "8");
  const ScopedVariable empty("PRIMUS_TEST_EMPTY", "");
  const ScopedVariable unset("PRIMUS_TEST_UNSET", std::nullopt);
  std::vector<Problem> problems;
  Node node = read_yaml(std::string("k: ") + GetParam().yaml, "f.yaml", problems);
  substitute_environment(node, problems);
  EXPECT_TRUE(problems.empty());
  EXPECT_EQ(to_text(untyped_value(*node.find("k"))), GetParam().value);
}

INSTANTIATE_TEST_SUITE_P(
    All, Environment,
    testing::Values(Substitution{"${PRIMUS_TEST_SET}", "8"}, Substitution{"${PRIMUS_TEST_SET:4}", "8"},
                    Substitution{"${PRIMUS_TEST_UNSET:4}", "4"}, Substitution{"${PRIMUS_TEST_UNSET:1e-5}", "1e-05"},
                    Substitution{"${PRIMUS_TEST_UNSET:True}", "true"},
                    Substitution{"${PRIMUS_TEST_UNSET:null}", "null"}, Substitution{"\"${PRIMUS_TEST_SET}\"", "8"},
                    Substitution{"${PRIMUS_TEST_EMPTY:4}", "null"}, Substitution{"a${PRIMUS_TEST_SET}.yaml", "a8.yaml"},
                    Substitution{"${PRIMUS_TEST_UNSET:${PRIMUS_TEST_SET:4}}", "8"},
                    Substitution{"${PRIMUS_TEST_SET:${PRIMUS_TEST_UNSET}}", "8"},
                    Substitution{"${PRIMUS_TEST_UNSET:a${PRIMUS_TEST_UNSET:b}c}d${PRIMUS_TEST_SET}", "abcd8"},
                    Substitution{"${PRIMUS_TEST_UNSET:./out}/x", "./out/x"}, Substitution{"\"8\"", "\"8\""},
                    Substitution{"$HOME", "$HOME"}));

TEST(EnvironmentFaults, NameTheVariableAndTheLine) {
  const ScopedVariable unset("PRIMUS_TEST_UNSET", std::nullopt);
  std::vector<Problem> problems;
  Node node = read_yaml("a: 1\nb: ${PRIMUS_TEST_UNSET}\nc: ${open\nd: ${not a name:1}\n", "f.yaml", problems);
  substitute_environment(node, problems);
  ASSERT_EQ(problems.size(), 3U);
  EXPECT_EQ(to_text(problems[0]),
            "f.yaml:2: environment variable PRIMUS_TEST_UNSET is not set; set it, or give a default: "
            "${PRIMUS_TEST_UNSET:value}");
  EXPECT_EQ(to_text(problems[1]), "f.yaml:3: '${' without '}' (found '${open')");
  EXPECT_EQ(to_text(problems[2]),
            "f.yaml:4: '${not a name:1}' does not name an environment variable (expected ${NAME} or ${NAME:default})");
}

TEST(EnvironmentFaults, NestingEnds) {
  std::string text = "x";
  for (int i = 0; i < 100; ++i) text = "${PRIMUS_TEST_UNSET:" + text + "}";
  std::vector<Problem> problems;
  Node node = read_yaml("a: " + text + "\n", "f.yaml", problems);
  substitute_environment(node, problems);
  ASSERT_EQ(problems.size(), 1U);
  EXPECT_EQ(to_text(problems[0]), "f.yaml:1: '${' stands in more than 16 others");
}

TEST(PresetFolder, TheVariableWins) {
  const TestFolder folder;
  const ScopedVariable named("PRIMUS_CONFIG_DIR", folder.path().string());
  EXPECT_THROW(preset_folder(), UserError);
  folder.write("models/m.yaml", "");
  folder.write("modules/m.yaml", "");
  EXPECT_EQ(preset_folder(), folder.path());
}

}  // namespace
}  // namespace primus::config
