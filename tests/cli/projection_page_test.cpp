// The figures in docs/projection.md are what the commands answer.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <regex>

#include "base/files.hpp"
#include "base/text.hpp"
#include "cli/program.hpp"

namespace primus::cli {
namespace {

using Json = nlohmann::json;
using Words = std::vector<std::string>;

/// "768: PP24 EP8 CP2" as overrides, one layer a chunk, as on the page.
Words layout_words(const std::string& label) {
  const std::regex pattern(R"(([\d,]+): PP(\d+) EP(\d+)(?: CP(\d+))?)");
  std::smatch match;
  EXPECT_TRUE(std::regex_match(label, match, pattern)) << label;
  std::string world = match[1];
  std::erase(world, ',');
  const int stages = std::stoi(match[2]);
  return {"--world-size",
          world,
          "--pipeline_model_parallel_size",
          match[2],
          "--num_virtual_stages_per_pipeline_rank",
          std::to_string(96 / stages),
          "--expert_model_parallel_size",
          match[3],
          "--context_parallel_size",
          match[4].matched ? match[4].str() : "1",
          "--global_batch_size",
          world == "768" ? "1536" : "2048",
          "--microbatch_group_size_per_vp_stage",
          "null"};
}

double total_gib(const std::string& model, const std::string& layout, const std::string& accounting) {
  Words words = {
      "projection",
      "memory",
      "--config",
      std::string(PRIMUS_SOURCE_DIR) + "/examples/moe_package/configs/MI355X/moe_" + model + "-pretrain-baseline.yaml",
      "--accounting",
      accounting,
      "--format",
      "json"};
  const Words more = layout_words(layout);
  words.insert(words.end(), more.begin(), more.end());
  const ProgramResult result = run_program(words);
  EXPECT_EQ(result.code, 0) << result.err;
  const Json json = Json::parse(result.out);
  return (accounting == "ours" ? json["largest"]["total_bytes"] : json["total_bytes"]).get<double>() / 0x1p30;
}

TEST(ProjectionPage, TheTableOfLayoutsIsCurrent) {
  const std::string page = read_file(std::string(PRIMUS_SOURCE_DIR) + "/docs/projection.md");
  int num_rows = 0;
  for (const std::string& line : split(page, '\n')) {
    if (!line.starts_with("| 768: ") && !line.starts_with("| 1,024: ")) continue;
    ++num_rows;
    const std::vector<std::string> cells = split(line, '|');
    ASSERT_EQ(cells.size(), 7U) << line;
    const std::string layout(trim(cells[1]));
    const std::pair<std::string, std::string> columns[] = {
        {"1T", "ours"}, {"1T", "blog"}, {"2T", "ours"}, {"2T", "blog"}};
    for (std::size_t i = 0; i < std::size(columns); ++i) {
      const std::string written(trim(cells[i + 2]));
      if (written.empty()) continue;
      EXPECT_NEAR(std::stod(written), total_gib(columns[i].first, layout, columns[i].second), 0.0501)
          << layout << ", " << columns[i].first << " " << columns[i].second;
    }
  }
  EXPECT_EQ(num_rows, 10);
}

}  // namespace
}  // namespace primus::cli
