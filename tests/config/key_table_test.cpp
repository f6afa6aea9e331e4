// The table itself: what every row must hold for parsing, messages and help to be right.
#include "config/key_table.hpp"

#include <gtest/gtest.h>

#include "base/text.hpp"
#include "config/parse.hpp"
#include "config/typing.hpp"

namespace primus::config {
namespace {

Node node_of(std::string_view text) {
  Node node;
  node.text = std::string(text);
  if (text.starts_with('[')) {
    node.kind = Node::Kind::kList;
    for (const std::string& item : split(text.substr(1, text.size() - 2), ',')) {
      if (!trim(item).empty()) node.items.push_back(node_of(trim(item)));
    }
  }
  return node;
}

template <typename Check>
void for_each_key(Check check) {
  for (const KeySection& section : key_sections()) {
    for (const Key& key : section.keys) check(key);
  }
}

TEST(KeyTable, EveryDefaultFitsItsOwnRow) {
  for_each_key([](const Key& key) {
    const auto typed = typed_value(node_of(key.default_text), key);
    ASSERT_TRUE(std::holds_alternative<Value>(typed)) << key.name << ": " << std::get<TypeFault>(typed).message;
    EXPECT_EQ(std::get<Value>(typed), default_value(key)) << key.name;
  });
}

TEST(KeyTable, EveryWorkingValueFitsItsOwnRow) {
  for_each_key([](const Key& key) {
    if (key.working.empty()) return;
    for (const std::string& word : split(key.working, '|')) {
      const auto typed = typed_value(node_of(word), key);
      ASSERT_TRUE(std::holds_alternative<Value>(typed)) << key.name << ": " << word;
      EXPECT_TRUE(is_working_value(key, std::get<Value>(typed))) << key.name << ": " << word;
    }
  });
}

TEST(KeyTable, EveryRowExplainsItself) {
  for_each_key([](const Key& key) {
    EXPECT_TRUE(key.meaning.ends_with('.')) << key.name;
    EXPECT_LE(key.meaning.size(), 100U) << key.name;
    EXPECT_FALSE(key.note.ends_with('.')) << key.name;
    EXPECT_FALSE(key.state == KeyState::kNoEffect && key.note.empty()) << key.name;
    EXPECT_EQ(find_key(key.name), &key);
    EXPECT_FALSE(area_of(key).empty()) << key.name;
    // A removed key whose row lets its default pass.
    EXPECT_TRUE(successor_of_removed_key(key.name).empty() || key.state == KeyState::kNoEffect) << key.name;
  });
}

// What is printed behind "planned, not built yet:" names a thing: it is no advice, no statement about a value and no
// sentence about what happens instead.
TEST(KeyTable, EveryReasonReadsAsOne) {
  for_each_key([](const Key& key) {
    const std::string reason = unbuilt_text(key);
    const bool has_planned_values = key.state == KeyState::kPlanned || !key.working.empty();
    EXPECT_EQ(key.state == KeyState::kWorks && !key.working.empty() && key.unbuilt.empty(), false) << key.name;
    if (!has_planned_values) {
      EXPECT_TRUE(key.unbuilt.empty()) << key.name;
      return;
    }
    EXPECT_FALSE(reason.empty()) << key.name;
    EXPECT_NE(reason, key.note) << key.name;
    for (const char* part : {"null:", "true:", "false:", "0:", "; ", "not built", "unless", "planned"})
      EXPECT_EQ(reason.find(part), std::string::npos) << key.name << ": " << reason;
    for (const char* verb :
         {"write ",           "gives ", "read ",  "reads ", "always ", "also ",  "on the CPU",
          "off by ",          "as ",    "with ",  "see ",   "there ",  "it ",    "shared experts run",
          "parameter counts", "How ",   "Which ", "What ",  "Where ",  "Their ", "Only ",
          "At least ",        "The "})
      EXPECT_FALSE(reason.starts_with(verb)) << key.name << ": " << reason;
  });
}

TEST(KeyTable, AliasesAndRemovedKeys) {
  EXPECT_EQ(find_key("layernorm_epsilon"), find_key("norm_epsilon"));
  EXPECT_EQ(find_key("num_nextn_predict_layers"), find_key("mtp_num_layers"));
  EXPECT_EQ(find_key("fully_parallel_save"), find_key("ckpt_fully_parallel_save"));
  EXPECT_EQ(find_key("routed_expert_hidden_size"), find_key("moe_latent_size"));
  EXPECT_EQ(find_key("no_such_key"), nullptr);
  EXPECT_EQ(successor_of_removed_key("use_turbo_grouped_mlp"), "use_turbo_grouped_gemm");
  EXPECT_NE(find_key(successor_of_removed_key("use_turbo_parallel_linear")), nullptr);
  EXPECT_EQ(successor_of_removed_key("batch_size"), "micro_batch_size");
  EXPECT_EQ(nearest_key_hint("micro_batchsize"), "did you mean 'micro_batch_size'?");
  EXPECT_EQ(nearest_key_hint("zzzzzzzzzzzz"), "");
}

TEST(KeyTable, StatesByValue) {
  const auto works = [](std::string_view key, const Value& value) { return is_working_value(*find_key(key), value); };
  EXPECT_TRUE(works("model_type", {std::string("gpt")}));
  EXPECT_TRUE(works("model_type", {std::string("kimi_k3")}));
  EXPECT_FALSE(works("model_type", {std::string("deepseek_v4")}));
  EXPECT_TRUE(works("use_turbo_mega_moe", {false}));
  EXPECT_FALSE(works("use_turbo_mega_moe", {true}));
  EXPECT_TRUE(works("expert_tensor_parallel_size", {}));
  EXPECT_TRUE(works("moe_router_dtype", {}));
  EXPECT_TRUE(works("moe_token_dispatcher_type", {std::string("alltoall")}));
  EXPECT_FALSE(works("moe_token_dispatcher_type", {std::string("flex")}));
  EXPECT_TRUE(works("manual_gc", {true}));
}

TEST(KeyTable, OtherKindsOfWorkAreRefusedAndTheirDetailsAreNot) {
  const auto is_planned = [](std::string_view key) { return find_key(key)->state == KeyState::kPlanned; };
  for (const char* key : {"perform_rl_step", "retro_add_retriever", "vision_pretraining", "sft",
                          "heterogeneous_layers_config_path", "hybrid_layer_pattern"}) {
    ASSERT_NE(find_key(key), nullptr) << key;
    EXPECT_TRUE(is_planned(key)) << key;
    EXPECT_EQ(find_key(key)->impact, Impact::kMathematics) << key;
    EXPECT_EQ(find_key(key)->reading, Reading::kAlways) << key;
  }
  for (const char* key : {"grpo_group_size", "retro_num_neighbors", "img_h", "bert_load", "inference_max_requests"}) {
    EXPECT_EQ(find_key(key)->state, KeyState::kNoEffect) << key;
  }
}

TEST(KeyTable, ExpectedTexts) {
  EXPECT_EQ(expected_text(*find_key("num_layers")), "integer >= 1");
  EXPECT_EQ(expected_text(*find_key("adam_beta1")), "number from 0 to below 1");
  EXPECT_EQ(expected_text(*find_key("turbo_sync_free_moe_stage")), "integer from 0 to 3");
  EXPECT_EQ(expected_text(*find_key("normalization")), "one of LayerNorm, RMSNorm");
  EXPECT_EQ(expected_text(*find_key("model_type")), "one of gpt, deepseek_v4, kimi_k3");
  EXPECT_EQ(expected_text(*find_key("fp4")), "e2m1");
}

}  // namespace
}  // namespace primus::config
