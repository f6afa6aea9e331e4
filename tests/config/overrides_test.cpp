#include "config/overrides.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "config/expected_table.hpp"
#include "config/key_table.hpp"

namespace primus::config {
namespace {

using Words = std::vector<std::string>;

std::string read(const Words& words) {
  std::vector<Problem> problems;
  std::string text;
  for (const Override& item : parse_overrides(words, problems)) {
    text += item.key + "=" + to_text(untyped_value(item.value)) + ";";
  }
  for (const Problem& problem : problems) text += "! " + to_text(problem) + ";";
  return text;
}

TEST(Overrides, Spellings) {
  EXPECT_EQ(read({"--lr", "3e-4"}), "lr=0.0003;");
  EXPECT_EQ(read({"--lr=3e-4"}), "lr=0.0003;");
  EXPECT_EQ(read({"lr=3e-4"}), "lr=0.0003;");
  EXPECT_EQ(read({"--micro-batch-size", "4"}), "micro_batch_size=4;");
  EXPECT_EQ(read({"--mock_data"}), "mock_data=true;");
  EXPECT_EQ(read({"--mock_data", "--lr", "1"}), "mock_data=true;lr=1;");
  EXPECT_EQ(read({"--mock_data", "lr=1"}), "mock_data=true;lr=1;");
  EXPECT_EQ(read({"--mock_data", "False"}), "mock_data=false;");
  EXPECT_EQ(read({"--no-bf16"}), "bf16=false;");
  EXPECT_EQ(read({"--no_bf16", "--lr", "1"}), "bf16=false;lr=1;");
  EXPECT_EQ(read({"", "--lr", "1"}), "lr=1;");
}

TEST(Overrides, KeysThatBeginWithNoStayWhole) {
  EXPECT_EQ(read({"--no_save_optim", "true"}), "no_save_optim=true;");
}

TEST(Overrides, Values) {
  EXPECT_EQ(read({"--lr", "-1"}), "lr=-1;");
  EXPECT_EQ(read({"--save", "None"}), "save=null;");
  EXPECT_EQ(read({"--save", "null"}), "save=null;");
  EXPECT_EQ(read({"--save", "\"null\""}), "save=\"null\";");
  EXPECT_EQ(read({"--profile_ranks", "[0, 1]"}), "profile_ranks=[0, 1];");
  EXPECT_EQ(read({"--torch_compile", "{enable: true}"}), "torch_compile={enable: true};");
  EXPECT_EQ(read({"--moe_layer_freq", "([0]*1+[1]*3)"}), "moe_layer_freq=\"([0]*1+[1]*3)\";");
  EXPECT_EQ(read({"--moe_layer_freq", "[0]*1+[1]*3"}), "moe_layer_freq=\"[0]*1+[1]*3\";");
  EXPECT_EQ(read({"--moe_layer_freq", "[0]+[1]"}), "moe_layer_freq=\"[0]+[1]\";");
  EXPECT_EQ(read({"--data_path", "a=b"}), "data_path=a=b;");
  EXPECT_EQ(read({"exp=x=y"}), "exp=x=y;");
  EXPECT_EQ(read({"--pipeline_model_parallel_layout='Et*2|t,L'"}), "pipeline_model_parallel_layout=\"Et*2|t,L\";");
  EXPECT_EQ(read({"--save="}), "save=null;");
}

// Options that Megatron's own parser spells in another way than the key: every one sets the key to what it does there.
TEST(Overrides, MegatronsOwnOptions) {
  for (const test::TableRow& row : test::read_table("megatron_options.tsv")) {
    const std::string& option = row.at("option");
    const Key* key = find_key(row.at("key"));
    ASSERT_NE(key, nullptr) << row.at("key");
    std::vector<Problem> problems;
    const bool is_switch = row.at("action") != "Store";
    const Words words = is_switch ? Words{option} : Words{option, "x"};
    const std::vector<Override> overrides = parse_overrides(words, problems);
    ASSERT_EQ(overrides.size(), 1U) << option;
    EXPECT_TRUE(problems.empty()) << option;
    // Megatron's option of this name does nothing any more, and the key of its name is what it asked for.
    const bool is_renamed = option == "--ckpt-fully-parallel-save";
    EXPECT_EQ(find_key(overrides.front().key), is_renamed ? find_key("ckpt_fully_parallel_save") : key)
        << option << " is " << overrides.front().key;
    const bool is_off = row.at("action") == "StoreFalse" || option.starts_with("--no-");
    EXPECT_EQ(overrides.front().value.text, !is_switch ? "x" : is_off ? "false" : "true") << option;
  }
}

TEST(Overrides, FlagsThatTurnOffTakeNoValue) {
  EXPECT_EQ(read({"--disable-bias-linear=true"}),
            "! command line: --disable_bias_linear: takes no value; write --disable_bias_linear alone, or "
            "--add_bias_linear=true or --add_bias_linear=false;");
  EXPECT_EQ(read({"--no-rope-fusion", "--disable_msc"}), "apply_rope_fusion=false;disable_msc=true;");
}

TEST(Overrides, ListsOfSeveralWords) {
  EXPECT_EQ(
      read({"--profile_ranks", "0", "1", "2", "--lr", "3"}),
      "profile_ranks=0;lr=3;! command line: --profile_ranks: a list of several words stands in brackets (expected "
      "one word, found '0 1 2'); write --profile_ranks '[0, 1, 2]';");
  EXPECT_EQ(read({"--data-path=0.3", "a", "0.7", "b"}),
            "data_path=0.3;! command line: --data-path: a list of several words stands in brackets (expected one word, "
            "found '0.3 a 0.7 b'); write --data-path '[0.3, a, 0.7, b]';");
}

TEST(Overrides, DotsNest) {
  EXPECT_EQ(read({"--torch_compile.enable", "true"}), "torch_compile={enable: true};");
  EXPECT_EQ(read({"lora.a.b=3"}), "lora={a: {b: 3}};");
}

TEST(Overrides, Faults) {
  EXPECT_EQ(read({"stray"}),
            "! command line: unexpected 'stray'; overrides are --key value, --key=value or key=value;");
  EXPECT_EQ(read({"-lr", "3"}), "! command line: unexpected '-lr 3'; keys begin with two dashes: --lr 3;");
  EXPECT_EQ(read({"lr", "3", "--min_lr", "2"}), "min_lr=2;! command line: unexpected 'lr 3'; write --lr 3;");
  EXPECT_EQ(read({"--lr 3"}),
            "! command line: '--lr 3' is not a key; key and value are two arguments here: leave out "
            "the quotes around both;");
  EXPECT_EQ(read({"--a..b", "3"}), "! command line: a..b: a part of the key is empty;");
  EXPECT_EQ(read({"--=3"}), "! command line: '--=3' is not a key;");
  EXPECT_EQ(read({"--a.b.c.d.e.f.g.h.i", "3"}), "! command line: a.b.c.d.e.f.g.h.i: nested deeper than 8 levels;");
}

}  // namespace
}  // namespace primus::config
