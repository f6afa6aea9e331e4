#include "launch/environment.hpp"

#include <gtest/gtest.h>

#include "base/error.hpp"
#include "config/test_folder.hpp"

namespace primus::launch {
namespace {

using test::ScopedVariable;
using test::TestFolder;

TEST(DerivedVariables, OnlyWhatIsNotSet) {
  EXPECT_TRUE(derived_variables({{"USING_UEP", "0"}}).empty());
  EXPECT_EQ(derived_variables({{"USING_UEP", "1"}}).at("PRIMUS_TURBO_MOE_DISPATCH_COMBINE_BACKEND"), "DEEP_EP");
  const Variables nics = derived_variables({{"USING_AINIC", "1"}, {"NCCL_IB_TC", "41"}});
  EXPECT_FALSE(nics.contains("NCCL_IB_TC"));
  EXPECT_EQ(nics.at("NCCL_IB_GID_INDEX"), "1");
  EXPECT_EQ(derived_variables({{"PRIMUS_DETERMINISTIC", "1"}}).at("NCCL_ALGO"), "Ring");
}

TEST(ExplainVariables, WhatConcernsARun) {
  const auto uses = explain_variables({{"EDITOR", "vi"},
                                       {"NCCL_DEBUG", "INFO"},
                                       {"PRIMUS_TEAM", "amd"},
                                       {"PRIMUS_PATCHES", "none"},
                                       {"WANDB_API_KEY", "abc"}});
  ASSERT_EQ(uses.size(), 4U);
  EXPECT_EQ(uses[0].effect, "passed on to the workers: collectives between devices");
  EXPECT_EQ(uses[1].effect, "no effect: there is no framework to patch");
  EXPECT_EQ(uses[2].effect, "filled in where an experiment names it as ${NAME}");
  EXPECT_EQ(uses[3].value, "(hidden)");
}

TEST(ExplainVariables, Secrets) {
  for (const char* name : {"HF_TOKEN", "WANDB_API_KEY", "SOME_SECRET_X"}) EXPECT_TRUE(is_secret(name)) << name;
  for (const char* name : {"TOKENIZED_DATA_PATH", "PRIMUS_TOKENIZED_DATA_PATH", "NCCL_DEBUG"})
    EXPECT_FALSE(is_secret(name)) << name;
}

TEST(AddVariables, NamesValuesAndFiles) {
  const ScopedVariable set("PRIMUS_TEST_SET", "here");
  const ScopedVariable unset("PRIMUS_TEST_UNSET", std::nullopt);
  const TestFolder folder;
  Variables variables;
  add_variables("A=b=c", "command line", variables);
  add_variables("PRIMUS_TEST_SET", "command line", variables);
  add_variables("PRIMUS_TEST_UNSET", "command line", variables);
  add_variables(folder.write("vars", "# no\r\nexport X='1 2'\nY=\n"), "command line", variables);
  EXPECT_EQ(variables, (Variables{{"A", "b=c"}, {"PRIMUS_TEST_SET", "here"}, {"X", "1 2"}, {"Y", ""}}));
  for (const char* wrong : {"", "=x", "1A=2", "A B=1", "/nowhere/file"})
    EXPECT_THROW(add_variables(wrong, "command line", variables), ConfigError) << wrong;
}

TEST(LaunchVariables, RangesAndTheWayRoundThem) {
  EXPECT_TRUE(problems_of_variables({}).empty());
  EXPECT_TRUE(problems_of_variables({{"NNODES", "2"},
                                     {"NODE_RANK", "1"},
                                     {"GPUS_PER_NODE", "4"},
                                     {"WORLD_SIZE", "8"},
                                     {"MASTER_ADDR", "node-1.local"},
                                     {"MASTER_PORT", "1234"}})
                  .empty());
  const std::vector<Variables> wrong = {{{"NNODES", "0"}},
                                        {{"NNODES", "two"}},
                                        {{"GPUS_PER_NODE", "73"}},
                                        {{"MASTER_PORT", "1023"}},
                                        {{"MASTER_PORT", "65536"}},
                                        {{"MASTER_ADDR", "a b"}},
                                        {{"NODE_RANK", "-1"}},
                                        {{"NNODES", "1"}, {"NODE_RANK", "1"}},
                                        {{"NNODES", "3"}, {"WORLD_SIZE", "4"}},
                                        {{"NNODES", "2"}, {"GPUS_PER_NODE", "2"}, {"WORLD_SIZE", "2"}}};
  for (Variables variables : wrong) {
    EXPECT_EQ(problems_of_variables(variables).size(), 1U) << testing::PrintToString(variables);
    variables["PRIMUS_SKIP_VALIDATION"] = "1";
    EXPECT_TRUE(problems_of_variables(variables).empty());
  }
}

TEST(Slurm, VariablesOfAJob) {
  EXPECT_TRUE(slurm_variables({{"SLURM_NNODES", "2"}}).empty());
  const Variables variables = slurm_variables(
      {{"SLURM_JOB_ID", "7"}, {"SLURM_NNODES", "2"}, {"SLURM_NODEID", "1"}, {"SLURM_NODELIST", "n[08-09]"}});
  EXPECT_EQ(variables, (Variables{{"NNODES", "2"}, {"NODE_RANK", "1"}, {"MASTER_ADDR", "n08"}}));
}

TEST(Slurm, FirstHost) {
  EXPECT_EQ(first_host("node7"), "node7");
  EXPECT_EQ(first_host("a,b[1-2]"), "a");
  EXPECT_EQ(first_host("node[03-05,9],x"), "node03");
  EXPECT_EQ(first_host("node[9],x"), "node9");
  EXPECT_EQ(first_host("r[1-2]-gpu"), "r1-gpu");
  EXPECT_EQ(first_host("r[1-2]-gpu,z"), "r1-gpu");
  EXPECT_EQ(first_host("node["), "node");
  EXPECT_EQ(first_host(""), "");
}

}  // namespace
}  // namespace primus::launch
