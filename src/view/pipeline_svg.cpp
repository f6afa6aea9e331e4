#include "view/pipeline_svg.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <utility>

#include "base/text.hpp"
#include "view/axis.hpp"
#include "view/pipeline_colours.hpp"
#include "view/pipeline_labels.hpp"
#include "view/svg.hpp"

namespace primus::view {
namespace {

constexpr double kWidth = 1280.0;
constexpr double kLeft = 74.0;
constexpr double kRight = kWidth - 216.0;
constexpr double kPlotWidth = kRight - kLeft;
constexpr double kBubbleX = kRight + 66.0;  // right ends of the two columns of figures
constexpr double kMemoryX = kWidth - 24.0;
constexpr double kTop = 92.0;
constexpr double kChartHead = 62.0;
constexpr double kAxisHeight = 44.0;
constexpr double kTextLine = 17.0;
constexpr double kLabelPitch = 13.0;  // labels nearer to each other would touch
constexpr double kSmallestBox = 1.2;  // px; narrower boxes are drawn by columns
constexpr int kMaxShades = 3;         // in the legend; of more, the first and the last
constexpr double kSmallestLabel = 6.5;
constexpr int kColumnsPerPixel = 2;

// Colours are written out twice, because converters to print formats know no CSS variables.
constexpr std::string_view kStyle = R"(
  text { font-family: system-ui, -apple-system, "Segoe UI", "Helvetica Neue", "DejaVu Sans", sans-serif; font-size: 12px; fill: #1f2328; }
  .title { font-size: 19px; font-weight: 600; } .name { font-size: 15px; font-weight: 600; }
  .soft { fill: #59636e; } .end { text-anchor: end; font-variant-numeric: tabular-nums; } .mid { text-anchor: middle; font-variant-numeric: tabular-nums; }
  .paper { fill: #ffffff; } .lane { fill: #eceff2; } .grid { stroke: #d5dae0; stroke-width: 1; } .axis { stroke: #8b949e; stroke-width: 1; }
  .held { fill: #8c95a1; } .floor { stroke: #c6ccd3; stroke-width: 0.6; }
  .on-dark text { fill: #ffffff; text-anchor: middle; } .on-light text { fill: #14181d; text-anchor: middle; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3; } .soft { fill: #9da7b3; } .paper { fill: #0d1117; } .lane { fill: #1c222b; } .grid { stroke: #2b323c; } .axis { stroke: #6e7681; }
    .held { fill: #768390; } .floor { stroke: #3a424d; }
  }
)";

/// Heights of one rank's row: its boxes, the curve beneath them, the gap to the next row.
struct RowHeights {
  double lane = 0.0;
  double curve = 0.0;
  double gap = 0.0;

  double pitch() const { return lane + curve + gap; }
};

RowHeights heights_for(std::size_t num_ranks, bool has_curve) {
  double lane = 26.0;
  if (num_ranks > 8) lane = 20.0;
  if (num_ranks > 16) lane = 13.0;
  if (num_ranks > 32) lane = 8.0;
  if (num_ranks > 96) lane = std::max(2.0, 800.0 / static_cast<double>(num_ranks));
  const double curve = has_curve ? std::max(1.0, 0.5 * lane) : 0.0;
  return {lane, curve, std::max(1.0, 0.2 * lane)};
}

/// A text cut at spaces into lines that fit the picture.
std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines(1);
  for (const std::string& word : split(text, ' ')) {
    std::string longer = lines.back().empty() ? word : lines.back() + " " + word;
    if (!lines.back().empty() && text_width(longer, 12.0) > kWidth - 48.0) {
      lines.push_back(word);
    } else {
      lines.back() = std::move(longer);
    }
  }
  return lines;
}

/// Which fill a box has: an index that is the same for all boxes of one look.
struct Look {
  BoxKind kind = BoxKind::kForward;
  int number = 0;  // chunk or colour of the micro-batch
  auto operator<=>(const Look&) const = default;
};

/// Runs of columns of one look, as thick lines: short texts, because there are very many.
class ColumnPaths {
 public:
  struct Path {
    std::string text;
    std::size_t end = 0;  // column behind its last run
  };

  explicit ColumnPaths(double y) : y_(y) {}

  void add(std::size_t column, std::optional<Look> look) {
    if (look == current_) return;
    if (current_) {
      Path& path = paths_[*current_];
      if (path.text.empty()) {
        path.text = fmt::format("M{:.1f} {:.1f}", kLeft + pixels(begin_), y_);
      } else {
        path.text += fmt::format("m{} 0", pixels(begin_ - path.end));
      }
      path.text += fmt::format("h{}", pixels(column - begin_));
      path.end = column;
    }
    current_ = look;
    begin_ = column;
  }

  const std::map<Look, Path>& all() const { return paths_; }

 private:
  static double pixels(std::size_t columns) { return static_cast<double>(columns) / kColumnsPerPixel; }

  double y_;
  std::map<Look, Path> paths_;
  std::optional<Look> current_;
  std::size_t begin_ = 0;
};

class PictureWriter {
 public:
  PictureWriter(const PipelinePicture& picture, ColourBy colour_by)
      : picture_(picture),
        colour_by_(colour_by),
        axis_(0.0, std::max(picture.longest_step(), 1e-9), kLeft, kRight, 10, TickKind::kReal) {
    for (const PipelineChart& chart : picture.charts) num_chunks_ = std::max(num_chunks_, chart.num_chunks);
  }

  std::string write() {
    double y = kTop;
    for (const PipelineChart& chart : picture_.charts) y = write_chart(chart, y);
    for (const std::string& line : lines_of(picture_.basis)) {
      add("<text class=\"soft\" x=\"24\" y=\"{:.1f}\">{}</text>\n", y + 8.0, escaped(line));
      y += kTextLine;
    }
    const double height = y + 24.0 - kTextLine;
    std::string head;
    fmt::format_to(std::back_inserter(head),
                   "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" width=\"{0:.0f}\" "
                   "height=\"{1:.0f}\" role=\"img\" aria-labelledby=\"title description\">\n"
                   "<title id=\"title\">{2}</title>\n<desc id=\"description\">{3}</desc>\n<style>{4}</style>\n"
                   "<rect class=\"paper\" width=\"{0:.0f}\" height=\"{1:.0f}\"/>\n",
                   kWidth, height, escaped(picture_.title), escaped(description()), kStyle);
    fmt::format_to(std::back_inserter(head), "<text class=\"title\" x=\"24\" y=\"34\">{}</text>\n",
                   escaped(picture_.title));
    write_legend(head);
    return head + body_ + "</svg>\n";
  }

 private:
  template <typename... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(body_), format, std::forward<Args>(args)...);
  }

  std::string description() const {
    std::string text = "Timelines of pipeline ranks.";
    for (const PipelineChart& chart : picture_.charts) text += " " + chart.name + ": " + chart_facts(chart, picture_);
    return text;
  }

  Look look_of(const Box& box) const {
    if (colour_by_ == ColourBy::kMicroBatch) return {BoxKind::kForward, box.micro_batch % kNumMicroBatchColours};
    const BoxKind kind = box.kind == BoxKind::kWholeBackward ? BoxKind::kBackward : box.kind;
    return {kind, box.chunk};
  }

  Rgb colour_of(const Look& look) const {
    return colour_by_ == ColourBy::kMicroBatch ? micro_batch_colour(look.number)
                                               : pass_colour(look.kind, look.number, num_chunks_);
  }

  void write_legend(std::string& out) const {
    double x = 24.0;
    const auto entry = [&](Rgb colour, const std::string& text) {
      fmt::format_to(std::back_inserter(out),
                     "<rect x=\"{:.1f}\" y=\"52\" width=\"14\" height=\"14\" fill=\"{}\"/><text x=\"{:.1f}\" "
                     "y=\"63.5\">{}</text>\n",
                     x, colour.hex(), x + 19.0, escaped(text));
      x += 19.0 + text_width(text, 12.0) + 18.0;
    };
    if (colour_by_ == ColourBy::kMicroBatch) {
      for (int m = 0; m < kNumMicroBatchColours; ++m) {
        entry(micro_batch_colour(m),
              m == 0 ? fmt::format("micro-batch 0, {}, ...", kNumMicroBatchColours) : std::to_string(m));
      }
    } else {
      for (const BoxKind kind : kinds_shown()) {
        for (int chunk = 0; chunk < num_chunks_; ++chunk) {
          if (num_chunks_ > kMaxShades && chunk > 0 && chunk + 1 < num_chunks_) continue;
          entry(pass_colour(kind, chunk, num_chunks_), legend_label(kind, chunk));
        }
      }
    }
    fmt::format_to(std::back_inserter(out),
                   "<rect class=\"lane\" x=\"{0:.1f}\" y=\"52\" width=\"14\" height=\"14\"/><text x=\"{1:.1f}\" "
                   "y=\"63.5\">idle</text>\n",
                   x, x + 19.0);
    if (!has_curves()) return;
    x += 60.0;
    fmt::format_to(std::back_inserter(out),
                   "<path class=\"held\" d=\"M{0:.1f} 66v-6h5v-8h5v14z\"/><text x=\"{1:.1f}\" y=\"63.5\">held, same "
                   "scale in all rows</text>\n",
                   x, x + 16.0);
  }

  std::string legend_label(BoxKind kind, int chunk) const {
    if (chunk > 0) return fmt::format("chunk {}", chunk);
    const std::string first = num_chunks_ > 1 ? ", chunk 0" : "";
    if (kind != BoxKind::kBackward) return std::string(name(kind)) + first;
    return "backward" + first;
  }

  std::vector<BoxKind> kinds_shown() const {
    bool has_weight_grads = false;
    for (const PipelineChart& chart : picture_.charts) {
      for (const ChartRank& rank : chart.ranks) has_weight_grads = has_weight_grads || rank.weight_grad > 0.0;
    }
    std::vector<BoxKind> kinds = {BoxKind::kForward, BoxKind::kBackward};
    if (has_weight_grads) kinds.push_back(BoxKind::kWeightGrad);
    return kinds;
  }

  bool has_curves() const {
    return std::any_of(picture_.charts.begin(), picture_.charts.end(), [](const PipelineChart& chart) {
      return std::any_of(chart.ranks.begin(), chart.ranks.end(),
                         [](const ChartRank& rank) { return !rank.held.empty(); });
    });
  }

  double write_chart(const PipelineChart& chart, double y) {
    const bool has_curve =
        std::any_of(chart.ranks.begin(), chart.ranks.end(), [](const ChartRank& rank) { return !rank.held.empty(); });
    const RowHeights heights = heights_for(chart.ranks.size(), has_curve);
    add("<text class=\"name\" x=\"24\" y=\"{:.1f}\">{}</text>\n", y + 18.0, escaped(chart.name));
    add("<text class=\"soft\" x=\"24\" y=\"{:.1f}\">{}</text>\n", y + 36.0, escaped(chart_facts(chart, picture_)));
    const double top = y + kChartHead;
    const double bottom = top + heights.pitch() * static_cast<double>(chart.ranks.size());
    add("<text class=\"soft end\" x=\"{:.1f}\" y=\"{:.1f}\">bubble</text>", kBubbleX, top - 7.0);
    if (chart.peak_memory()) {
      add("<text class=\"soft end\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>", kMemoryX, top - 7.0,
          escaped("peak " + picture_.memory_unit));
    }
    body_ += '\n';
    write_axis(top, bottom);
    const auto every = static_cast<std::size_t>(std::max(1.0, std::ceil(kLabelPitch / heights.pitch())));
    for (std::size_t rank = 0; rank < chart.ranks.size(); ++rank) {
      const double row = top + heights.pitch() * static_cast<double>(rank);
      write_row(chart, rank, row, heights);
      if (rank % every == 0) write_figures(chart, rank, row + 0.5 * heights.lane + 4.0);
    }
    return bottom + kAxisHeight;
  }

  void write_axis(double top, double bottom) {
    for (const double tick : axis_.ticks()) {
      const double x = axis_.pixel(tick);
      add("<path class=\"grid\" d=\"M{0:.1f} {1:.1f}V{2:.1f}\"/><text class=\"soft mid\" x=\"{0:.1f}\" "
          "y=\"{3:.1f}\">{4}</text>",
          x, top - 2.0, bottom + 4.0, bottom + 17.0, axis_.label(tick));
    }
    add("<text class=\"soft\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n", kRight + 14.0, bottom + 17.0,
        escaped(picture_.time_unit));
  }

  void write_figures(const PipelineChart& chart, std::size_t index, double baseline) {
    const ChartRank& rank = chart.ranks[index];
    add("<text class=\"end\" x=\"{:.1f}\" y=\"{:.1f}\">rank {}</text>", kLeft - 8.0, baseline, index);
    add("<text class=\"end\" x=\"{:.1f}\" y=\"{:.1f}\">{:.2f} %</text>", kBubbleX, baseline,
        100.0 * chart.bubble(rank));
    if (rank.memory) {
      add("<text class=\"end\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>", kMemoryX, baseline,
          memory_figure(*rank.memory, picture_.memory_unit));
    }
    body_ += '\n';
  }

  void write_row(const PipelineChart& chart, std::size_t index, double y, const RowHeights& heights) {
    const ChartRank& rank = chart.ranks[index];
    const double end = axis_.pixel(chart.step);
    add("<g><title>{}</title><rect class=\"lane\" x=\"{:.1f}\" y=\"{:.2f}\" width=\"{:.1f}\" height=\"{:.2f}\"/>\n",
        escaped(rank_facts(chart, index, picture_)), kLeft, y, end - kLeft, heights.lane);
    const double mean_width =
        rank.boxes.empty() ? kPlotWidth
                           : (axis_.pixel(rank.busy) - axis_.pixel(0.0)) / static_cast<double>(rank.boxes.size());
    if (mean_width >= kSmallestBox) {
      write_boxes(rank, y, heights.lane);
    } else {
      write_columns(rank, y, heights.lane);
    }
    if (!rank.held.empty()) write_curve(chart, rank, y + heights.lane, heights.curve);
    body_ += "</g>\n";
  }

  void write_paths(const std::map<Look, std::string>& paths) {
    for (const auto& [look, path] : paths) add("<path fill=\"{}\" d=\"{}\"/>\n", colour_of(look).hex(), path);
  }

  void write_boxes(const ChartRank& rank, double y, double lane) {
    std::map<Look, std::string> paths;
    std::string on_dark;
    std::string on_light;
    for (const Box& box : rank.boxes) {
      const double x = axis_.pixel(box.start);
      const double width = axis_.pixel(box.end) - x;
      const double seam = width > 3.0 ? 0.7 : 0.0;  // between boxes of one colour
      const double height = box.part == RowPart::kAll ? lane : 0.5 * lane;
      const double top = box.part == RowPart::kLower ? y + height : y;
      const Look look = look_of(box);
      const double drawn_height = box.part == RowPart::kUpper ? height - 0.7 : height;  // a seam between the halves
      fmt::format_to(std::back_inserter(paths[look]), "M{:.1f} {:.1f}h{:.1f}v{:.1f}h{:.1f}z", x, top, width - seam,
                     drawn_height, seam - width);
      const std::string label = std::to_string(box.micro_batch);
      const double size = std::min({11.0, 0.85 * height, (width - 1.0) / text_width(label, 1.08)});
      if (size < kSmallestLabel) continue;
      fmt::format_to(std::back_inserter(colour_of(look).is_light() ? on_light : on_dark),
                     "<text x=\"{:.1f}\" y=\"{:.1f}\" style=\"font-size:{:.1f}px\">{}</text>", x + 0.5 * width,
                     top + 0.5 * height + 0.36 * size, size, label);
    }
    write_paths(paths);
    if (!on_dark.empty()) add("<g class=\"on-dark\">{}</g>\n", on_dark);
    if (!on_light.empty()) add("<g class=\"on-light\">{}</g>\n", on_light);
  }

  /// Each column takes one look, idle time being one, so that over a few columns each has its share of them.
  void write_columns(const ChartRank& rank, double y, double lane) {
    const auto num_columns = static_cast<std::size_t>(kPlotWidth) * kColumnsPerPixel;
    std::vector<std::map<Look, double>> covered(num_columns);
    for (const Box& box : rank.boxes) {
      const double from = (axis_.pixel(box.start) - kLeft) * kColumnsPerPixel;
      const double to = (axis_.pixel(box.end) - kLeft) * kColumnsPerPixel;
      for (auto column = static_cast<std::size_t>(from); column < num_columns && static_cast<double>(column) < to;
           ++column) {
        const auto left = static_cast<double>(column);
        covered[column][look_of(box)] += std::min(to, left + 1.0) - std::max(from, left);
      }
    }
    ColumnPaths paths(y + 0.5 * lane);
    std::map<Look, double> owed;  // coverage that has not been drawn yet
    double owed_idle = 0.0;
    for (std::size_t column = 0; column < num_columns; ++column) {
      double idle = 1.0;
      for (const auto& [look, share] : covered[column]) {
        owed[look] += share;
        idle -= share;
      }
      owed_idle += idle;
      const auto most =
          std::max_element(owed.begin(), owed.end(), [](const auto& x, const auto& z) { return x.second < z.second; });
      if (most == owed.end() || most->second <= owed_idle) {
        owed_idle -= 1.0;
        paths.add(column, std::nullopt);
      } else {
        most->second -= 1.0;
        paths.add(column, most->first);
      }
    }
    paths.add(num_columns, std::nullopt);
    for (const auto& [look, path] : paths.all()) {
      add("<path stroke=\"{}\" stroke-width=\"{:.1f}\" d=\"{}\"/>\n", colour_of(look).hex(), lane, path.text);
    }
  }

  /// The largest amount of each column of half a pixel: no peak is lost.
  void write_curve(const PipelineChart& chart, const ChartRank& rank, double top, double height) {
    const double most_held = largest_held(chart);
    if (most_held <= 0.0) return;
    const double floor = top + height;
    std::string path = fmt::format("M{:.1f} {:.2f}", kLeft, floor);
    double last_y = floor;
    std::size_t i = 0;
    double amount = 0.0;
    for (int column = 0; column < static_cast<int>(kPlotWidth) * kColumnsPerPixel; ++column) {
      const double x = kLeft + static_cast<double>(column) / kColumnsPerPixel;
      double peak = amount;
      while (i < rank.held.size() && axis_.pixel(rank.held[i].time) < x + 1.0 / kColumnsPerPixel) {
        amount = rank.held[i++].amount;
        peak = std::max(peak, amount);
      }
      const double y = floor - (height - 1.0) * std::max(0.0, peak) / most_held;
      if (std::abs(y - last_y) < 0.05) continue;
      fmt::format_to(std::back_inserter(path), "H{:.1f}V{:.2f}", x, y);
      last_y = y;
    }
    add("<path class=\"held\" d=\"{}H{:.1f}V{:.2f}z\"/><path class=\"floor\" d=\"M{:.1f} {:.2f}H{:.1f}\"/>\n", path,
        axis_.pixel(chart.step), floor, kLeft, floor, axis_.pixel(chart.step));
  }

  double largest_held(const PipelineChart& chart) const {
    double most_held = 0.0;
    for (const ChartRank& rank : chart.ranks) {
      for (const schedule::Held& held : rank.held) most_held = std::max(most_held, held.amount);
    }
    return most_held;
  }

  const PipelinePicture& picture_;
  ColourBy colour_by_;
  Axis axis_;
  int num_chunks_ = 1;
  std::string body_;
};

}  // namespace

std::string pipeline_svg(const PipelinePicture& picture, ColourBy colour_by) {
  return PictureWriter(picture, colour_by).write();
}

}  // namespace primus::view
