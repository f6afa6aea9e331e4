// Bars, bands and stages: what is drawn is what was given.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "view/memory_timeline.hpp"
#include "view/picture_page.hpp"
#include "view/stacked_bars.hpp"
#include "view/stage_picture.hpp"

namespace primus::view {
namespace {

using testing::HasSubstr;
using testing::Not;

std::size_t count_of(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

void expect_sound(const std::string& svg) {
  EXPECT_EQ(svg.rfind("<svg", 0), 0U);
  EXPECT_EQ(svg.substr(svg.size() - 7), "</svg>\n");
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
  EXPECT_THAT(svg, Not(HasSubstr("\"-")));
  EXPECT_THAT(svg, HasSubstr("prefers-color-scheme: dark"));
}

TEST(StackedBars, APartForEveryValueAndNoLegendForNone) {
  const std::string svg = stacked_bars_svg({.title = "a & b",
                                            .subtitle = "",
                                            .unit = "GiB",
                                            .series = {"one", "none", "two"},
                                            .bars = {{"rank 0", {1.0, 0.0, 2.0}}, {"rank 1", {1.5, 0.0, 0.0}}},
                                            .limit = BarLimit{"H200", 140.0}});
  expect_sound(svg);
  EXPECT_EQ(count_of(svg, "class=\"bar f0\""), 2U);
  EXPECT_EQ(count_of(svg, "class=\"bar f2\""), 1U);
  EXPECT_EQ(count_of(svg, "class=\"bar f1\""), 0U);
  EXPECT_THAT(svg, Not(HasSubstr(">none<")));
  EXPECT_THAT(svg, HasSubstr("a &amp; b"));
  EXPECT_THAT(svg, HasSubstr("H200 140 GiB"));
}

TEST(StackedBars, NothingAndManyAreDrawn) {
  expect_sound(stacked_bars_svg({.title = "", .subtitle = "", .unit = "", .series = {}, .bars = {}, .limit = {}}));
  BarChart chart{.title = "many", .subtitle = "", .unit = "GiB", .series = {"x"}, .bars = {}, .limit = {}};
  for (int i = 0; i < 64; ++i) chart.bars.push_back({"rank", {static_cast<double>(i)}});
  expect_sound(stacked_bars_svg(chart));
}

TEST(MemoryTimeline, ThousandsOfPointsStayASmallPicture) {
  MemoryTimeline timeline{.title = "t", .subtitle = "", .unit = "GiB", .x_label = "time", .bands = {}};
  for (int rank = 0; rank < 64; ++rank) {
    MemoryBand band{"rank", {}};
    for (int i = 0; i < 4096; ++i) band.points.push_back({static_cast<double>(i), static_cast<double>(i % 7)});
    timeline.bands.push_back(std::move(band));
  }
  const std::string svg = memory_timeline_svg(timeline);
  expect_sound(svg);
  EXPECT_EQ(count_of(svg, "class=\"held\""), 64U);
  EXPECT_LT(svg.size(), 4U << 20);
  expect_sound(memory_timeline_svg({.title = "", .subtitle = "", .unit = "", .x_label = "", .bands = {{"none", {}}}}));
}

TEST(StagePicture, EveryBlockAndTheImbalance) {
  StagePicture picture{.title = "t", .subtitle = std::string(400, 'x'), .rows = {}};
  picture.rows.push_back(
      {"rank 0", {{{BlockKind::kEmbedding}, {BlockKind::kDense, 0}}, {{BlockKind::kMoe, 2}}}, 1e9, 1e9});
  picture.rows.push_back({"rank 1", {{{BlockKind::kMoe, 1}}, {{BlockKind::kDepth}, {BlockKind::kOutput}}}, 3e9, 1e9});
  const std::string svg = stage_picture_svg(picture);
  expect_sound(svg);
  EXPECT_EQ(count_of(svg, "<rect class=\"block"), 6U);
  EXPECT_THAT(svg, HasSubstr("MoE layer 2"));
  EXPECT_THAT(svg, HasSubstr("largest 50.0 % above the mean"));
  EXPECT_THAT(svg, Not(HasSubstr(std::string(300, 'x'))));
  EXPECT_DOUBLE_EQ(imbalance_percent({1.0, 3.0}), 50.0);
  EXPECT_DOUBLE_EQ(imbalance_percent({}), 0.0);
  EXPECT_DOUBLE_EQ(imbalance_percent({0.0}), 0.0);
}

TEST(PicturePage, HoldsPicturesAndEscapedCells) {
  const std::string page = picture_page(
      {.title = "<t>",
       .facts = {{"a", "b<c"}},
       .pictures = {"<svg></svg>"},
       .tables = {{.title = "a<b", .head = {"x", "y", "z"}, .rows = {{"1<2", "3", "text"}}, .text_from = 2},
                  {.title = "", .head = {"second"}, .rows = {}}}});
  EXPECT_THAT(page, HasSubstr("&lt;t&gt;"));
  EXPECT_THAT(page, HasSubstr("b&lt;c"));
  EXPECT_THAT(page, HasSubstr("<td class=\"text\">1&lt;2</td><td>3</td><td class=\"text\">text</td>"));
  EXPECT_THAT(page, HasSubstr("<h2>a&lt;b</h2>"));
  EXPECT_EQ(count_of(page, "<table>"), 2U);
  EXPECT_EQ(count_of(page, "<h2>"), 1U);
  EXPECT_THAT(page, Not(HasSubstr("http")));
}

}  // namespace
}  // namespace primus::view
