// The keys of every rule, and what keys switch on.
#include "config/rule_keys.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <regex>

#include "base/files.hpp"
#include "config/effects.hpp"
#include "config/key_table.hpp"
#include "config/rules.hpp"

namespace primus::config {
namespace {

using testing::Contains;

// Bodies of functions by name, from the sources of the rules.
std::map<std::string, std::string> rule_functions() {
  std::map<std::string, std::string> bodies;
  for (const auto& entry : std::filesystem::directory_iterator(std::string(PRIMUS_SOURCE_DIR) + "/src/config")) {
    if (!entry.path().filename().string().starts_with("rules_")) continue;
    const std::string text = read_file(entry.path());
    const std::string head = "(RuleContext& context) {\n";
    for (std::size_t at = text.find(head); at != std::string::npos; at = text.find(head, at + 1)) {
      const std::size_t name = text.rfind(' ', at) + 1;
      bodies[text.substr(name, at - name)] = text.substr(at, text.find("\n}\n", at) - at);
    }
  }
  return bodies;
}

TEST(RuleKeys, AreThoseThatTheRulesName) {
  const std::map<std::string, std::string> bodies = rule_functions();
  int num_found = 0;
  for (const Rule& rule : all_rules()) {
    EXPECT_FALSE(keys_of_rule(rule.name).empty()) << rule.name << ": run tools/rule_keys";
    const auto body = bodies.find(std::string(rule.name));
    if (body == bodies.end()) continue;
    ++num_found;
    const std::regex quoted("\"([a-z0-9_]+)\"");
    for (auto word = std::sregex_iterator(body->second.begin(), body->second.end(), quoted);
         word != std::sregex_iterator(); ++word) {
      const std::string name = (*word)[1];
      if (!find_key(name) || find_key(name)->name != name) continue;
      EXPECT_TRUE(is_rule_about(rule.name, name)) << rule.name << " reads " << name << ": run tools/rule_keys";
    }
  }
  EXPECT_GT(num_found, 80);
}

TEST(RuleKeys, NameKeys) {
  for (const Rule& rule : all_rules()) {
    for (const std::string& key : keys_of_rule(rule.name)) EXPECT_NE(find_key(key), nullptr) << rule.name << " " << key;
  }
}

std::vector<std::string> effects(std::string_view key) {
  std::vector<std::string> texts;
  for (const Effect& effect : effects_of(*find_key(key)))
    texts.push_back(effect.value + ": " + effect.key + " " + effect.change);
  return texts;
}

TEST(Effects, OfSwitchesAndStages) {
  EXPECT_THAT(effects("use_turbo_deepep"), Contains("true: moe_shared_expert_overlap true -> false"));
  EXPECT_THAT(effects("use_turbo_deepep"), Contains("true: moe_token_dispatcher_type allgather -> flex"));
  const std::vector<std::string> stages = effects("turbo_sync_free_moe_stage");
  EXPECT_THAT(stages, Contains("1: moe_permute_fusion false -> true"));
  EXPECT_THAT(stages, testing::Not(Contains("1: use_turbo_deepep false -> true")));
  EXPECT_THAT(stages, Contains("2: use_turbo_deepep false -> true"));
  EXPECT_THAT(stages, Contains("3: use_turbo_fused_act_with_probs false -> true"));
  EXPECT_THAT(effects("recompute_activations"), Contains("true: recompute_granularity null -> selective"));
  EXPECT_TRUE(effects("lr").empty());
}

TEST(Effects, AreFoundForEveryKey) {
  std::size_t num_effects = 0;
  for (const KeySection& section : key_sections()) {
    for (const Key& key : section.keys) num_effects += effects_of(key).size();
  }
  EXPECT_GT(num_effects, 20U);
}

}  // namespace
}  // namespace primus::config
