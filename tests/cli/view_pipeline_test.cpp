// view pipeline through the real program: sources, endings, figures, refusals.
#include <gtest/gtest.h>

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
    EXPECT_EQ(result.out, "1f1b: step 117 forwards, mean bubble 17.95 %\nwrote " + std::string(name) + "\n");
  }
  EXPECT_EQ(file("a.svg").substr(0, 4), "<svg");
  EXPECT_EQ(file("b.html").substr(0, 15), "<!doctype html>");
  EXPECT_EQ(file("c.txt").find('\x1b'), std::string::npos);
  EXPECT_EQ(Json::parse(file("d.json"))["charts"][0]["step"], 117.0);
  EXPECT_NE(file("a.svg"), read_file(folder_.path() / "c.txt"));
  EXPECT_EQ(json(with(kSizes, {"--out", "a.svg"}))["picture"], "a.svg");
}

TEST_F(ViewPipeline, PicturesGoToStandardOutputToo) {
  EXPECT_EQ(run(with(kSizes, {"--format", "svg"})).out.substr(0, 4), "<svg");
  EXPECT_EQ(run(with(kSizes, {"--format", "html"})).out.substr(0, 15), "<!doctype html>");
  EXPECT_EQ(run(with(kSizes, {"--format", "svg", "--out", "f.svg"})).code, 0);
  EXPECT_EQ(file("f.svg"), run(with(kSizes, {"--format", "svg"})).out);
  EXPECT_NE(refusal(with(kSizes, {"--format", "png"})).find("a terminal shows no PNG"), std::string::npos);
  EXPECT_NE(refusal(with(kSizes, {"--format", "svg", "--out", "f.html"})).find("name two formats"), std::string::npos);
}

// An option without a value is none that is left out.
TEST_F(ViewPipeline, EmptyValuesAreRefused) {
  for (const char* option : {"--out", "--iteration", "--write-data", "--data"}) {
    EXPECT_NE(refusal(with(kSizes, {option, ""})).find(std::string(option) + ": needs a value"), std::string::npos);
  }
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
  // The units stay what they were.
  EXPECT_EQ(again["time_unit"], "forwards");
  EXPECT_EQ(again["memory_unit"], "activations");
  folder_.write("run/pp_rank_0.json", R"({"1": {"fwd_start": [0], "fwd_end": [1], "bwd_start": [1], "bwd_end": [2]}})");
  EXPECT_EQ(json({"--data", "run"})["time_unit"], "ms");
  EXPECT_EQ(refusal({"--data", "pp", "--data", "run"}),
            "error: command line: --data: run is in other units than pp (expected forwards and activations, found ms "
            "and GB)\n");
}

// An option that nothing drawn has is refused; one that some schedule of several has is taken.
TEST_F(ViewPipeline, ChunksThatNoScheduleHasAreRefused) {
  const std::string v2 = kExamples + "moe_package/configs/MI355X/deepseek_v2-pretrain-baseline.yaml";
  EXPECT_EQ(refusal({"--config", v2, "--chunks", "3"}),
            "error: command line: --chunks: 1f1b has 1 chunk a rank (expected 1, or --schedule 1f1b-interleaved, "
            "1f1b-overlap, found 3)\n");
  for (const auto& [name, chunks] :
       {std::pair{"1f1b", "7"}, {"zbv-formatted", "3"}, {"dualpipe-v", "4"}, {"v-half", "1"}, {"zero-bubble", "2"}}) {
    for (const Words& source : {kSizes, Words{"--config", v2}}) {
      EXPECT_NE(refusal(with(source, {"--schedule", name, "--chunks", chunks})).find("--chunks: " + std::string(name)),
                std::string::npos);
    }
  }
  EXPECT_EQ(json(with(kSizes, {"--schedule", "1f1b,1f1b-interleaved", "--chunks", "4"}))["charts"][1]["chunks"], 4);
  EXPECT_EQ(json(with(kSizes, {"--schedule", "zbv-formatted", "--chunks", "2"}))["charts"][0]["chunks"], 2);
}

