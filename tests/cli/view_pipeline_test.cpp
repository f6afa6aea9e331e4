// view pipeline through the real program: sources, endings, figures, refusals.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/files.hpp"
#include "base/text.hpp"
#include "cli/program.hpp"
#include "config/test_folder.hpp"

namespace primus::cli {
namespace {

using Json = nlohmann::json;
using Words = std::vector<std::string>;

const std::string kExamples = std::string(PRIMUS_SOURCE_DIR) + "/examples/";
const std::string kV2 = kExamples + "megatron/configs/MI355X/deepseek_v2-BF16-pretrain.yaml";

class ViewPipeline : public testing::Test {
 protected:
  ProgramResult run(Words words) const {
    words.insert(words.begin(), {"view", "pipeline"});
    return run_program(words, folder_.path().string());
  }
  Json json(Words words) const {
    words.insert(words.end(), {"--format", "json"});
    const ProgramResult result = run(std::move(words));
    EXPECT_EQ(result.code, 0) << result.out << result.err;
    return Json::parse(result.out);
  }
  std::string file(const std::string& name) const { return read_file(folder_.path() / name); }
  std::string refusal(Words words) const {
    const ProgramResult result = run(std::move(words));
    EXPECT_EQ(result.code, 2);
    EXPECT_EQ(result.out, "");
    return result.err;
  }

