#include "config/overrides.hpp"

#include <gtest/gtest.h>

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

TEST(Overrides, DotsNest) {
  EXPECT_EQ(read({"--torch_compile.enable", "true"}), "torch_compile={enable: true};");
  EXPECT_EQ(read({"lora.a.b=3"}), "lora={a: {b: 3}};");
}

TEST(Overrides, Faults) {
  EXPECT_EQ(read({"stray"}),
            "! command line: unexpected 'stray'; overrides are --key value, --key=value or key=value;");
  EXPECT_EQ(read({"-lr", "3"}),
            "! command line: unexpected '-lr'; keys begin with two dashes: --lr;! command line: "
            "unexpected '3'; overrides are --key value, --key=value or key=value;");
  EXPECT_EQ(read({"--lr 3"}),
            "! command line: '--lr 3' is not a key; key and value are two arguments here: leave out "
            "the quotes around both;");
  EXPECT_EQ(read({"--a..b", "3"}), "! command line: a..b: a part of the key is empty;");
  EXPECT_EQ(read({"--=3"}), "! command line: '--=3' is not a key;");
  EXPECT_EQ(read({"--a.b.c.d.e.f.g.h.i", "3"}), "! command line: a.b.c.d.e.f.g.h.i: nested deeper than 8 levels;");
}

}  // namespace
}  // namespace primus::config
