#include "launch/run_folder.hpp"

#include <gtest/gtest.h>

#include "config/resolve_fixture.hpp"
#include "launch/world.hpp"

namespace primus::launch {
namespace {

using test::ScopedVariable;

TEST(RunFolder, HoldsTheExperimentForWorkerAndReader) {
  const config::ResolveFixture fixture;
  const std::string workspace = (fixture.folder().path() / "out").string();
  const config::Experiment experiment = fixture.resolve({"workspace=" + workspace}).experiment;
  const RunFolder folder = make_run_folder(experiment);
  EXPECT_EQ(folder.path, workspace + "/lab/ann/run");
  EXPECT_EQ(config::Experiment::from_json(read_file(folder.experiment_json())).to_json(), experiment.to_json());
  EXPECT_NE(read_file(folder.experiment_yaml()).find("mock_data: true  # "), std::string::npos);
}

TEST(WorkerCommands, OneProcessHasNoRank) {
  const config::ResolveFixture fixture;
  const config::Experiment experiment = fixture.resolve().experiment;
  const ScopedVariable policy("OMP_WAIT_POLICY", "passive");  // what the user says about waiting threads stands
  const auto one = worker_commands(experiment, {"/bin/primus-worker", "", 1}, run_folder_of(experiment));
  ASSERT_EQ(one.size(), 1U);
  EXPECT_EQ(shell_text(one[0]), "/bin/primus-worker --experiment out/lab/ann/run/experiment.json");
  const auto two = worker_commands(experiment, {"/bin/primus-worker", "cuda", 2}, run_folder_of(experiment));
  ASSERT_EQ(two.size(), 2U);
  EXPECT_EQ(shell_text({two[0].program, two[0].arguments, {}}),
            "/bin/primus-worker --experiment out/lab/ann/run/experiment.json --device cuda");
  EXPECT_EQ(two[1].environment.at("RANK"), "1");
  EXPECT_EQ(two[1].environment.at("WORLD_SIZE"), "2");
}

TEST(WorkerCommands, ThreadsWaitPatientlyUnlessToldOtherwise) {
  const config::ResolveFixture fixture;
  const config::Experiment experiment = fixture.resolve().experiment;
  const ScopedVariable policy("OMP_WAIT_POLICY", std::nullopt);
  const ScopedVariable spin("GOMP_SPINCOUNT", std::nullopt);
  const auto commands = worker_commands(experiment, {"/bin/primus-worker", "", 1}, run_folder_of(experiment));
  EXPECT_EQ(shell_text(commands[0]),
            "GOMP_SPINCOUNT=2000 /bin/primus-worker --experiment out/lab/ann/run/experiment.json");
}

class World : public testing::Test {
 protected:
  static constexpr auto kPlan = config::Purpose::kPlan;
  static constexpr auto kTrain = config::Purpose::kTrain;

  const ScopedVariable world_{"WORLD_SIZE", std::nullopt};
  const ScopedVariable nodes_{"NNODES", std::nullopt};
  const ScopedVariable devices_{"GPUS_PER_NODE", std::nullopt};
  const ScopedVariable mode_{"RUN_MODE", std::nullopt};
  const ScopedVariable job_{"SLURM_JOB_ID", std::nullopt};
  const ScopedVariable slurm_nodes_{"SLURM_NNODES", std::nullopt};
};

TEST_F(World, OfTheEnvironment) {
  EXPECT_FALSE(world_of_environment(kPlan));
  const ScopedVariable devices("GPUS_PER_NODE", "8");
  const ScopedVariable two("NNODES", "2");
  EXPECT_EQ(world_of_environment(kPlan)->size, 16);
  EXPECT_EQ(world_of_environment(kTrain)->size, 16);
  {
    const ScopedVariable four("WORLD_SIZE", "4");
    EXPECT_EQ(world_of_environment(kPlan)->size, 4);
    EXPECT_EQ(world_of_environment(kPlan)->source, "WORLD_SIZE");
  }
  for (const char* wrong : {"0", "-1", "two", "1.5", "99999999999"}) {
    const ScopedVariable set("WORLD_SIZE", wrong);
    EXPECT_THROW(world_of_environment(kPlan), ConfigError) << wrong;
  }
}

TEST_F(World, OneOfTheTwoAloneCounts) {
  const ScopedVariable devices("GPUS_PER_NODE", "4");
  EXPECT_EQ(world_of_environment(kPlan)->size, 4);
  EXPECT_EQ(world_of_environment(kTrain)->size, 4);
  const ScopedVariable unset("GPUS_PER_NODE", "");
  EXPECT_FALSE(world_of_environment(kPlan));
  const ScopedVariable nodes("NNODES", "3");
  EXPECT_EQ(world_of_environment(kPlan)->size, 24);
  EXPECT_EQ(world_of_environment(kPlan)->source, "NNODES, 8 devices a node");
  EXPECT_EQ(world_of_environment(kTrain)->size, 3);
  const ScopedVariable one("NNODES", "1");
  EXPECT_FALSE(world_of_environment(kPlan)) << "one node says nothing about its devices";
  EXPECT_FALSE(world_of_environment(kTrain));
}

TEST_F(World, SlurmsOwnNodesStandIn) {
  const ScopedVariable slurm_nodes("SLURM_NNODES", "4");
  EXPECT_FALSE(world_of_environment(kPlan)) << "outside a job they mean nothing";
  const ScopedVariable job("SLURM_JOB_ID", "7");
  EXPECT_EQ(world_of_environment(kPlan)->size, 32);
  const ScopedVariable nodes("NNODES", "2");
  EXPECT_EQ(world_of_environment(kPlan)->size, 16);
}

}  // namespace
}  // namespace primus::launch
