#include "view/stage_picture.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <numeric>
#include <string_view>

#include "base/text.hpp"
#include "view/svg.hpp"

namespace primus::view {
namespace {

constexpr double kMaxWidth = 1080.0;
constexpr double kMinWidth = 820.0;
constexpr double kMargin = 24.0;
constexpr double kTop = 137.0;
constexpr double kBarWidth = 120.0;
constexpr double kBarRoom = 232.0;  // of one column of bars with its numbers
constexpr double kLabelSize = 13.0;
constexpr double kChunkGap = 9.0;

// What is beside picture_style's rules.
constexpr std::string_view kLight = R"(  .value { font-variant-numeric: tabular-nums; }
  .block { stroke: #ffffff; stroke-width: 1; }
  .number { font-size: 10px; }
  .on-dark { fill: #ffffff; } .on-light { fill: #1f2328; }
  .embedding { fill: #084c77; } .dense { fill: #7cc4ee; } .moe { fill: #f5b85a; } .depth { fill: #b0528a; } .output { fill: #d55e00; }
  .bar { fill: #9aa4ae; } .most { fill: #59636e; }
  .mean { stroke: #1f2328; stroke-width: 1; stroke-dasharray: 3 3; }
)";
constexpr std::string_view kDark = R"( .block { stroke: #0d1117; }
    .on-dark { fill: #ffffff; } .on-light { fill: #0d1117; }
    .embedding { fill: #155f8f; } .moe { fill: #f0b04f; } .depth { fill: #c96ba4; } .output { fill: #e8711a; }
    .bar { fill: #6e7681; } .most { fill: #b1bac4; } .mean { stroke: #e6edf3; }
)";

struct KindText {
  std::string_view name;
  std::string_view css;
  std::string_view letter;  // where there is room, and no layer number
  std::string_view on;
};

KindText text_of(BlockKind kind) {
  switch (kind) {
    case BlockKind::kEmbedding:
      return {"embedding", "embedding", "E", "on-dark"};
    case BlockKind::kDense:
      return {"dense layer", "dense", "", "on-light"};
    case BlockKind::kMoe:
      return {"MoE layer", "moe", "", "on-light"};
    case BlockKind::kDepth:
      return {"prediction depth", "depth", "m", "on-dark"};
    case BlockKind::kOutput:
      return {"output and loss", "output", "L", "on-dark"};
  }
  return {};
}

/// The text, cut where it would leave the page.
std::string within(const std::string& text, double width) {
  if (text_width(text, kLabelSize) <= width) return text;
  std::string cut = text;
  while (!cut.empty() && text_width(cut + "...", kLabelSize) > width) cut.pop_back();
  return cut + "...";
}

class Picture {
 public:
  explicit Picture(const StagePicture& picture) : picture_(picture) {
    for (const StageRow& row : picture.rows) {
      label_width_ = std::max(label_width_, text_width(row.label, kLabelSize));
      most_chunks_ = std::max(most_chunks_, row.chunks.size());
    }
    pitch_ = std::clamp(680.0 / static_cast<double>(std::max<std::size_t>(picture.rows.size(), 1)), 15.0, 34.0);
    left_ = kMargin + label_width_ + 12.0;
    const double gaps = kChunkGap * static_cast<double>(most_chunks_);
    const double room = kMaxWidth - kMargin - 2.0 * kBarRoom - left_ - gaps;
    double widest = 0.0;
    for (std::size_t chunk = 0; chunk < most_chunks_; ++chunk) widest += blocks_in_column(chunk);
    unit_ = std::min(34.0, room / std::max(widest, 1.0));
    bars_ = left_ + unit_ * widest + gaps + 22.0;
    width_ = std::max(kMinWidth, bars_ + 2.0 * kBarRoom + kMargin);
  }

  std::string draw() {
    const double height = kTop + pitch_ * static_cast<double>(picture_.rows.size()) + 28.0;
    write(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" width=\"{0:.0f}\" "
        "height=\"{1:.0f}\" role=\"img\">\n<title>{2}</title>\n<style>{3}</style>\n",
        width_, height, escaped(picture_.title), picture_style(kLight, kDark));
    write("<rect class=\"paper\" width=\"100%\" height=\"100%\"/>\n");
    write("<text class=\"title\" x=\"{:.0f}\" y=\"34\">{}</text>\n", kMargin, escaped(picture_.title));
    write("<text class=\"small\" x=\"{:.0f}\" y=\"55\">{}</text>\n", kMargin,
          escaped(within(picture_.subtitle, width_ - 2.0 * kMargin)));
    draw_legend();
    for (std::size_t i = 0; i < picture_.rows.size(); ++i) {
      draw_row(picture_.rows[i], kTop + pitch_ * static_cast<double>(i));
    }
    draw_column("parameters of one rank", &StageRow::parameters, bars_);
    draw_column("FLOPs a token", &StageRow::flops, bars_ + kBarRoom);
    return svg_ + "</svg>\n";
  }

 private:
  template <typename... Args>
  void write(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(svg_), format, std::forward<Args>(args)...);
  }

  bool has(BlockKind kind) const {
    return std::any_of(picture_.rows.begin(), picture_.rows.end(), [&](const StageRow& row) {
      return std::any_of(row.chunks.begin(), row.chunks.end(), [&](const auto& chunk) {
        return std::any_of(chunk.begin(), chunk.end(), [&](const StageBlock& block) { return block.kind == kind; });
      });
    });
  }

  void draw_legend() {
    double x = kMargin;
    for (const BlockKind kind :
         {BlockKind::kEmbedding, BlockKind::kDense, BlockKind::kMoe, BlockKind::kDepth, BlockKind::kOutput}) {
      if (!has(kind)) continue;
      const KindText text = text_of(kind);
      write("<rect class=\"{}\" x=\"{:.1f}\" y=\"72\" width=\"14\" height=\"14\" rx=\"2\"/>", text.css, x);
      write("<text x=\"{:.1f}\" y=\"84\">{}</text>\n", x + 21.0, text.name);
      x += 21.0 + text_width(text.name, kLabelSize) + 22.0;
    }
  }

  void draw_row(const StageRow& row, double y) {
    const double height = pitch_ - std::min(5.0, pitch_ * 0.2);
    const double baseline = y + height / 2.0 + 4.5;
    write("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>\n", left_ - 12.0, baseline,
          escaped(row.label));
    // Chunks stand below each other: every column is as wide as the widest of its chunks.
    double x = left_;
    for (std::size_t chunk = 0; chunk < row.chunks.size(); ++chunk) {
      double at = x;
      for (const StageBlock& block : row.chunks[chunk]) draw_block(block, at, y, height), at += unit_;
      x += unit_ * blocks_in_column(chunk) + kChunkGap;
    }
  }

  double blocks_in_column(std::size_t chunk) const {
    std::size_t most = 0;
    for (const StageRow& row : picture_.rows) {
      if (chunk < row.chunks.size()) most = std::max(most, row.chunks[chunk].size());
    }
    return static_cast<double>(most);
  }

  void draw_block(const StageBlock& block, double x, double y, double height) {
    const KindText text = text_of(block.kind);
    const std::string name = block.layer < 0 ? std::string(text.name) : fmt::format("{} {}", text.name, block.layer);
    write(
        "<rect class=\"block {}\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" "
        "height=\"{:.1f}\"><title>{}</title></rect>",
        text.css, x, y, unit_, height, name);
    const std::string label = block.layer < 0 ? std::string(text.letter) : std::to_string(block.layer);
    if (text_width(label, 10.0) + 2.0 > unit_ || height < 11.0) return;
    write("<text class=\"number {}\" x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{}</text>", text.on,
          x + unit_ / 2.0, y + height / 2.0 + 3.5, label);
  }

  /// A bar a row with its number and how far it lies from the mean, which is a line.
  void draw_column(std::string_view name, double StageRow::*value, double x) {
    std::vector<double> values;
    for (const StageRow& row : picture_.rows) values.push_back(row.*value);
    if (values.empty()) return;
    const double most = std::max(*std::max_element(values.begin(), values.end()), 1e-9);
    const double mean = std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
    write("<text x=\"{:.1f}\" y=\"{:.1f}\">{}</text>", x, kTop - 26.0, name);
    write("<text class=\"small\" x=\"{:.1f}\" y=\"{:.1f}\">largest {:.1f} % above the mean</text>\n", x, kTop - 9.0,
          imbalance_percent(values));
    for (std::size_t i = 0; i < values.size(); ++i) {
      const double y = kTop + pitch_ * static_cast<double>(i);
      const double height = pitch_ - std::min(5.0, pitch_ * 0.2);
      write("<rect class=\"{}\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\"/>",
            values[i] == most ? "most" : "bar", x, y, values[i] / most * kBarWidth, height);
      const double difference = mean > 0.0 ? 100.0 * (values[i] / mean - 1.0) : 0.0;
      write(
          "<text class=\"value\" x=\"{:.1f}\" y=\"{:.1f}\">{}<tspan class=\"small\" dx=\"7\">{:+.1f}</tspan></text>\n",
          x + kBarWidth + 6.0, y + height / 2.0 + 4.5, format_short_count(values[i]), difference);
    }
    const double at = x + mean / most * kBarWidth;
    write("<line class=\"mean\" x1=\"{0:.1f}\" y1=\"{1:.1f}\" x2=\"{0:.1f}\" y2=\"{2:.1f}\"/>\n", at, kTop - 3.0,
          kTop + pitch_ * static_cast<double>(values.size()));
  }

  const StagePicture& picture_;
  double label_width_ = 0.0;
  std::size_t most_chunks_ = 1;
  double pitch_ = 0.0;
  double left_ = 0.0;
  double unit_ = 0.0;
  double bars_ = 0.0;   // where the columns of bars begin
  double width_ = 0.0;  // of the page
  std::string svg_;
};

}  // namespace

double imbalance_percent(const std::vector<double>& values) {
  if (values.empty()) return 0.0;
  const double mean = std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
  return mean > 0.0 ? 100.0 * (*std::max_element(values.begin(), values.end()) / mean - 1.0) : 0.0;
}

std::string stage_picture_svg(const StagePicture& picture) {
  return Picture(picture).draw();
}

}  // namespace primus::view
