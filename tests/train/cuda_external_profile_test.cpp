// Profilers of others on a GPU: the names that a listener hears, and the snapshot of its memory. A program of its own:
// libtorch looks for its CUDA half once in a process, at the first tensor.
#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <set>
#include <sstream>

#include "base/files.hpp"
#include "ops/device.hpp"
#include "ops/zone.hpp"
#include "train/tiny_run.hpp"

namespace primus::train {
namespace {

namespace fs = std::filesystem;

class MarkedOnGpu : public TinyRun {
 protected:
  void SetUp() override {
    // NVTX looks for its listener at the first range of the process. It lies beside the program.
    const std::string listener = (fs::read_symlink("/proc/self/exe").parent_path() / PRIMUS_NVTX_LISTENER).string();
    ::setenv("NVTX_INJECTION64_PATH", listener.c_str(), /*overwrite=*/1);
    std::string why_cpu;
    device_ = ops::select_device(ops::DeviceChoice::kAuto, why_cpu);
    if (device_.is_cpu()) GTEST_SKIP() << "no GPU: " << why_cpu;
    void* library = dlopen(listener.c_str(), RTLD_NOW);
    ASSERT_NE(library, nullptr) << dlerror();
    names_ = reinterpret_cast<const char* (*)()>(dlsym(library, "nvtx_listener_names"));
    ASSERT_NE(names_, nullptr);
    TinyRun::SetUp();
  }

  /// What was heard while the run went on.
  std::string heard(const std::vector<std::string>& words) {
    const std::size_t before = std::string(names_()).size();
    Trainer trainer(experiment(words), device_);
    Reporter reporter(run_folder(), RunOptions::PerLayerLog::kNo, 0);
    trainer.run(reporter);
    return std::string(names_()).substr(before);
  }

  static int count(const std::string& text, const std::string& line) {
    std::istringstream in(text);
    int found = 0;
    for (std::string one; std::getline(in, one);) found += one == line ? 1 : 0;
    return found;
  }

  static int count_beginning(const std::string& text, const std::string& beginning) {
    std::istringstream in(text);
    int found = 0;
    for (std::string one; std::getline(in, one);) found += one.starts_with(beginning) ? 1 : 0;
    return found;
  }

  at::Device device_ = at::kCPU;
  const char* (*names_)() = nullptr;
};

TEST_F(MarkedOnGpu, AWindowNamesItsStepsZonesAndOperations) {
  const std::string text = heard(profiled_steps());
  EXPECT_EQ(count_beginning(text, "+step "), 2) << text;
  for (const char* line : {"+step 2", "+step 3"}) EXPECT_EQ(count(text, line), 1) << line;
  for (const char* zone :
       {"+linear.forward", "+grouped.wgrad", "+attention.backward", "+router", "+loss", "+optimizer"})
    EXPECT_GT(count(text, zone), 0) << zone;
  EXPECT_GT(count_beginning(text, "+aten::"), 0);
  EXPECT_EQ(count_beginning(text, "+"), count(text, "-")) << "each range ends";
  EXPECT_EQ(text.find("sizes"), std::string::npos);
  EXPECT_NE(heard(profiled_steps({"--record_shapes=true"})).find("sizes"), std::string::npos);
}

TEST_F(MarkedOnGpu, RangesOfAllStepsAreTheZonesAlone) {
  const std::string text = heard({"--train_iters=6", "--nvtx_ranges=true"});
  EXPECT_EQ(count_beginning(text, "+step "), 6) << text;
  EXPECT_GE(count(text, "+linear.forward"), 6);
  EXPECT_EQ(count_beginning(text, "+aten::"), 0);
  EXPECT_EQ(count_beginning(text, "+"), count(text, "-"));
  EXPECT_EQ(heard({"--train_iters=6"}), "") << "without the key nothing is named";
}

TEST_F(MarkedOnGpu, ASnapshotHoldsAllocationsUnderTheNamesOfZones) {
  const std::string path = (folder_ / "made/snapshot.pickle").string();
  heard({"--train_iters=3", "--record_memory_history=true", "--memory_snapshot_path=" + path});
  const std::string snapshot = read_file(path);
  ASSERT_GT(snapshot.size(), 1000U);
  EXPECT_EQ(snapshot.front(), '\x80') << "a pickle begins with its protocol";
  for (const char* word : {"segments", "device_traces", "user_metadata"})
    EXPECT_NE(snapshot.find(word), std::string::npos) << word;
  // Which zones allocate is the ops' own business; that the loss does is not.
  std::set<std::string_view> found;
  for (int zone = 0; zone < ops::kNumZones; ++zone) {
    const std::string_view name = ops::name(static_cast<ops::Zone>(zone));
    if (snapshot.find(name) != std::string::npos) found.insert(name);
  }
  EXPECT_TRUE(found.contains("loss"));
  EXPECT_GE(found.size(), 3U);
}

}  // namespace
}  // namespace primus::train
