// Memory and layout pages in a real browser: what is drawn is what was given, and no text leaves its picture or touches
// another, with one rank and with 64.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "browser.hpp"
#include "view/memory_timeline.hpp"
#include "view/picture_page.hpp"
#include "view/stacked_bars.hpp"
#include "view/stage_picture.hpp"

namespace primus::view {
namespace {

using test::kDarkTheme;

// For each picture: texts that leave it, pairs of texts of one size that touch, the bars' widths over their values.
constexpr const char* kMeasure = R"js(
let outside = [], touching = [];
for (const svg of document.querySelectorAll('svg')) {
  const frame = svg.getBoundingClientRect(), texts = [...svg.querySelectorAll('text')].filter(t => t.textContent.trim());
  const boxes = texts.map(t => t.getBoundingClientRect());
  boxes.forEach((b, i) => { if (b.left < frame.left - 1 || b.right > frame.right + 1 || b.top < frame.top - 1 || b.bottom > frame.bottom + 1) outside.push(texts[i].textContent); });
  for (let i = 0; i < boxes.length; i++) for (let j = i + 1; j < boxes.length; j++) {
    // Lines may stand as near as their letters allow: a box is higher than what is printed in it.
    const a = boxes[i], b = boxes[j], high = 0.3 * Math.min(a.height, b.height);
    if (a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - high && b.top < a.bottom - high) touching.push(texts[i].textContent + ' / ' + texts[j].textContent);
  }
}
const bars = [...document.querySelectorAll('rect.bar')].map(r => r.getBoundingClientRect().width);
Object.assign(document.body.dataset, { outside: outside.join('; '), touching: touching.join('; '), bars: bars.length, pictures: document.querySelectorAll('svg').length,
  share: (bars[1] / bars[0]).toFixed(2), paper: getComputedStyle(document.querySelector('.paper')).fill, requests: performance.getEntriesByType('resource').length,
  ink: getComputedStyle(document.querySelector('svg text')).fill, blocks: document.querySelectorAll('rect.block').length, rows: document.querySelectorAll('tr').length,
  wide: document.documentElement.scrollWidth > innerWidth ? 'yes' : 'no' });
)js";

PicturePage memory_page(int ranks) {
  BarChart chart{.title = "Memory of a model with a rather long name by pipeline rank",
                 .subtitle = "768 ranks; TP 1, CP 2, PP 24 x 4 chunks, EP 8; 1f1b-interleaved",
                 .unit = "GiB",
                 .series = {"parameters", "gradients", "optimizer", "activations", "made again", "dispatch",
                            "communication", "working set", "framework"},
                 .bars = {},
                 .limit = BarLimit{"MI355X", 288.0}};
  MemoryTimeline timeline{.title = "Activations over a step",
                          .subtitle = "GiB, each rank's most behind its band",
                          .unit = "GiB",
                          .x_label = "time; 1 is a rank's forward in the mean, stages by their FLOPs",
                          .bands = {}};
  PageTable table{.title = "By rank", .head = {"rank", "total, GiB"}, .rows = {}};
  for (int rank = 0; rank < ranks; ++rank) {
    const std::string label = fmt::format("rank {}", rank);
    chart.bars.push_back({label, {10.0, 20.0, 5.0, 250.0 / (1 + rank), 1.0, 0.5, 0.2, 0.1, 3.0}});
    MemoryBand band{label, {}};
    for (int i = 0; i <= 512; ++i) band.points.push_back({static_cast<double>(i), i < 512 ? 100.0 + rank : 0.0});
    timeline.bands.push_back(std::move(band));
    table.rows.push_back({label, "289.8"});
  }
  return {.title = "Memory",
          .facts = {{"world", "768 ranks"}},
          .pictures = {stacked_bars_svg(chart), memory_timeline_svg(timeline)},
          .tables = {std::move(table)}};
}

PicturePage layout_page(int ranks, int chunks) {
  StagePicture picture{.title = "Stages", .subtitle = std::string(300, 't'), .rows = {}};
  for (int rank = 0; rank < ranks; ++rank) {
    StageRow row{fmt::format("rank {}", rank), {}, 6e9 + rank, 1.2e10};
    for (int chunk = 0; chunk < chunks; ++chunk) row.chunks.push_back({{BlockKind::kMoe, chunk * ranks + rank}});
    picture.rows.push_back(std::move(row));
  }
  picture.rows.front().chunks.front().insert(picture.rows.front().chunks.front().begin(), {BlockKind::kEmbedding});
  picture.rows.back().chunks.back().push_back({BlockKind::kOutput});
  return {.title = "Stages",
          .facts = {},
          .pictures = {stage_picture_svg(picture)},
          .tables = {{.title = "", .head = {"rank"}, .rows = {}}}};
}

class PicturesInBrowser : public test::BrowserTest {
 protected:
  std::string measured(const PicturePage& page, const std::string& options = "") {
    const std::string html = picture_page(page);
    EXPECT_LT(html.size(), 10'000'000U);
    const std::string document = document_of_page(html, kMeasure, options);
    EXPECT_EQ(attribute(document, "outside"), "");
    EXPECT_EQ(attribute(document, "touching"), "");
    EXPECT_EQ(attribute(document, "requests"), "0") << "the page asks for other files";
    EXPECT_EQ(attribute(document, "wide"), "no");
    return document;
  }
};

TEST_F(PicturesInBrowser, MemoryOfOneRankAndOf64) {
  for (const int ranks : {1, 16, 64}) {
    SCOPED_TRACE(ranks);
    const std::string document = measured(memory_page(ranks));
    EXPECT_EQ(attribute(document, "pictures"), "2");
    EXPECT_EQ(attribute(document, "bars"), std::to_string(9 * ranks));
    EXPECT_EQ(attribute(document, "rows"), std::to_string(ranks + 1));
    const double share = std::stod(attribute(document, "share"));
    EXPECT_NEAR(share, 2.0, 0.1) << "20 GiB are twice as wide as 10, but for a seam";
  }
}

TEST_F(PicturesInBrowser, LayoutsOfOneRankAndOf64) {
  for (const auto& [ranks, chunks] : {std::pair{1, 1}, {16, 6}, {64, 2}}) {
    SCOPED_TRACE(ranks);
    const std::string document = measured(layout_page(ranks, chunks));
    EXPECT_EQ(attribute(document, "blocks"), std::to_string(ranks * chunks + 2));
  }
}

TEST_F(PicturesInBrowser, DarkAndLight) {
  for (const PicturePage& page : {memory_page(4), layout_page(4, 2)}) {
    const std::string light = measured(page);
    EXPECT_EQ(attribute(light, "paper"), "rgb(255, 255, 255)");
    EXPECT_EQ(attribute(light, "ink"), "rgb(31, 35, 40)");
    const std::string dark = measured(page, kDarkTheme);
    EXPECT_EQ(attribute(dark, "paper"), "rgb(13, 17, 23)");
    EXPECT_EQ(attribute(dark, "ink"), "rgb(230, 237, 243)");
  }
}

}  // namespace
}  // namespace primus::view
