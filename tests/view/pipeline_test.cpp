// Charts of pipelines, and each way of drawing them.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "schedule/algorithms.hpp"
#include "view/pipeline_colours.hpp"
#include "view/pipeline_json.hpp"
#include "view/pipeline_labels.hpp"
#include "view/pipeline_page.hpp"
#include "view/pipeline_page_parts.hpp"
#include "view/pipeline_svg.hpp"
#include "view/pipeline_text.hpp"

namespace primus::view {
namespace {

PipelineChart chart(schedule::Algorithm algorithm, int ranks, int micro_batches, int chunks) {
  const schedule::Schedule table = schedule::build(
      {.algorithm = algorithm, .num_ranks = ranks, .num_micro_batches = micro_batches, .num_chunks = chunks});
  return chart_of(table, schedule::simulate(table, schedule::even_costs(table.shape, 1.0, 1.0, 1.0)), "chart");
}

PipelinePicture picture(std::vector<PipelineChart> charts) {
  return {"Title <&>", "Basis.", "forwards", "activations", std::move(charts)};
}

std::size_t count(const std::string& text, std::string_view part) {
  std::size_t found = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size())) ++found;
  return found;
}

TEST(PipelineChartTest, SaysWhatTheSimulationSays) {
  const PipelineChart one = chart(schedule::Algorithm::kZbv, 4, 8, 2);
  EXPECT_DOUBLE_EQ(one.step, 25.5);
  EXPECT_NEAR(one.mean_bubble(), 1.5 / 25.5, 1e-12);
  EXPECT_DOUBLE_EQ(one.peak_memory().value(), 4.0);
  for (const ChartRank& rank : one.ranks) {
    EXPECT_EQ(rank.boxes.size(), 8U * 2U * 3U);
    EXPECT_DOUBLE_EQ(rank.busy, 24.0);
    EXPECT_DOUBLE_EQ(rank.forward + rank.backward + rank.weight_grad, 24.0);
  }
}

TEST(PipelineChartTest, PairsShareTheirRowAndCountOnce) {
  const PipelineChart one = chart(schedule::Algorithm::kDualPipeV, 4, 12, 2);
  int num_upper = 0;
  for (const ChartRank& rank : one.ranks) {
    EXPECT_DOUBLE_EQ(rank.busy, 36.0);
    for (std::size_t i = 0; i < rank.boxes.size(); ++i) {
      if (rank.boxes[i].part != RowPart::kUpper) continue;
      ++num_upper;
      EXPECT_EQ(rank.boxes[i].kind, BoxKind::kForward);
      EXPECT_EQ(rank.boxes[i + 1].part, RowPart::kLower);
      EXPECT_EQ(rank.boxes[i].start, rank.boxes[i + 1].start);
    }
  }
  EXPECT_GT(num_upper, 0);
}

TEST(PipelineLabelsTest, FiguresAreShort) {
  EXPECT_EQ(figure(0.0), "0");
  EXPECT_EQ(figure(11.5), "11.5");
  EXPECT_EQ(figure(1725.4), "1,725");
  EXPECT_EQ(figure(3.14159), "3.142");
  EXPECT_EQ(figure(-0.0001), "0");
  EXPECT_EQ(figure(1e300), "1e+300");
}

TEST(PipelineSvgTest, DrawsEveryBoxWithItsMicroBatch) {
  const std::string svg = pipeline_svg(picture({chart(schedule::Algorithm::k1F1B, 4, 8, 1)}), ColourBy::kPass);
  EXPECT_EQ(count(svg, "v26.0h"), 4U * 8U * 2U);  // boxes of full height
  EXPECT_EQ(count(svg, ">7</text>"), 8U);         // forward and backward of the last micro-batch on four ranks
  EXPECT_NE(svg.find("Title &lt;&amp;&gt;"), std::string::npos);
  EXPECT_NE(svg.find("27.27 %"), std::string::npos);
  EXPECT_EQ(svg.find("http", svg.find("xmlns=\"http") + 12), std::string::npos);  // nothing from elsewhere
  EXPECT_EQ(count(svg, "class=\"held\" d=\"M74"), 4U);
}

TEST(PipelineSvgTest, ManyBoxesBecomeColumnsOfTheirShare) {
  const PipelinePicture large = picture({chart(schedule::Algorithm::k1F1B, 64, 512, 1)});
  const std::string svg = pipeline_svg(large, ColourBy::kPass);
  EXPECT_LT(svg.size(), 2'000'000U);
  EXPECT_EQ(count(svg, "<path stroke="), 64U * 2U) << "a path for each rank and pass";
}

