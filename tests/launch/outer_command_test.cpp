#include "launch/outer_command.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "base/error.hpp"

namespace primus::launch {
namespace {

using Words = std::vector<std::string>;

std::vector<std::string> faults_of(const std::function<void()>& step) {
  std::vector<std::string> texts;
  try {
    step();
  } catch (const ConfigError& error) {
    for (const Problem& problem : error.problems()) texts.push_back(to_text(problem));
  }
  return texts;
}

TEST(ReadFlags, EverySpelling) {
  std::vector<Problem> problems;
  const auto flags =
      read_flags(Words{"--a=b=c", "--d", "e", "-f", "g", "-hI", "-j=k", "--bare", "--last"}, "slurm", problems);
  EXPECT_TRUE(problems.empty());
  ASSERT_EQ(flags.size(), 7U);
  EXPECT_EQ(flags[0].values, Words{"b=c"});
  EXPECT_EQ(flags[1].values, Words{"e"});
  EXPECT_EQ(flags[2].values, Words{"g"});
  EXPECT_EQ(flags[3].name, "h");
  EXPECT_EQ(flags[3].values, Words{"I"});
  EXPECT_EQ(flags[4].values, Words{"k"});
  EXPECT_TRUE(flags[5].values.empty());
  read_flags(Words{"stray", "--a", "b", "other", "-"}, "slurm", problems);
  EXPECT_EQ(problems.size(), 3U);
}

TEST(Slurm, TheCommandLineBeatsTheFileUnderEitherName) {
  LauncherFile file;
  file.slurm = {{"nodes", {"8"}}, {"time", {"1"}}, {"cpus_per_task", {"4"}}};
  const SlurmRequest request = read_slurm(Words{"sbatch", "-N", "2", "-c", "3"}, file, {{"GPUS_PER_NODE", "4"}});
  EXPECT_EQ(request.num_nodes, 2);
  EXPECT_EQ(request.devices_per_node, 4);
  const OuterCommand command = slurm_command(request, {"/bin/primus-cli", "direct", "a b"});
  EXPECT_EQ(command.words, (Words{"sbatch", "--nodes=2", "--cpus-per-task=3", "--time=1", "--ntasks-per-node=1",
                                  "--wrap=srun /bin/primus-cli direct 'a b'"}));
}

TEST(Slurm, OneNodeUnlessSaid) {
  const SlurmRequest request = read_slurm(Words{"--ntasks=3", "--exclusive"}, {}, {});
  EXPECT_EQ(slurm_command(request, {"x"}).words, (Words{"srun", "--ntasks=3", "--exclusive", "--nodes=1", "x"}));
  EXPECT_EQ(read_slurm(Words{"-N", "2-4"}, {}, {}).num_nodes, 2);
}

TEST(Slurm, EveryFaultInOneRun) {
  EXPECT_EQ(faults_of([] {
              read_slurm(Words{"-N", "0"}, {}, {});
            }),
            Words{"command line: --nodes: out of range (expected integer from 1 to 1000000, found '0')"});
  EXPECT_EQ(faults_of([] { read_slurm(Words{"--nodes"}, {}, {}); }),
            Words{"command line: --nodes: needs a value (expected integer from 1 to 1000000)"});
  EXPECT_EQ(faults_of([] {
              read_slurm(Words{"stray", "-N", "x"}, {}, {{"GPUS_PER_NODE", "100"}});
            }),
            (Words{"command line: unexpected 'stray' among the options of slurm; the command stands behind `--`",
                   "command line: --nodes: not a number (expected integer from 1 to 1000000, found 'x')",
                   "environment: GPUS_PER_NODE: out of range (expected integer from 1 to 72, found '100')"}));
  LauncherFile file;
  file.path = "my.yaml";
  file.slurm = {{"nodes", {"many"}}};
  EXPECT_EQ(faults_of([&] { read_slurm(Words{}, file, {}); }),
            Words{"my.yaml: slurm.nodes: not a number (expected integer from 1 to 1000000, found 'many')"});
}

TEST(Container, OptionsAddUpOrReplace) {
  LauncherFile file;
  file.container = {{"image", {"a"}}, {"device", {"/x"}}, {"network", {"host"}}, {"rm", {}}};
  file.container_environment = {"A=1"};
  const ContainerRequest request =
      read_container(Words{"--privileged", "--network", "none", "--device=/y", "-e", "B=2", "-t", "--image", "b"}, file,
                     {{"NCCL_X", "3"}, {"NODE_RANK", "1"}, {"EDITOR", "vi"}});
  EXPECT_EQ(request.image, "b");
  EXPECT_EQ(request.environment, (Words{"A=1", "B=2", "NCCL_X=3", "NODE_RANK=1"}));
  const OuterCommand command =
      container_command(request, {"run"}, std::vector<std::filesystem::path>{"/no_such/primus/bin"});
  const Words& words = command.words;
  const Words middle(words.begin() + 3, words.begin() + 8);
  EXPECT_EQ(middle, (Words{"--device=/x", "--device=/y", "--network=none", "--privileged", "-t"}));
  EXPECT_EQ(words.back(), "run");
  EXPECT_EQ(words[words.size() - 2], "b");
  EXPECT_NE(std::find(words.begin(), words.end(), "--volume=/no_such/primus/bin:/no_such/primus/bin"), words.end());
}

TEST(Container, Faults) {
  const auto problems_of = [](const Words& words) -> std::size_t {
    try {
      read_container(words, {}, {});
    } catch (const ConfigError& error) {
      return error.problems().size();
    }
    return 0;
  };
  EXPECT_EQ(problems_of({"--image", "x"}), 0U);
  EXPECT_EQ(problems_of({}), 1U);
  EXPECT_EQ(problems_of({"--memory", "1x", "--cpus", "1.2.3", "-v", ":/a", "-v", "/a:/b:ro,zz"}), 5U);
  EXPECT_EQ(problems_of({"--image", "x", "--volume"}), 1U);
  EXPECT_EQ(problems_of({"--image", "x", "--device", "--env", "--volume"}), 3U);
  EXPECT_EQ(problems_of({"--image=x", "--memory=12G", "--cpus=1.5", "--volume=/a:/b:ro,Z"}), 0U);
}

}  // namespace
}  // namespace primus::launch
