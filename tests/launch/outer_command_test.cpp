#include "launch/outer_command.hpp"

#include <gtest/gtest.h>

#include "base/error.hpp"

namespace primus::launch {
namespace {

using Words = std::vector<std::string>;

TEST(ReadFlags, EverySpelling) {
  const auto flags = read_flags(Words{"--a=b=c", "--d", "e", "-f", "g", "-hI", "-j=k", "--bare", "--last"}, "slurm");
  ASSERT_EQ(flags.size(), 7U);
  EXPECT_EQ(flags[0].values, Words{"b=c"});
  EXPECT_EQ(flags[1].values, Words{"e"});
  EXPECT_EQ(flags[2].values, Words{"g"});
  EXPECT_EQ(flags[3].name, "h");
  EXPECT_EQ(flags[3].values, Words{"I"});
  EXPECT_EQ(flags[4].values, Words{"k"});
  EXPECT_TRUE(flags[5].values.empty());
  EXPECT_THROW(read_flags(Words{"stray"}, "slurm"), ConfigError);
  EXPECT_THROW(read_flags(Words{"--a", "b", "stray"}, "slurm"), ConfigError);
  EXPECT_THROW(read_flags(Words{"-"}, "slurm"), ConfigError);
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
  EXPECT_THROW(read_slurm(Words{"-N", "0"}, {}, {}), ConfigError);
  EXPECT_THROW(read_slurm(Words{"--nodes"}, {}, {}), ConfigError);
  EXPECT_THROW(read_slurm(Words{}, {}, {{"GPUS_PER_NODE", "100"}}), ConfigError);
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
  const OuterCommand command = container_command(request, {"run"}, "/opt/primus");
  const Words& words = command.words;
  const Words middle(words.begin() + 3, words.begin() + 8);
  EXPECT_EQ(middle, (Words{"--device=/x", "--device=/y", "--network=none", "--privileged", "-t"}));
  EXPECT_EQ(words.back(), "run");
  EXPECT_EQ(words[words.size() - 2], "b");
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
