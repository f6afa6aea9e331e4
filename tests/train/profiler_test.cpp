// Traces: the window, the zones' names, compression, and what cannot be recorded.
#include "train/profiler.hpp"

#include <gtest/gtest.h>
#include <unistd.h>
#include <zlib.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.hpp"
#include "base/files.hpp"
#include "ops/zone.hpp"
#include "train/tiny_run.hpp"

namespace primus::train {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

std::string text_of(const std::string& path) {
  // gzopen reads what is not compressed as it is.
  gzFile file = gzopen(path.c_str(), "rb");
  EXPECT_NE(file, nullptr) << path;
  std::string text;
  char buffer[4096];
  for (int n = 0; (n = gzread(file, buffer, sizeof buffer)) > 0;) text.append(buffer, static_cast<std::size_t>(n));
  gzclose(file);
  return text;
}

/// How often each name stands in the trace, of one category or of all.
std::map<std::string, int> names(const std::string& path, const std::string& category = {}) {
  std::map<std::string, int> count;
  const Json trace = Json::parse(text_of(path));
  for (const Json& event : trace.at("traceEvents")) {
    if (event.value("ph", "") != "X") continue;
    if (category.empty() || event.value("cat", "") == category) ++count[event.value("name", "")];
  }
  return count;
}

class ProfilerTest : public ::testing::Test {
 protected:
  void SetUp() override { folder_ = fs::temp_directory_path() / fmt::format("primus_profiler_{}", ::getpid()); }
  void TearDown() override { fs::remove_all(folder_); }

  ProfileOptions options(std::int64_t first, std::int64_t end) const {
    ProfileOptions options;
    options.first_step = first;
    options.end_step = end;
    options.folder = (folder_ / "traces").string();
    return options;
  }

  /// Steps of one zone inside another; the paths that were written.
  static std::vector<std::string> run(Profiler& profiler, std::int64_t num_steps) {
    std::vector<std::string> written;
    for (std::int64_t step = 0; step < num_steps; ++step) {
      profiler.begin_step(step);
      {
        const ops::ZoneScope outer(ops::Zone::kOptimizer);
        const ops::ZoneScope inner(ops::Zone::kGradientNorm);
        at::empty({16}, at::kFloat).fill_(1.0);
      }
      if (auto path = profiler.end_step()) written.push_back(*path);
    }
    if (auto path = profiler.finish()) written.push_back(*path);
    return written;
  }