TEST_F(ViewPipeline, LayersSpreadUnevenlyAreTold) {
  const std::string v2 = kExamples + "moe_package/configs/MI355X/deepseek_v2-pretrain-baseline.yaml";
  const Json uneven = json({"--config", v2, "--schedule", "1f1b-interleaved,1f1b", "--chunks", "4"});
  EXPECT_EQ(uneven["charts"][0]["note"],
            "60 layers on 16 stages are uneven: a run needs pipeline_model_parallel_layout");
  EXPECT_EQ(uneven["charts"][1]["note"], "");
  EXPECT_EQ(json({"--config", v2, "--schedule", "1f1b-interleaved", "--chunks", "3"})["charts"][0]["note"], "");
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
  EXPECT_EQ(refusal(with(kSizes, {"--times", "0,0,0"})),
            begin + "--times: nothing takes any time (expected at least one above 0, found 0,0,0)\n");
  EXPECT_NE(refusal(with(kSizes, {"--exchange", "0.1"})).find("needs --config"), std::string::npos);
  EXPECT_NE(refusal(with(kSizes, {"--iteration", "3"})).find("--iteration: chooses among the files of --data"),
            std::string::npos);
  EXPECT_NE(refusal({"--stages", "1000000", "--micro-batches", "1000000"}).find("the table would be too large"),
            std::string::npos);
}

TEST_F(ViewPipeline, SixteenStagesTakeMilliseconds) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "times mean nothing under a sanitizer";
#endif
  for (const char* schedule : {"1f1b", "zbv-formatted", "1f1b-interleaved"}) {
    expect_within(
        50.0,
        {"view", "pipeline", "--stages", "16", "--micro-batches", "64", "--schedule", schedule, "--out", "x.html"},
        folder_.path().string());
  }
}

// A model's picture weighs what its ranks hold: the same bytes as the projection's.
TEST_F(ViewPipeline, MemoryIsTheProjections) {
  const std::string v3 = kExamples + "megatron/configs/MI355X/deepseek_v3-BF16-pretrain.yaml";
  for (const Words& words : {Words{"--config", v3}, Words{"--config", v3, "--recompute_layer_ids", "null",
                                                          "--recompute_granularity", "null"}}) {
    const Json picture = json(words);
    EXPECT_EQ(picture["memory_unit"], "GiB");
    const ProgramResult projected =
        run_program(with(with({"projection", "memory"}, words), {"--format", "json"}), folder_.path().string());
    const Json memory = Json::parse(projected.out);
    ASSERT_EQ(picture["charts"][0]["ranks"].size(), memory["ranks"].size());
    for (std::size_t rank = 0; rank < memory["ranks"].size(); ++rank) {
      const Json& bytes = memory["ranks"][rank]["bytes"];
      const double expected = (bytes["activations"].get<double>() + bytes["made_again"].get<double>()) / 0x1p30;
      EXPECT_NEAR(picture["charts"][0]["ranks"][rank]["memory"].get<double>(), expected, 1e-9) << rank;
    }
  }
  // Other schedules of the same model place their layers anew.
  const Json others = json({"--config", v3, "--schedule", "1f1b,v-half"});
  EXPECT_LT(others["charts"][1]["peak_memory"].get<double>(), others["charts"][0]["peak_memory"].get<double>());
}

// Parts that no declaration describes are counted, and the picture says so.
TEST_F(ViewPipeline, WhatCannotBeWeighedIsCounted) {
  const std::string file = folder_.write(
      "linear.yaml",
      "work_group: t\nuser_name: t\nexp_name: linear\nworkspace: ./output\nmodules:\n  pre_trainer:\n"
      "    framework: megatron\n    config: pre_trainer.yaml\n    model: qwen3_30B_A3B.yaml\n    overrides:\n"
      "      experimental_attention_variant: gdn2\n      linear_attention_freq: 4\n"
      "      train_iters: 1\n      mock_data: true\n      pipeline_model_parallel_size: 2\n");
  const Json picture = json({"--config", file});
  EXPECT_EQ(picture["memory_unit"], "activations");
  EXPECT_NE(picture["basis"].get<std::string>().find("Activations are counted, not weighed"), std::string::npos);
}

}  // namespace
}  // namespace primus::cli
