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

TEST(World, OfTheEnvironment) {
  const ScopedVariable world("WORLD_SIZE", std::nullopt);
  const ScopedVariable nodes("NNODES", std::nullopt);
  const ScopedVariable devices("GPUS_PER_NODE", "8");
  EXPECT_FALSE(world_of_environment());
  {
    const ScopedVariable two("NNODES", "2");
    EXPECT_EQ(world_of_environment()->size, 16);
    const ScopedVariable four("WORLD_SIZE", "4");
    EXPECT_EQ(world_of_environment()->size, 4);
    EXPECT_EQ(world_of_environment()->source, "WORLD_SIZE");
  }
  for (const char* wrong : {"0", "-1", "two", "1.5", "99999999999"}) {
    const ScopedVariable set("WORLD_SIZE", wrong);
    EXPECT_THROW(world_of_environment(), ConfigError) << wrong;
  }
}

}  // namespace
}  // namespace primus::launch