  fs::path folder_;
};

TEST_F(ProfilerTest, RecordsTheWindowAndNothingElse) {
  Profiler profiler(options(2, 5), at::kCPU, 0);
  const std::vector<std::string> written = run(profiler, 8);
  ASSERT_EQ(written.size(), 1U);
  EXPECT_EQ(fs::path(written[0]).filename(), "rank0_steps2-4.pt.trace.json");
  auto count = names(written[0]);
  for (const char* step : {"ProfilerStep#2", "ProfilerStep#3", "ProfilerStep#4"}) EXPECT_EQ(count[step], 1) << step;
  EXPECT_EQ(count.count("ProfilerStep#1") + count.count("ProfilerStep#5"), 0U);
  EXPECT_EQ(count["optimizer"], 3);
  EXPECT_EQ(count["gradient_norm"], 3);
  EXPECT_EQ(count["aten::fill_"], 3);
}

TEST_F(ProfilerTest, CompressedTracesAreTheSame) {
  ProfileOptions gzip = options(0, 1);
  gzip.format = ProfileOptions::Format::kGzip;
  gzip.shapes = ProfileOptions::Shapes::kRecorded;
  Profiler profiler(gzip, at::kCPU, 3);
  const std::vector<std::string> written = run(profiler, 2);
  ASSERT_EQ(written.size(), 1U);
  EXPECT_EQ(fs::path(written[0]).filename(), "rank3_steps0-0.pt.trace.json.gz");
  EXPECT_EQ(read_file(written[0]).substr(0, 2), "\x1f\x8b");
  EXPECT_FALSE(fs::exists(written[0].substr(0, written[0].size() - 3)));
  EXPECT_EQ(names(written[0])["ProfilerStep#0"], 1);
  EXPECT_NE(text_of(written[0]).find("\"Input Dims\": [[16]"), std::string::npos);
}

TEST_F(ProfilerTest, ARunThatEndsInTheWindowWritesWhatThereIs) {
  Profiler profiler(options(1, 100), at::kCPU, 0);
  const std::vector<std::string> written = run(profiler, 3);
  ASSERT_EQ(written.size(), 1U);
  EXPECT_EQ(fs::path(written[0]).filename(), "rank0_steps1-2.pt.trace.json");
  EXPECT_EQ(names(written[0])["ProfilerStep#2"], 1);
}

TEST_F(ProfilerTest, ARunThatGoesOnInTheWindowRecordsTheRestOfIt) {
  Profiler profiler(options(1, 6), at::kCPU, 0);
  for (const std::int64_t step : {3, 5}) {  // the data of step 4 is passed over
    profiler.begin_step(step);
    const auto path = profiler.end_step();
    ASSERT_EQ(path.has_value(), step == 5);
    EXPECT_EQ(fs::path(path.value_or("")).filename(), step == 5 ? "rank0_steps3-5.pt.trace.json" : "");
  }
  profiler.begin_step(6);
  EXPECT_FALSE(profiler.end_step() || profiler.finish());
}

TEST_F(ProfilerTest, AStepThatThrowsLeavesNothingBehind) {
  for (int again = 0; again < 2; ++again) {
    try {
      Profiler profiler(options(0, 10), at::kCPU, 0);
      profiler.begin_step(0);
      const ops::ZoneScope zone(ops::Zone::kRouter);
      throw std::runtime_error("diverged");
    } catch (const std::runtime_error&) {
    }
    EXPECT_FALSE(fs::exists(folder_));
  }
  Profiler profiler(options(0, 1), at::kCPU, 0);
  EXPECT_EQ(run(profiler, 1).size(), 1U);
}

// What Chakra's converter reads: the schema, and nodes each with a parent that is there.
TEST_F(ProfilerTest, AnExecutionTraceIsAGraphOfTheWindow) {
  ProfileOptions with_graph = options(1, 3);
  with_graph.graph = ProfileOptions::Graph::kRecorded;
  for (int again = 0; again < 2; ++again) {
    Profiler profiler(with_graph, at::kCPU, 2);
    EXPECT_EQ(run(profiler, 4).size(), 1U);
    const Json graph = Json::parse(read_file(folder_ / "traces/rank2_steps1-2.chakra.json"));
    EXPECT_TRUE(graph.at("schema").get<std::string>().find("chakra") != std::string::npos) << graph.at("schema");
    std::set<std::int64_t> ids;
    std::map<std::string, int> count;
    for (const Json& node : graph.at("nodes")) {
      ids.insert(node.at("id").get<std::int64_t>());
      ++count[node.at("name").get<std::string>()];
    }
    EXPECT_EQ(count["ProfilerStep#1"] + count["ProfilerStep#2"], 2);
    EXPECT_EQ(count.count("ProfilerStep#0") + count.count("ProfilerStep#3"), 0U);
    EXPECT_EQ(count["optimizer"], 2);
    EXPECT_EQ(count["aten::fill_"], 2);
    for (const Json& node : graph.at("nodes")) EXPECT_TRUE(ids.contains(node.at("ctrl_deps").get<std::int64_t>()));
  }
}

TEST_F(ProfilerTest, AnExecutionTraceOfAStepThatThrowsGoes) {
  ProfileOptions with_graph = options(0, 3);
  with_graph.graph = ProfileOptions::Graph::kRecorded;
  try {
    Profiler profiler(with_graph, at::kCPU, 0);
    profiler.begin_step(0);
    throw std::runtime_error("diverged");
  } catch (const std::runtime_error&) {
  }
  EXPECT_TRUE(fs::is_empty(folder_ / "traces"));
  fs::remove_all(folder_);
  fs::create_directories(folder_);
  write_file(folder_ / "traces", "a file");
  Profiler profiler(with_graph, at::kCPU, 0);
  EXPECT_THROW(run(profiler, 4), UserError);
}

TEST_F(ProfilerTest, WithoutOptionsNothingIsRecorded) {
  Profiler profiler(std::nullopt, at::kCPU, 0);
  EXPECT_TRUE(run(profiler, 3).empty());
}

TEST_F(ProfilerTest, TheDeviceAloneNeedsADevice) {
  ProfileOptions device_only = options(0, 1);
  device_only.activities = ProfileOptions::Activities::kDeviceOnly;
  EXPECT_THROW(Profiler(device_only, at::kCPU, 0), UserError);
}

TEST_F(ProfilerTest, AFolderThatCannotBeMadeIsNamed) {
  fs::create_directories(folder_);
  write_file(folder_ / "traces", "a file");
  Profiler profiler(options(0, 1), at::kCPU, 0);
  try {
    run(profiler, 1);
    FAIL() << "wrote into a file";
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find((folder_ / "traces").string()), std::string::npos) << error.what();
  }
}

