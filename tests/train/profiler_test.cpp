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

namespace primus::train {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

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
      const bool ends = step + 1 == num_steps;
      if (auto path = profiler.end_step(step, ends ? Profiler::Run::kEnds : Profiler::Run::kGoesOn)) {
        written.push_back(*path);
      }
    }
    return written;
  }

  static std::string text_of(const std::string& path) {
    // gzopen reads what is not compressed as it is.
    gzFile file = gzopen(path.c_str(), "rb");
    EXPECT_NE(file, nullptr) << path;
    std::string text;
    char buffer[4096];
    for (int n = 0; (n = gzread(file, buffer, sizeof buffer)) > 0;) text.append(buffer, static_cast<std::size_t>(n));
    gzclose(file);
    return text;
  }

  /// How often each name stands in the trace.
  static std::map<std::string, int> names(const std::string& path) {
    std::map<std::string, int> count;
    for (const Json& event : Json::parse(text_of(path)).at("traceEvents")) {
      if (event.value("ph", "") == "X") ++count[event.value("name", "")];
    }
    return count;
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

}  // namespace
}  // namespace primus::train
