#include "view/stacked_bars.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <numeric>
#include <string_view>

#include "base/error.hpp"
#include "view/axis.hpp"
#include "view/svg.hpp"

namespace primus::view {
namespace {

constexpr double kWidth = 960.0;
constexpr double kMargin = 24.0;
constexpr double kLabelSize = 13.0;
constexpr double kLegendLine = 22.0;
constexpr double kValueRoom = 64.0;   // behind the longest bar
constexpr double kSeamedWidth = 3.0;  // a seam would swallow narrower parts

// What is beside picture_style's rules.
constexpr std::string_view kLight = R"(  .tick { fill: #59636e; font-variant-numeric: tabular-nums; }
  .value { font-weight: 600; font-variant-numeric: tabular-nums; }
  .grid { stroke: #e3e6ea; stroke-width: 1; }
  .limit { stroke: #1f2328; stroke-width: 1.6; stroke-dasharray: 7 4; }
  .limit-label { font-weight: 600; stroke: #ffffff; stroke-width: 4px; stroke-linejoin: round; paint-order: stroke; }
)";
constexpr std::string_view kDark = R"( .tick { fill: #9da7b3; } .grid { stroke: #262c36; }
    .limit { stroke: #e6edf3; } .limit-label { stroke: #0d1117; }
)";

double sum_of(const StackedBar& bar) {
  return std::accumulate(bar.values.begin(), bar.values.end(), 0.0);
}

class Picture {
 public:
  explicit Picture(const BarChart& chart) : chart_(chart) {
    PRIMUS_CHECK(chart.series.size() <= kMaxBarSeries, "{} series", chart.series.size());
    for (const StackedBar& bar : chart.bars) {
      PRIMUS_CHECK(bar.values.size() == chart.series.size(), "{} values of {}", bar.values.size(), chart.series.size());
      largest_ = std::max(largest_, sum_of(bar));
      label_width_ = std::max(label_width_, text_width(bar.label, kLabelSize));
    }
    for (std::size_t i = 0; i < chart.series.size(); ++i) {
      const bool is_used =
          std::any_of(chart.bars.begin(), chart.bars.end(), [&](const StackedBar& bar) { return bar.values[i] > 0.0; });
      if (is_used) used_.push_back(i);
    }
    // Many bars are thin, few are not fat.
    pitch_ = std::clamp(640.0 / static_cast<double>(std::max<std::size_t>(chart.bars.size(), 1)), 15.0, 34.0);
  }

  std::string draw() {
    std::string body;
    std::swap(body, svg_);
    write("<rect class=\"paper\" width=\"100%\" height=\"100%\"/>\n");
    write("<text class=\"title\" x=\"{:.0f}\" y=\"34\">{}</text>\n", kMargin, escaped(chart_.title));
    write("<text class=\"small\" x=\"{:.0f}\" y=\"55\">{}</text>\n", kMargin, escaped(chart_.subtitle));
    const double top = draw_legend() + (chart_.limit ? 22.0 : 4.0);
    const double bottom = top + pitch_ * static_cast<double>(chart_.bars.size());
    draw_bars(top, bottom);
    return header(bottom + 50.0) + svg_ + "</svg>\n";
  }

 private:
  template <typename... Args>
  void write(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(svg_), format, std::forward<Args>(args)...);
  }

  std::string header(double height) const {
    return fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" width=\"{0:.0f}\" "
        "height=\"{1:.0f}\" role=\"img\">\n<title>{2}</title>\n<desc>{3}</desc>\n<style>{4}{5}</style>\n",
        kWidth, height, escaped(chart_.title), escaped(description()), picture_style(kLight, kDark), bar_colours());
  }

  /// What a reader who does not see the picture is told.
  std::string description() const {
    std::string text;
    for (const StackedBar& bar : chart_.bars)
      text += fmt::format("{}: {:.4g} {}. ", bar.label, sum_of(bar), chart_.unit);
    if (chart_.limit) text += fmt::format("{}: {:.4g} {}.", chart_.limit->name, chart_.limit->value, chart_.unit);
    return text;
  }

  double draw_legend() {
    double x = kMargin;
    double y = 84.0;
    constexpr double kSwatch = 14.0;
    for (const std::size_t i : used_) {
      const double width = kSwatch + 7.0 + text_width(chart_.series[i], kLabelSize) + 20.0;
      if (x > kMargin && x + width > kWidth - kMargin) {
        x = kMargin;
        y += kLegendLine;
      }
      write("<rect class=\"f{}\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"14\" height=\"14\" rx=\"2\"/>", i, x, y - 11.5);
      write("<text x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n", x + kSwatch + 7.0, y, escaped(chart_.series[i]));
      x += width;
    }
    return y + 12.0;
  }

  void draw_bars(double top, double bottom) {
    const double left = kMargin + label_width_ + 10.0;
    const double right = kWidth - kMargin - kValueRoom;
    const double limit = chart_.limit ? chart_.limit->value : 0.0;
    const Axis axis(0.0, std::max({largest_, limit, 1e-9}), left, right, 8, TickKind::kReal);
    for (const double tick : axis.ticks()) {
      write("<line class=\"grid\" x1=\"{0:.1f}\" y1=\"{1:.1f}\" x2=\"{0:.1f}\" y2=\"{2:.1f}\"/>", axis.pixel(tick), top,
            bottom + 4.0);
      write("<text class=\"tick\" x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{}</text>\n", axis.pixel(tick),
            bottom + 20.0, axis.label(tick));
    }
    write("<text class=\"small\" x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>\n", kWidth - kMargin,
          bottom + 20.0, escaped(chart_.unit));
    for (std::size_t i = 0; i < chart_.bars.size(); ++i) {
      draw_bar(chart_.bars[i], top + pitch_ * static_cast<double>(i), axis, left);
    }
    if (chart_.limit) draw_limit(axis, top, bottom);
  }

  void draw_bar(const StackedBar& bar, double y, const Axis& axis, double left) {
    const double height = pitch_ - std::min(6.0, pitch_ * 0.22);
    const double baseline = y + height / 2.0 + 4.5;
    write("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>\n", left - 10.0, baseline, escaped(bar.label));
    double value = 0.0;
    for (const std::size_t series : used_) {
      const double part = bar.values[series];
      if (part <= 0.0) continue;
      const double from = axis.pixel(value);
      value += part;
      const double width = axis.pixel(value) - from;
      const double seam = width > kSeamedWidth ? 1.0 : 0.0;
      write(
          "<rect class=\"bar f{}\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\"><title>{}, {}: {:.2f} "
          "{}</title></rect>",
          series, from, y, width - seam, height, escaped(bar.label), escaped(chart_.series[series]), part,
          escaped(chart_.unit));
    }
    const std::string text = fmt::format("{:.1f}", value);
    write("\n<text class=\"value\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n", value_place(axis, value, text), baseline,
          text);
  }

  /// Behind the bar; where the limit's line would cross the number, behind that line.
  double value_place(const Axis& axis, double value, const std::string& text) const {
    constexpr double kGap = 7.0;
    const double x = axis.pixel(value) + kGap;
    if (!chart_.limit) return x;
    const double line = axis.pixel(chart_.limit->value);
    const bool is_crossed = line > x - kGap / 2.0 && line < x + text_width(text, kLabelSize) * 1.1 + kGap / 2.0;
    return is_crossed ? line + kGap : x;
  }

  void draw_limit(const Axis& axis, double top, double bottom) {
    const double x = axis.pixel(chart_.limit->value);
    write("<line class=\"limit\" x1=\"{0:.1f}\" y1=\"{1:.1f}\" x2=\"{0:.1f}\" y2=\"{2:.1f}\"/>", x, top - 6.0,
          bottom + 4.0);
    const std::string text = fmt::format("{} {:.0f} {}", chart_.limit->name, chart_.limit->value, chart_.unit);
    // Centred above its line, unless it would leave the page.
    const double half = text_width(text, kLabelSize) / 2.0;
    write("<text class=\"limit-label\" x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{}</text>\n",
          std::min(x, kWidth - kMargin - half), top - 10.0, escaped(text));
  }

  const BarChart& chart_;
  std::vector<std::size_t> used_;
  double largest_ = 0.0;
  double label_width_ = 0.0;
  double pitch_ = 0.0;
  std::string svg_;
};

}  // namespace

std::string bar_colours() {
  // Okabe and Ito's palette and two shades; neighbours differ in lightness, so that they are told apart in grey.
  return R"(
  .f0 { fill: #0072b2; } .f1 { fill: #7cc4ee; } .f2 { fill: #084c77; } .f3 { fill: #d55e00; } .f4 { fill: #f5b85a; }
  .f5 { fill: #f0e442; } .f6 { fill: #b0528a; } .f7 { fill: #33b38a; } .f8 { fill: #9aa4ae; }
  @media (prefers-color-scheme: dark) {
    .f0 { fill: #2f8fc4; } .f1 { fill: #9bd4f5; } .f2 { fill: #155f8f; } .f3 { fill: #e8711a; } .f4 { fill: #f6c270; }
    .f5 { fill: #e8dc4a; } .f6 { fill: #c96ba4; } .f7 { fill: #3fd0a4; } .f8 { fill: #7d8894; }
  }
)";
}

std::string stacked_bars_svg(const BarChart& chart) {
  return Picture(chart).draw();
}

}  // namespace primus::view
