// Files of dump_pp_data: the original's, ours, and damaged ones.
#include "view/pp_data.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "base/error.hpp"
#include "base/files.hpp"
#include "config/test_folder.hpp"
#include "schedule/algorithms.hpp"
#include "support/soak.hpp"

namespace primus::view {
namespace {

using Json = nlohmann::ordered_json;

/// A rank's record as the original's run wrote it: no micro-batches, no weight gradients, intervals that add up to the
/// given sums.
Json record_of(double forward, double backward, double total, double memory, int num_boxes) {
  Json record = {{"total", total}, {"memory", memory}};
  for (const char* key :
       {"fwd_start", "fwd_end", "bwd_start", "bwd_end", "fwd_minibatch", "bwd_minibatch", "wgrad_start"})
    record[key] = Json::array();
  double now = 5.0;
  for (int i = 0; i < num_boxes; ++i) {
    record["fwd_start"].push_back(now);
    record["fwd_end"].push_back(now += forward / num_boxes);
    now += 1.0;
    record["bwd_start"].push_back(now);
    record["bwd_end"].push_back(now += backward / num_boxes);
  }
  return record;
}

struct Sample {
  double forward, backward, bubble, memory;
};

// projection-and-pipeline.md 4.2: what the original prints of its sample runs, iteration 7.
constexpr Sample kPp8[] = {{925.38, 1133.71, 36.41, 104.33}, {925.44, 1113.14, 37.04, 95.57},
                           {927.61, 1132.81, 36.37, 88.11},  {989.17, 1095.83, 35.61, 80.33},
                           {970.33, 1113.42, 35.64, 73.15},  {990.05, 1115.04, 34.99, 65.85},
                           {922.58, 1104.45, 37.40, 58.07},  {1068.69, 1197.19, 30.02, 52.20}};
constexpr Sample kPp8Vpp2[] = {{1008.54, 1119.03, 26.14, 130.60}, {954.06, 1107.47, 28.44, 122.34},
                               {943.74, 1135.57, 27.82, 115.40},  {899.87, 1089.19, 30.95, 108.46},
                               {912.57, 1097.96, 30.21, 101.03},  {936.37, 1097.67, 29.39, 93.13},
                               {915.98, 1088.54, 30.42, 85.17},   {1155.68, 1226.56, 17.30, 78.38}};

void write_sample(const test::TestFolder& folder, std::span<const Sample> samples, double step, int chunks) {
  folder.write("config.json",
               fmt::format(R"({{"pp_size": 8, "vp_size": {}, "num_mbs": 16, "train_iters": 8}})", chunks));
  for (std::size_t rank = 0; rank < samples.size(); ++rank) {
    const Sample& sample = samples[rank];
    const double total = rank == 2 ? step : step - 3.0;
    const Json json = {{"6", record_of(1.0, 1.0, 10.0, 1.0, 16 * chunks)},
                       {"7", record_of(sample.forward, sample.backward, total, sample.memory, 16 * chunks)},
                       {"8", record_of(2.0, 2.0, 10.0, 1.0, 16 * chunks)}};
    folder.write(fmt::format("pp_rank_{}.json", rank), json.dump());
  }
}

void expect_sample(std::span<const Sample> samples, double step, int chunks) {
  const test::TestFolder folder;
  write_sample(folder, samples, step, chunks);
  const PpData data = read_pp_data(folder.path(), "7");
  EXPECT_DOUBLE_EQ(data.chart.step, step);
  EXPECT_EQ(data.chart.num_chunks, chunks);
  for (std::size_t rank = 0; rank < samples.size(); ++rank) {
    const ChartRank& row = data.chart.ranks[rank];
    EXPECT_NEAR(row.forward, samples[rank].forward, 1e-6);
    EXPECT_NEAR(row.backward, samples[rank].backward, 1e-6);
    // The inputs are rounded to 0.01 ms, the printed percentage to 0.01.
    EXPECT_NEAR(100.0 * data.chart.bubble(row), samples[rank].bubble, 0.0055) << rank;
    EXPECT_EQ(row.memory, samples[rank].memory);
  }
}

TEST(PpDataTest, SamplesGiveThePrintedBubbles) {
  expect_sample(kPp8, 3237.89, 1);
  expect_sample(kPp8Vpp2, 2880.70, 2);
}

TEST(PpDataTest, TheLastIterationIsTakenUnlessOneIsNamed) {
  const test::TestFolder folder;
  write_sample(folder, kPp8, 3237.89, 1);
  EXPECT_EQ(read_pp_data(folder.path(), "").iteration, "8");
  EXPECT_EQ(read_pp_data(folder.path(), "6").iteration, "6");
  EXPECT_EQ(read_pp_data(folder.path(), "").iterations, (std::vector<std::string>{"6", "7", "8"}));
}

// The original numbers groups of P micro-batches, v times, whatever the rank: backwards and their chunks come out
// wrong.
TEST(PpDataTest, MissingNumbersAreMegatronsOwn) {
  const test::TestFolder folder;
  write_sample(folder, kPp8Vpp2, 2880.70, 2);
  const PipelineChart chart = read_pp_data(folder.path(), "7").chart;
  EXPECT_NE(chart.note.find("Megatron's own order"), std::string::npos);
  const schedule::Schedule order = schedule::build(
      {.algorithm = schedule::Algorithm::kInterleaved, .num_ranks = 8, .num_micro_batches = 16, .num_chunks = 2});
  for (int rank = 0; rank < 8; ++rank) {
    std::vector<std::pair<int, int>> expected;
    for (const schedule::Action& action : order.actions({rank})) {
      if (action.kind == schedule::ActionKind::kBackward)
        expected.emplace_back(action.micro_batch.value, action.chunk.value);
    }
    std::vector<std::pair<int, int>> found;
    for (const Box& box : chart.ranks[static_cast<std::size_t>(rank)].boxes) {
      if (box.kind == BoxKind::kWholeBackward) found.emplace_back(box.micro_batch, box.chunk);
    }
    EXPECT_EQ(found, expected);
  }
}

TEST(PpDataTest, WhatIsWrittenIsRead) {
  for (const auto algorithm : {schedule::Algorithm::kZbv, schedule::Algorithm::kDualPipeV}) {
    const schedule::Schedule table =
        schedule::build({.algorithm = algorithm, .num_ranks = 4, .num_micro_batches = 9, .num_chunks = 2});
    const PipelineChart chart =
        chart_of(table, schedule::simulate(table, schedule::even_costs(table.shape, 1.0, 2.0, 3.0)), "x");
    const test::TestFolder folder;
    write_pp_data(chart, "0", folder.path());
    const PpData data = read_pp_data(folder.path(), "0");
    EXPECT_EQ(data.chart.note, "");
    EXPECT_EQ(data.chart.num_micro_batches, 9);
    for (std::size_t rank = 0; rank < 4; ++rank) {
      const ChartRank& was = chart.ranks[rank];
      const ChartRank& is = data.chart.ranks[rank];
      ASSERT_EQ(is.boxes.size(), was.boxes.size());
      EXPECT_NEAR(is.busy, was.busy, 1e-9);
      EXPECT_EQ(is.memory, was.memory);
      for (std::size_t i = 0; i < is.boxes.size(); ++i) {
        EXPECT_EQ(is.boxes[i].micro_batch, was.boxes[i].micro_batch);
        EXPECT_EQ(is.boxes[i].chunk, was.boxes[i].chunk);
        EXPECT_EQ(is.boxes[i].part, was.boxes[i].part);
      }
    }
  }
}

std::string fault_of(const test::TestFolder& folder, const std::string& iteration = "") {
  try {
    read_pp_data(folder.path(), iteration);
  } catch (const ConfigError& error) {
    std::string text = error.what();
    const std::string path = folder.path().string();
    for (std::size_t at = text.find(path); at != std::string::npos; at = text.find(path)) text.erase(at, path.size());
    return text;
  }
  return "no error";
}

TEST(PpDataTest, FaultsNameFileAndPlace) {
  const auto fault_with = [](const std::string& rank, const std::string& config = R"({"pp_size": 1})",
                             const std::string& iteration = "") {
    const test::TestFolder folder;
    folder.write("config.json", config);
    folder.write("pp_rank_0.json", rank);
    return fault_of(folder, iteration);
  };
  EXPECT_EQ(fault_with("{"), "/pp_rank_0.json: is not JSON");
  EXPECT_EQ(fault_with("[1]"), "/pp_rank_0.json: is no object (expected an object, found [1])");
  EXPECT_EQ(fault_with("{}"), "/pp_rank_0.json: holds no iteration");
  EXPECT_EQ(fault_with(R"({"1": {}})", R"({"pp_size": 1})", "9"),
            "/pp_rank_0.json: has no such iteration (expected 1 to 1, found 9)");
  EXPECT_EQ(fault_with(R"({"1": {"fwd_start": [0]}})"),
            "/pp_rank_0.json: 1.fwd_end: fwd_start has another length (expected 1 times, found 0)");
  EXPECT_EQ(fault_with(R"({"1": {"fwd_start": [3], "fwd_end": [2]}})"),
            "/pp_rank_0.json: 1.fwd_end[0]: a box ends before it begins (expected at least 3, found 2)");
  EXPECT_EQ(fault_with(R"({"1": {"fwd_start": ["x"], "fwd_end": [2]}})"),
            "/pp_rank_0.json: 1.fwd_start[0]: is no time (expected milliseconds, found \"x\")");
  EXPECT_EQ(fault_with(R"({"1": {"total": 1e99}})"),
            "/pp_rank_0.json: 1.total: is no time (expected milliseconds, found 1e+99)");
  EXPECT_EQ(fault_with(R"({"1": {"fwd_start": [0], "fwd_end": [2], "fwd_chunk": [-1]}})"),
            "/pp_rank_0.json: 1.fwd_chunk[0]: is no number of a micro-batch or chunk (expected integer from 0 to 1023, "
            "found -1)");
  EXPECT_EQ(fault_with(R"({"1": {}})", R"({"pp_size": 0})"),
            "/config.json: pp_size: is no count (expected integer from 1 to 1000000, found 0)");
  EXPECT_EQ(fault_with(R"({"1": {}})", R"({"pp_size": 2})"),
            "/pp_rank_1.json: cannot be read (expected a file of dump_pp_data)");
  const test::TestFolder empty;
  EXPECT_EQ(fault_of(empty), ": holds no pp_rank_0.json (expected files of dump_pp_data)");
}

// Damaged files are read or refused; whatever is read can be drawn.
TEST(PpDataTest, MutatedFilesNeverCrash) {
  const int num_cases = test::rounds(3000, 100'000);
  const test::TestFolder folder;
  folder.write("config.json", R"({"pp_size": 1, "vp_size": 1, "num_mbs": 2})");
  const std::string whole = Json{{"1", record_of(10.0, 20.0, 40.0, 3.0, 2)}}.dump();
  const std::string config = R"({"pp_size": 1, "vp_size": 1, "num_mbs": 2})";
  std::mt19937 random(5);
  const auto below = [&](std::size_t n) { return std::uniform_int_distribution<std::size_t>(0, n - 1)(random); };
  const std::string letters = "0123456789-.,:[]{}\"eE nulltrue\x01\xff";
  int num_read = 0;
  for (int i = 0; i < num_cases; ++i) {
    std::string rank = whole;
    std::string sizes = config;
    std::string& text = i % 4 == 0 ? sizes : rank;
    for (std::size_t change = 0; change <= below(3); ++change) {
      const std::size_t at = below(text.size());
      switch (below(3)) {
        case 0:
          text[at] = letters[below(letters.size())];
          break;
        case 1:
          text.erase(at, 1 + below(6));
          break;
        default:
          text.insert(at, 1, letters[below(letters.size())]);
      }
      if (text.empty()) text = "0";
    }
    // New files: replacing one waits for the disk.
    for (const auto& [name, content] : {std::pair{"config.json", &sizes}, {"pp_rank_0.json", &rank}}) {
      std::filesystem::remove(folder.path() / name);
      std::ofstream(folder.path() / name) << *content;
    }
    try {
      const PpData data = read_pp_data(folder.path(), "");
      ++num_read;
      for (const ChartRank& row : data.chart.ranks) EXPECT_TRUE(std::isfinite(row.busy));
    } catch (const ConfigError& error) {
      EXPECT_FALSE(error.problems().empty());
    }
  }
  EXPECT_GT(num_read, num_cases / 100);
}

}  // namespace
}  // namespace primus::view
