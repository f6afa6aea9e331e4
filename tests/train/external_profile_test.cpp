// Profilers of others: what an experiment asks for, and what a CPU refuses. On a GPU: cuda_external_profile_test.cpp.
#include "train/external_profile.hpp"

#include <filesystem>

#include "base/error.hpp"
#include "train/tiny_run.hpp"

namespace primus::train {
namespace {

namespace fs = std::filesystem;
using Options = ExternalProfileOptions;

class ExternalProfileRun : public TinyRun {
 protected:
  Options options(std::vector<std::string> words, std::int64_t rank = 0) const {
    return external_profile_options(experiment(std::move(words)), rank);
  }
};

TEST_F(ExternalProfileRun, KeysSayWhatIsAskedFor) {
  const Options none = options({"--train_iters=6"});
  EXPECT_FALSE(none.window);
  EXPECT_EQ(none.ranges, Options::Ranges::kInWindow);
  EXPECT_FALSE(none.memory_snapshot);

  const Options window = options(profiled_steps());
  ASSERT_TRUE(window.window);
  EXPECT_EQ(window.window->first_step, 2);
  EXPECT_EQ(window.window->end_step, 4);
  EXPECT_EQ(window.window->shapes, Options::Window::Shapes::kNotNamed);
  EXPECT_EQ(options(profiled_steps({"--record_shapes=true"})).window->shapes, Options::Window::Shapes::kNamed);

  EXPECT_FALSE(options(profiled_steps({"--use_pytorch_profiler=true"})).window) << "libtorch's profiler records";
  EXPECT_FALSE(options(profiled_steps(), 1).window) << "profile_ranks has rank 0 only";
  EXPECT_EQ(options({"--nvtx_ranges=true"}).ranges, Options::Ranges::kAlways);
  EXPECT_EQ(options({"--record_memory_history=true"}).memory_snapshot, "snapshot.pickle");
  EXPECT_EQ(options({"--record_memory_history=true", "--memory_snapshot_path=a/b"}).memory_snapshot, "a/b");
}

TEST_F(ExternalProfileRun, ACpuRefusesEachOfThem) {
  for (const auto& [words, key] : {std::pair{profiled_steps(), "profile: true"},
                                   {std::vector<std::string>{"--nvtx_ranges=true"}, "nvtx_ranges: true"},
                                   {{"--record_memory_history=true"}, "record_memory_history: true"}}) {
    try {
      run(experiment(words));
      FAIL() << key << " was taken";
    } catch (const UserError& error) {
      EXPECT_EQ(std::string(error.what()).find(key), 0U) << error.what();
      EXPECT_EQ(error.exit_code(), ExitCode::kWrongInput);
    }
  }
}

TEST_F(ExternalProfileRun, TracesOfLibtorchNeedNoGpu) {
  run(experiment(profiled_steps({"--use_pytorch_profiler=true"})));
  EXPECT_TRUE(fs::exists(run_folder() / "tensorboard/rank0_steps2-3.pt.trace.json.gz"));
}

}  // namespace
}  // namespace primus::train