  test::TestFolder folder_;
};

const Words kSizes = {"--stages", "8", "--micro-batches", "32"};

Words with(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

TEST_F(ViewPipeline, TellsTheReferencesSteps) {
  const Json answer = json(with(kSizes, {"--times", "1000,1000,1000", "--schedule",
                                         "1f1b,zero-bubble,1f1b-interleaved,zbv-formatted,v-half,v-min"}));
  std::vector<double> steps;
  for (const Json& chart : answer["charts"]) steps.push_back(chart["step"]);
  EXPECT_EQ(steps, (std::vector<double>{117000, 103000, 106500, 99500, 104500, 109000}));
  EXPECT_NEAR(answer["charts"][0]["formula_bubble"].get<double>(), 7.0 / 39.0, 1e-12);
  EXPECT_EQ(answer["charts"][3]["ranks"].size(), 8U);
  EXPECT_EQ(answer["charts"][3]["actions"][0].back()["action"], "optimizer_step");
}

TEST_F(ViewPipeline, ShowsABetterOrderBeside) {
  const Json answer = json(with(kSizes, {"--schedule", "v-min,1f1b", "--better"}));
  ASSERT_EQ(answer["charts"].size(), 3U);
  EXPECT_EQ(answer["charts"][1]["name"], "v-min, a shorter order within the same memory");
  EXPECT_EQ(answer["charts"][1]["step"], 107.5);
  EXPECT_EQ(answer["charts"][2]["note"], "no shorter order is known within the same memory");
}

TEST_F(ViewPipeline, DrawsAnExperiment) {
  const Words words = {"--config",
                       kV2,
                       "--pipeline_model_parallel_size",
                       "4",
                       "--num_virtual_stages_per_pipeline_rank",
                       "5",
                       "--pipeline_model_parallel_layout",
                       "null"};
  const ProgramResult text = run(words);
  ASSERT_EQ(text.code, 0) << text.err;
  EXPECT_NE(text.out.find("1f1b-interleaved\n4 ranks, 5 chunks each"), std::string::npos) << text.out;
  EXPECT_NE(text.out.find("stages by their FLOPs"), std::string::npos);
  const Json both = json(with(words, {"--schedule", "1f1b,zbv-formatted"}));
  EXPECT_EQ(both["charts"][0]["chunks"], 1);
  EXPECT_EQ(both["charts"][1]["chunks"], 2);
}

TEST_F(ViewPipeline, EndingsSayWhatIsWritten) {
  for (const char* name : {"a.svg", "b.html", "c.txt", "d.json", "sub/e.svg"}) {
    const ProgramResult result = run(with(kSizes, {"--out", name}));
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_EQ(result.out, "1f1b: step 117 forwards, mean bubble 17.95 %\npicture  " + std::string(name) + "\n");
  }
  EXPECT_EQ(file("a.svg").substr(0, 4), "<svg");
  EXPECT_EQ(file("b.html").substr(0, 15), "<!doctype html>");
  EXPECT_EQ(file("c.txt").find('\x1b'), std::string::npos);
  EXPECT_EQ(Json::parse(file("d.json"))["charts"][0]["step"], 117.0);
  EXPECT_NE(file("a.svg"), read_file(folder_.path() / "c.txt"));
  EXPECT_EQ(json(with(kSizes, {"--out", "a.svg"}))["picture"], "a.svg");
}

TEST_F(ViewPipeline, PngNeedsItsProgram) {
  const ProgramResult result = run(with(kSizes, {"--out", "a.png"}));
  if (result.code == 0) {
    EXPECT_EQ(file("a.png").substr(1, 3), "PNG");
  } else {
    EXPECT_EQ(result.code, 1);
    EXPECT_NE(result.err.find("Debian: librsvg2-bin"), std::string::npos) << result.err;
  }
  // No half-finished file stays.
  for (const auto& entry : std::filesystem::directory_iterator(folder_.path())) {
    EXPECT_EQ(entry.path().filename(), "a.png");
  }
}

TEST_F(ViewPipeline, ASimulationWrittenAsDataIsDrawnAgain) {
  EXPECT_EQ(run(with(kSizes, {"--schedule", "v-half", "--write-data", "pp", "--out", "x.svg"})).code, 0);
  const Json again = json({"--data", "pp"});
  EXPECT_EQ(again["charts"][0]["name"], "pp, iteration 0");
  EXPECT_EQ(again["charts"][0]["step"], 104.5);
  EXPECT_EQ(again["time_unit"], "ms");
}

TEST_F(ViewPipeline, RefusesWhatItCannotDraw) {
  const std::string begin = "error: command line: ";
  EXPECT_EQ(refusal({}), begin +
                             "--config, --data or --stages is missing (expected one of --config, --data, --stages "
                             "with --micro-batches)\n");
  EXPECT_EQ(refusal({"--stages", "4"}), begin + "--micro-batches: is missing (expected integer >= 1)\n");
  EXPECT_EQ(
      refusal(with(kSizes, {"--data", "x"})),
      begin + "several sources of one picture (expected one of --config, --data, --stages with --micro-batches)\n");
  EXPECT_EQ(refusal(with(kSizes, {"--num_layers", "3"})),
            begin + "unexpected '--num_layers'; overrides need --config\n");
  EXPECT_NE(refusal(with(kSizes, {"--schedule", "zbv"})).find("unknown schedule 'zbv'"), std::string::npos);
  EXPECT_EQ(
      refusal(with(kSizes, {"--schedule", "zbv-formatted,1f1b-interleaved", "--micro-batches", "12"})).substr(0, 21),
      begin);
  EXPECT_EQ(refusal({"--stages", "8", "--micro-batches", "12", "--schedule", "1f1b-interleaved"}),
            begin +
                "--micro-batches: 1f1b-interleaved: 8 pipeline ranks cannot interleave them in groups of 8 (expected a "
                "multiple of 8, or one that leaves a last group of at least 8, found 12); nearest: 8\n");
  EXPECT_EQ(
      refusal(with(kSizes, {"--out", "x.gif"})),
      begin + "--out: the ending says what to write (expected FILE.svg, .html, .png, .txt or .json, found x.gif)\n");
  EXPECT_EQ(refusal({"--data", "nowhere"}), "error: nowhere: is no folder (expected a folder of dump_pp_data)\n");
  EXPECT_NE(refusal(with(kSizes, {"--exchange", "0.1"})).find("needs --config"), std::string::npos);
  EXPECT_NE(refusal(with(kSizes, {"--iteration", "3"})).find("--iteration: chooses among the files of --data"),
            std::string::npos);
  EXPECT_NE(refusal({"--stages", "1000000", "--micro-batches", "1000000"}).find("the table would be too large"),
            std::string::npos);
}

// Every picture of the documentation is what the command below it draws.
TEST_F(ViewPipeline, TheDocumentationsPicturesAreCurrent) {
  const std::string root = PRIMUS_SOURCE_DIR;
  const bool updates = std::getenv("PRIMUS_UPDATE_GOLDEN") != nullptr;
  int num_pictures = 0;
  for (const char* page : {"docs/schedules.md", "docs/pictures.md"}) {
    for (const std::string& line : split(read_file(root + "/" + page), '\n')) {
      if (!line.starts_with("primus-cli view pipeline") || line.find("--out docs/pictures/") == std::string::npos)
        continue;
      Words words = split(line, ' ');
      words.erase(words.begin());
      const std::string picture = root + "/" + words.back();
      words.back() = updates ? picture : (folder_.path() / "picture.svg").string();
      const ProgramResult result = run_program(words, root);
      ASSERT_EQ(result.code, 0) << result.err;
      EXPECT_TRUE(read_file(words.back()) == read_file(picture)) << line;
      EXPECT_LT(std::filesystem::file_size(picture), 250'000U) << picture;
      ++num_pictures;
    }
  }
  EXPECT_EQ(num_pictures, 3);
}

// Fifty milliseconds are the bound of views up to sixteen stages; here the best of a few, on a machine that may be
// busy.
TEST_F(ViewPipeline, SixteenStagesTakeMilliseconds) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "times mean nothing under a sanitizer";
#endif
  double best_ms = 1e9;
  for (int i = 0; i < 8; ++i) {
    const auto start = std::chrono::steady_clock::now();
    EXPECT_EQ(run({"--stages", "16", "--micro-batches", "64", "--schedule", "1f1b", "--out", "x.html"}).code, 0);
    best_ms =
        std::min(best_ms, std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count());
  }
  EXPECT_LT(best_ms, 50.0);
}

}  // namespace
}  // namespace primus::cli