class ProfiledRun : public TinyRun {
 protected:
  fs::path trace_folder() const { return run_folder() / "tensorboard"; }

  std::vector<std::string> traces(const fs::path& folder) const {
    std::vector<std::string> found;
    if (!fs::exists(folder)) return found;
    for (const auto& entry : fs::directory_iterator(folder)) {
      if (entry.path().string().find(".pt.trace.json") != std::string::npos) found.push_back(entry.path().string());
    }
    return found;
  }

  static std::vector<std::string> profiled(std::vector<std::string> more = {}) {
    more.emplace_back("--use_pytorch_profiler=true");
    return profiled_steps(more);
  }
};

TEST_F(ProfiledRun, TheTraceHoldsTheWindowsStepsUnderTheNamesOfOneList) {
  run(experiment(profiled()));
  ASSERT_EQ(traces(trace_folder()),
            std::vector<std::string>{(trace_folder() / "rank0_steps2-3.pt.trace.json.gz").string()});
  std::set<std::string> known = {"ProfilerStep#2", "ProfilerStep#3"};
  for (int zone = 0; zone < ops::kNumZones; ++zone) known.emplace(ops::name(static_cast<ops::Zone>(zone)));
  const auto annotations = names(traces(trace_folder()).front(), "user_annotation");
  for (const auto& [name, count] : annotations) {
    EXPECT_TRUE(known.contains(name)) << name;
    EXPECT_TRUE(name.starts_with("ProfilerStep") ? count == 1 : count % 2 == 0) << name << ": " << count;
  }
  for (const char* zone : {"linear.forward", "grouped.wgrad", "attention.backward", "router", "loss", "optimizer"})
    EXPECT_TRUE(annotations.contains(zone)) << zone;
  EXPECT_FALSE(names(traces(trace_folder()).front(), "cpu_op").empty());
}

TEST_F(ProfiledRun, ATraceChangesNoLoss) {
  run(experiment(profiled()));
  const std::vector<std::string> with_trace = losses();
  run(experiment({"--train_iters=6"}));
  EXPECT_EQ(losses(), with_trace);
}

TEST_F(ProfiledRun, KeysChooseRanksFormatAndFolder) {
  run(experiment(
      profiled({"--torch_profiler_use_gzip=false", "--tensorboard_dir=" + (folder_ / "elsewhere").string()})));
  EXPECT_EQ(traces(folder_ / "elsewhere"),
            std::vector<std::string>{(folder_ / "elsewhere/rank0_steps2-3.pt.trace.json").string()});
  run(experiment(profiled({"--profile_ranks=[]"}), "nobody"));
  run(experiment(profiled({"--profile=false"}), "off"));
  EXPECT_TRUE(traces(run_folder("nobody") / "tensorboard").empty());
  EXPECT_TRUE(traces(run_folder("off") / "tensorboard").empty());
}

TEST_F(ProfiledRun, AnExecutionTraceIsAskedForByItsKey) {
  run(experiment(profiled({"--pytorch_profiler_collect_chakra=true"})));
  const Json graph = Json::parse(read_file(trace_folder() / "rank0_steps2-3.chakra.json"));
  std::set<std::string> found;
  for (const Json& node : graph.at("nodes")) found.insert(node.at("name").get<std::string>());
  for (const char* name : {"ProfilerStep#2", "linear.forward", "router", "optimizer"})
    EXPECT_TRUE(found.contains(name)) << name;
}

TEST_F(ProfiledRun, ATraceThatCannotBeWrittenDoesNotEndTheRun) {
  write_file(folder_ / "file", "no folder");
  const RunSummary summary = run(experiment(profiled({"--tensorboard_dir=" + (folder_ / "file").string()})));
  EXPECT_EQ(summary.end, EndOfRun::kAllSteps);
  EXPECT_NE(read_file((run_folder() / "log.txt").string()).find("file"), std::string::npos);
}

}  // namespace
}  // namespace primus::train