TEST(PipelineSvgTest, EmptyAndSingleChartsAreDrawn) {
  PipelineChart empty;
  empty.ranks.resize(1);
  EXPECT_NE(pipeline_svg(picture({empty}), ColourBy::kPass).find("</svg>"), std::string::npos);
  EXPECT_NE(pipeline_svg(picture({}), ColourBy::kMicroBatch).find("</svg>"), std::string::npos);
  EXPECT_NE(pipeline_svg(picture({chart(schedule::Algorithm::k1F1B, 1, 1, 1)}), ColourBy::kMicroBatch).find("rank 0"),
            std::string::npos);
}

TEST(PipelineColoursTest, PassesDifferInGreyAndChunksInShade) {
  const auto grey = [](Rgb c) { return 0.299 * c.red + 0.587 * c.green + 0.114 * c.blue; };
  const double forward = grey(pass_colour(BoxKind::kForward, 0, 1));
  const double backward = grey(pass_colour(BoxKind::kBackward, 0, 1));
  const double weight_grad = grey(pass_colour(BoxKind::kWeightGrad, 0, 1));
  EXPECT_GT(backward - weight_grad, 25.0);
  EXPECT_GT(weight_grad - forward, 25.0);
  for (int chunk = 1; chunk < 4; ++chunk) {
    EXPECT_GT(grey(pass_colour(BoxKind::kForward, chunk, 4)), grey(pass_colour(BoxKind::kForward, chunk - 1, 4)));
  }
}

