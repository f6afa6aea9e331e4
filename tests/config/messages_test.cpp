// Wrong inputs and the exact text that each gets; and the list of the rules, which names them.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <set>

#include "base/files.hpp"
#include "base/text.hpp"
#include "config/resolve_fixture.hpp"
#include "config/wrong_inputs.hpp"

namespace primus::config {
namespace {

// What an environment may hold would change what is told.
struct CleanEnvironment {
  test::ScopedVariable queues{"CUDA_DEVICE_MAX_CONNECTIONS", std::nullopt};
  test::ScopedVariable format{"NVTE_ROCM_ENABLE_MXFP8", std::nullopt};
  test::ScopedVariable uccl{"USING_UEP", std::nullopt};
  test::ScopedVariable backend{"PRIMUS_TURBO_MOE_DISPATCH_COMBINE_BACKEND", std::nullopt};
  test::ScopedVariable service{"WANDB_API_KEY", std::nullopt};
  test::ScopedVariable repeatable{"PRIMUS_DETERMINISTIC", std::nullopt};
  test::ScopedVariable atomics{"ROCBLAS_DEFAULT_ATOMICS_MODE", std::nullopt};
  test::ScopedVariable compile{"TORCH_COMPILE_DISABLE", std::nullopt};
  test::ScopedVariable tuning{"PRIMUS_TURBO_AUTO_TUNE", std::nullopt};
};

TEST(WrongInputs, GetTheirMessages) {
  const CleanEnvironment clean;
  for (auto& [file, inputs] : read_wrong_inputs()) {
    for (WrongInput& input : inputs) {
      const std::string outcome = outcome_of(input);
      if (is_updating_goldens()) {
        input.text = outcome;
        continue;
      }
      EXPECT_EQ(outcome, input.text) << file << ": " << input.name;
      EXPECT_EQ(outcome.starts_with("note: "), file.starts_with("notes")) << file << ": " << input.name;
    }
    if (is_updating_goldens()) write_wrong_inputs(file, inputs);
  }
}

TEST(WrongInputs, AreManyAndFewAreMisspellings) {
  std::size_t num_wrong = 0;
  std::size_t num_misspellings = 0;
  std::set<std::string> names;
  for (const auto& [file, inputs] : read_wrong_inputs()) {
    for (const WrongInput& input : inputs) {
      EXPECT_TRUE(names.insert(input.name).second) << input.name << " is there twice";
      if (!file.starts_with("notes")) ++num_wrong;
      if (input.subject == "fault misspelling") ++num_misspellings;
    }
  }
  EXPECT_GE(num_wrong, 120U);
  EXPECT_LE(num_misspellings, 10U);
}

TEST(WrongInputs, AreToldInTime) {
  const CleanEnvironment clean;
  std::chrono::nanoseconds longest{0};
  std::string slowest;
  for (const auto& [file, inputs] : read_wrong_inputs()) {
    for (const WrongInput& input : inputs) {
      const auto begin = std::chrono::steady_clock::now();
      outcome_of(input);
      const auto taken = std::chrono::steady_clock::now() - begin;
      if (taken > longest) slowest = input.name;
      longest = std::max<std::chrono::nanoseconds>(longest, taken);
    }
  }
  const auto milliseconds = std::chrono::duration_cast<std::chrono::milliseconds>(longest).count();
  RecordProperty("slowest", slowest);
  RecordProperty("milliseconds", static_cast<int>(milliseconds));
  // 50 ms in a release build; sanitizers and a busy machine take ten times as long.
  EXPECT_LT(milliseconds, 500) << slowest;
}

// Cases by "rule deepep", "fault type".
std::map<std::string, std::vector<std::string>> cases_by_subject() {
  std::map<std::string, std::vector<std::string>> cases;
  for (const auto& [file, inputs] : read_wrong_inputs()) {
    for (const WrongInput& input : inputs) cases[input.subject].push_back(input.name);
  }
  return cases;
}

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

std::string rules_page() {
  const auto cases = cases_by_subject();
  const auto row = [&](const std::string& name, std::string_view meaning, const std::string& subject) {
    const auto found = cases.find(subject);
    return "| " + name + " | " + std::string(meaning) + " | " + (found == cases.end() ? "" : joined(found->second)) +
           " |\n";
  };
  std::string text =
      "# Rules\n\nWhat an experiment must fulfil, checked before anything is started.\n\n"
      "- A switch and a value that it excludes: two that the user wrote in one place are an error. Of two places the "
      "later one stands (command line, experiment\n  file, the files it extends, presets, defaults), and a note says "
      "what yielded and why: a command line is there to change what a file says.\n"
      "- Sizes that do not fit each other (`lr` and `min_lr`, `seq_length` and `max_position_embeddings`, the batch, "
      "the parallel sizes): always an error,\n  wherever they were written, because no value could be put in the place "
      "of either.\n"
      "- The turbo grouped product beside the legacy one, a sync-free stage of 2 or 3 beside it, a stage without "
      "`enable_primus_turbo`, and removed keys: always\n  an error too, for these are the mistakes made most.\n\n"
      "The last column names the cases that show a rule, in `tests/config/data/wrong_inputs`. This page is written by "
      "`config_test` with `PRIMUS_UPDATE_GOLDEN=1`.\n";
  for (const RuleGroup& group : rule_groups()) {
    text += "\n## Rules: " + std::string(group.area) + "\n\n| rule | what holds | cases |\n|---|---|---|\n";
    for (const Rule& rule : group.rules) {
      text += row(std::string(rule.name), rule.meaning, "rule " + std::string(rule.name));
    }
  }
  text += "\n## Before the rules\n\nFaults of files, command lines and single values.\n\n| kind | cases |\n|---|---|\n";
  for (const auto& [subject, names] : cases) {
    if (subject.starts_with("fault ")) text += "| " + subject.substr(6) + " | " + joined(names) + " |\n";
  }
  return text;
}

TEST(Rules, ThePageIsCurrent) {
  const std::string path = std::string(PRIMUS_SOURCE_DIR) + "/docs/rules.md";
  if (is_updating_goldens()) write_file(path, rules_page());
  EXPECT_EQ(read_file(path), rules_page()) << "run config_test with PRIMUS_UPDATE_GOLDEN=1";
}

TEST(Rules, EachHasACaseAndEachCaseHasItsRule) {
  const auto cases = cases_by_subject();
  std::set<std::string> names;
  for (const Rule& rule : all_rules()) {
    EXPECT_TRUE(names.insert(std::string(rule.name)).second) << rule.name << " is there twice";
    EXPECT_TRUE(cases.contains("rule " + std::string(rule.name))) << rule.name;
    EXPECT_TRUE(rule.meaning.ends_with('.')) << rule.name;
  }
  for (const auto& [subject, of_subject] : cases) {
    const bool is_of_a_rule = subject.starts_with("rule ");
    EXPECT_TRUE(!is_of_a_rule || names.contains(subject.substr(5))) << joined(of_subject);
  }
}

}  // namespace
}  // namespace primus::config