TEST(PipelineTextTest, WideBoxesCarryTheirNumber) {
  const std::string text = pipeline_text(picture({chart(schedule::Algorithm::k1F1B, 2, 2, 1)}), 60, Paint::kPlain);
  EXPECT_NE(text.find("    0 F0---F1---..........B0--------.....B1--------  33.33 %\n"
                      "    1 .....F0---B0--------F1---B1--------..........  33.33 %\n"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("rank          F          B          W"), std::string::npos);
}

TEST(PipelineTextTest, NarrowBoxesHaveTheirShareOfLetters) {
  const std::string text = pipeline_text(picture({chart(schedule::Algorithm::k1F1B, 8, 256, 1)}), 120, Paint::kPlain);
  const std::string row = text.substr(text.find("    7 "), 6 + 105);
  const auto share = [&](char letter) { return static_cast<double>(std::count(row.begin(), row.end(), letter)) / 105; };
  EXPECT_NEAR(share('F'), 256.0 / 789.0, 0.03);
  EXPECT_NEAR(share('B'), 512.0 / 789.0, 0.03);
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
}

TEST(PipelineTextTest, ColoursEndWithTheirBar) {
  const std::string text = pipeline_text(picture({chart(schedule::Algorithm::k1F1B, 1, 4, 1)}), 80, Paint::kColoured);
  EXPECT_NE(text.find("\x1b[38;5;16;48;5;25m"), std::string::npos);
  EXPECT_NE(text.find("\x1b[0m   0.00 %"), std::string::npos);
}

TEST(PipelineJsonTest, HoldsEveryBoxAndAction) {
  const schedule::Schedule table =
      schedule::build({.algorithm = schedule::Algorithm::kZb1p, .num_ranks = 2, .num_micro_batches = 3});
  PipelinePicture drawn = picture({chart(schedule::Algorithm::kZb1p, 2, 3, 1)});
  drawn.title = "a \"title\"\n";
  const auto json = nlohmann::json::parse(pipeline_json(drawn, {&table, 1}, "keys"));
  EXPECT_EQ(json["title"], drawn.title);
  EXPECT_EQ(json["planned"], "keys");
  EXPECT_EQ(json["charts"][0]["ranks"].size(), 2U);
  EXPECT_EQ(json["charts"][0]["ranks"][1]["boxes"].size(), 9U);
  EXPECT_EQ(json["charts"][0]["ranks"][0]["boxes"][0]["kind"], "F");
  const auto actions = json["charts"][0]["actions"];
  EXPECT_EQ(actions[0].size(), table.ranks[0].size());
  EXPECT_EQ(actions[0].back()["action"], "optimizer_step");
  const auto held = json["charts"][0]["ranks"][1]["held"];
  ASSERT_EQ(held.size(), drawn.charts[0].ranks[1].held.size());
  EXPECT_EQ(held[0][0], drawn.charts[0].ranks[1].held[0].time);
  const auto bare = nlohmann::json::parse(pipeline_json(drawn, {}, ""));
  EXPECT_FALSE(bare.contains("planned"));
  EXPECT_FALSE(bare["charts"][0].contains("actions"));
}

/// What the page's script does with packed boxes, once more.
std::vector<std::uint64_t> unpacked(const std::string& base64) {
  const std::string alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string bytes;
  unsigned bits = 0;
  int num_bits = 0;
  for (const char c : base64) {
    if (c == '=') break;
    bits = bits << 6 | static_cast<unsigned>(alphabet.find(c));
    num_bits += 6;
    if (num_bits < 8) continue;
    num_bits -= 8;
    bytes += static_cast<char>(bits >> num_bits & 255);
  }
  std::vector<std::uint64_t> values;
  std::uint64_t value = 0;
  int shift = 0;
  for (const char c : bytes) {
    value |= static_cast<std::uint64_t>(c & 127) << shift;
    shift += 7;
    if ((c & 128) != 0) continue;
    values.push_back(value);
    value = 0;
    shift = 0;
  }
  return values;
}

// A legend names what is drawn, idle time too, in the picture and on the page.
TEST(PipelinePageTest, LegendsNameWhatIsDrawn) {
  for (const auto algorithm : {schedule::Algorithm::k1F1B, schedule::Algorithm::kZb1p}) {
    const PipelinePicture drawn = picture({chart(algorithm, 2, 3, 1)});
    const bool has_weight_grads = algorithm == schedule::Algorithm::kZb1p;
    const std::string svg = pipeline_svg(drawn, ColourBy::kPass);
    const std::string page = pipeline_page(drawn, ColourBy::kPass);
    EXPECT_EQ(svg.find(">weight gradient</text>") != std::string::npos, has_weight_grads);
    EXPECT_EQ(page.find("</i>weight gradient</span>") != std::string::npos, has_weight_grads);
    EXPECT_NE(svg.find(">idle</text>"), std::string::npos);
    EXPECT_NE(page.find("</i>idle</span>"), std::string::npos);
  }
}

// What is said of a chart stays within the picture.
TEST(PipelineSvgTest, LongNotesAreWrapped) {
  PipelinePicture drawn = picture({chart(schedule::Algorithm::k1F1B, 2, 3, 1)});
  const std::string plain = pipeline_svg(drawn, ColourBy::kPass);
  for (int i = 0; i < 60; ++i) drawn.charts[0].note += "a long note ";
  const std::string svg = pipeline_svg(drawn, ColourBy::kPass);
  for (std::size_t at = svg.find("<text class=\"soft\""); at != std::string::npos;
       at = svg.find("<text class=\"soft\"", at + 1)) {
    EXPECT_LT(svg.find("</text>", at) - at, 260U);
  }
  EXPECT_NE(svg.substr(0, 120), plain.substr(0, 120)) << "the picture grows with its lines";
}

TEST(PipelinePageTest, PacksBoxesWithoutLoss) {
  const PipelineChart one = chart(schedule::Algorithm::kDualPipeV, 4, 12, 2);
  for (const ChartRank& rank : one.ranks) {
    const std::vector<std::uint64_t> values = unpacked(packed_boxes(rank, one.step));
    ASSERT_EQ(values.size(), 4 * rank.boxes.size());
    std::uint64_t start = 0;
    std::array<std::int64_t, 4> last{};
    for (std::size_t i = 0; i < rank.boxes.size(); ++i) {
      start += values[4 * i];
      const std::uint64_t zigzag = values[4 * i + 2];
      const std::uint64_t code = values[4 * i + 3];
      const Box& box = rank.boxes[i];
      EXPECT_NEAR(static_cast<double>(start) / kPackedTicks * one.step, box.start, one.step * 1e-6);
      EXPECT_NEAR(static_cast<double>(start + values[4 * i + 1]) / kPackedTicks * one.step, box.end, one.step * 1e-6);
      last.at(code & 3) +=
          zigzag % 2 == 1 ? -static_cast<std::int64_t>((zigzag + 1) / 2) : static_cast<std::int64_t>(zigzag / 2);
      EXPECT_EQ(last.at(code & 3), box.micro_batch);
      EXPECT_EQ(code & 3, static_cast<std::uint64_t>(box.kind));
      EXPECT_EQ(code / 4 % 3, static_cast<std::uint64_t>(box.part));
      EXPECT_EQ(code / 12, static_cast<std::uint64_t>(box.chunk));
    }
  }
}

TEST(PipelinePageTest, IsSmallAndOfflineAtFullSize) {
  PipelinePicture large =
      picture({chart(schedule::Algorithm::k1F1B, 64, 512, 1), chart(schedule::Algorithm::kZbv, 64, 512, 2)});
  large.title = "</script><script>";
  const std::string page = pipeline_page(large, ColourBy::kPass);
  EXPECT_LT(page.size(), 10'000'000U);
  EXPECT_EQ(page.find("http"), std::string::npos);
  EXPECT_EQ(count(page, "</script>"), 2U);
  EXPECT_NE(page.find("@media print"), std::string::npos);
  EXPECT_NE(page.find("prefers-color-scheme: dark"), std::string::npos);
}

}  // namespace
}  // namespace primus::view
