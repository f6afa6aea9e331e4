#include "view/loss_curve.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <limits>
#include <optional>
#include <string_view>

#include "base/text.hpp"
#include "view/axis.hpp"
#include "view/svg.hpp"

namespace primus::view {
namespace {

constexpr double kWidth = 960.0;
constexpr double kHeight = 540.0;
constexpr double kLeft = 76.0;
constexpr double kRight = kWidth - 28.0;
constexpr double kBottom = kHeight - 60.0;
constexpr double kTitleBaseline = 34.0;
constexpr double kLegendTop = 58.0;
constexpr double kLegendLine = 22.0;
constexpr double kValueGap = 7.0;
constexpr double kLabelSize = 13.0;
constexpr double kReferenceGap = 16.0;  // between baselines of reference labels

// Okabe and Ito's palette, told apart with any colour vision; dashes tell the curves apart in grey, too.
// Colours are written out twice, because converters to print formats know no CSS variables.
constexpr int kNumStyles = 6;
constexpr std::string_view kStyle = R"(
  text { font-family: system-ui, -apple-system, "Segoe UI", "Helvetica Neue", "DejaVu Sans", sans-serif; font-size: 13px; fill: #1f2328; }
  .title { font-size: 19px; font-weight: 600; }
  .paper { fill: #ffffff; }
  .tick { fill: #59636e; font-variant-numeric: tabular-nums; }
  .value { font-weight: 600; font-variant-numeric: tabular-nums; }
  .grid { stroke: #e3e6ea; stroke-width: 1; }
  .axis { stroke: #8b949e; stroke-width: 1; }
  .reference { stroke: #59636e; stroke-width: 1.3; stroke-dasharray: 2 4; }
  .reference-label { fill: #59636e; stroke: #ffffff; stroke-width: 4px; stroke-linejoin: round; paint-order: stroke; }
  .curve { fill: none; stroke-width: 2; stroke-linejoin: round; stroke-linecap: butt; }
  .s0 { stroke: #0072b2; } .s1 { stroke: #d55e00; stroke-dasharray: 9 5; } .s2 { stroke: #00805e; stroke-dasharray: 2.5 4; }
  .s3 { stroke: #b0528a; stroke-dasharray: 12 4 2.5 4; } .s4 { stroke: #a87600; stroke-dasharray: 5 3; } .s5 { stroke: #2f8fc4; stroke-dasharray: 18 4; }
  .d0 { fill: #0072b2; } .d1 { fill: #d55e00; } .d2 { fill: #00805e; } .d3 { fill: #b0528a; } .d4 { fill: #a87600; } .d5 { fill: #2f8fc4; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3; } .paper { fill: #0d1117; } .tick { fill: #9da7b3; } .grid { stroke: #262c36; } .axis { stroke: #6e7681; }
    .reference { stroke: #9da7b3; } .reference-label { fill: #9da7b3; stroke: #0d1117; }
    .s0 { stroke: #56b4e9; } .s1 { stroke: #ff9248; } .s2 { stroke: #3fd0a4; } .s3 { stroke: #e69ac6; } .s4 { stroke: #f0c040; } .s5 { stroke: #9ecbff; }
    .d0 { fill: #56b4e9; } .d1 { fill: #ff9248; } .d2 { fill: #3fd0a4; } .d3 { fill: #e69ac6; } .d4 { fill: #f0c040; } .d5 { fill: #9ecbff; }
  }
)";

struct Range {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();
  void include(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
  bool is_empty() const { return low > high; }
};

/// Beyond this a difference of two values would overflow.
bool is_drawable(double value) {
  return std::abs(value) < 1e300;
}
bool is_drawable(const CurvePoint& point) {
  return is_drawable(point.step) && is_drawable(point.value);
}

struct Pixel {
  double x = 0.0;
  double y = 0.0;
};

/// The points of a curve in pixels, at most four for each column: the first, the extremes, the last. A line through
/// them covers the same pixels as one through all.
std::vector<Pixel> decimated(const Curve& curve, const Axis& x_axis, const Axis& y_axis) {
  std::vector<Pixel> result;
  std::array<Pixel, 4> column{};  // first, then highest and lowest in the order of their appearance, last
  std::optional<double> current;
  Pixel first, highest, lowest, last;
  const auto flush = [&] {
    if (!current) return;
    column =
        highest.x <= lowest.x ? std::array{first, highest, lowest, last} : std::array{first, lowest, highest, last};
    for (const Pixel& pixel : column) {
      if (result.empty() || result.back().x != pixel.x || result.back().y != pixel.y) result.push_back(pixel);
    }
  };
  for (const CurvePoint& point : curve.points) {
    if (!is_drawable(point)) continue;
    const Pixel pixel{x_axis.pixel(point.step), y_axis.pixel(point.value)};
    if (!current || std::floor(pixel.x) != *current) {
      flush();
      current = std::floor(pixel.x);
      first = highest = lowest = pixel;
    }
    if (pixel.y < highest.y) highest = pixel;
    if (pixel.y > lowest.y) lowest = pixel;
    last = pixel;
  }
  flush();
  return result;
}

/// Writes the picture part by part.
class Picture {
 public:
  Picture(std::span<const Curve> curves, std::span<const ReferenceLine> references, const LossCurveOptions& options)
      : curves_(curves), options_(options) {
    for (const ReferenceLine& reference : references) {
      if (is_drawable(reference.value)) references_.push_back(reference);
    }
  }

  std::string draw() {
    write(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" width=\"{0:.0f}\" "
        "height=\"{1:.0f}\" "
        "role=\"img\" aria-labelledby=\"title description\">\n",
        kWidth, kHeight);
    write("<title id=\"title\">{}</title>\n", escaped(options_.title.empty() ? options_.y_label : options_.title));
    write("<desc id=\"description\">{}</desc>\n", escaped(description()));
    write("<style>{}</style>\n", kStyle);
    write("<rect class=\"paper\" width=\"{:.0f}\" height=\"{:.0f}\"/>\n", kWidth, kHeight);
    write("<text class=\"title\" x=\"{:.0f}\" y=\"{:.0f}\">{}</text>\n", kLeft, kTitleBaseline,
          escaped(options_.title));
    const double top = draw_legend();
    draw_plot(top);
    svg_ += "</svg>\n";
    return std::move(svg_);
  }

 private:
  template <typename... Args>
  void write(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(svg_), format, std::forward<Args>(args)...);
  }

  static const CurvePoint* last_drawable(const Curve& curve) {
    const auto it = std::find_if(curve.points.rbegin(), curve.points.rend(),
                                 [](const CurvePoint& point) { return is_drawable(point); });
    return it == curve.points.rend() ? nullptr : &*it;
  }

  /// What a reader who does not see the picture is told.
  std::string description() const {
    std::string text;
    for (const Curve& curve : curves_) {
      const CurvePoint* last = last_drawable(curve);
      if (last == nullptr) continue;
      const auto first = std::find_if(curve.points.begin(), curve.points.end(),
                                      [](const CurvePoint& point) { return is_drawable(point); });
      text += fmt::format("{}: {:.4g} at {} {:.10g}, {:.4g} at {:.10g}. ", curve.name, first->value, options_.x_label,
                          first->step, last->value, last->step);
    }
    for (const ReferenceLine& line : references_) text += fmt::format("{}: {:.4g}. ", line.name, line.value);
    return text.empty() ? "No values." : text;
  }

  /// Returns where the plot may begin.
  double draw_legend() {
    double x = kLeft;
    double y = kLegendTop;
    constexpr double kSample = 34.0;
    for (std::size_t i = 0; i < curves_.size(); ++i) {
      const CurvePoint* last = last_drawable(curves_[i]);
      const std::string value = last == nullptr ? "no values" : fmt::format("{:.4g}", last->value);
      const double width = kSample + 8.0 + text_width(curves_[i].name + value, kLabelSize) + kValueGap + 24.0;
      if (x > kLeft && x + width > kRight) {
        x = kLeft;
        y += kLegendLine;
      }
      write("<line class=\"curve s{}\" x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\"/>", i % kNumStyles, x,
            y - 4.5, x + kSample, y - 4.5);
      write("<text x=\"{:.1f}\" y=\"{:.1f}\">{}<tspan class=\"value\" dx=\"{:.0f}\">{}</tspan></text>\n",
            x + kSample + 8.0, y, escaped(curves_[i].name), kValueGap, value);
      x += width;
    }
    return y + 18.0;
  }

  void draw_plot(double top) {
    Range steps, values;
    TickKind kind = TickKind::kWhole;
    for (const Curve& curve : curves_) {
      for (const CurvePoint& point : curve.points) {
        if (!is_drawable(point)) continue;
        steps.include(point.step);
        values.include(point.value);
        if (point.step != std::floor(point.step)) kind = TickKind::kReal;
      }
    }
    if (steps.is_empty()) {
      write("<text class=\"tick\" x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">no values to draw</text>\n",
            (kLeft + kRight) / 2.0, (top + kBottom) / 2.0);
      return;
    }
    for (const ReferenceLine& line : references_) values.include(line.value);
    const double margin = 0.04 * (values.high - values.low);
    const Axis x_axis(steps.low, steps.high, kLeft, kRight, 10, kind);
    const Axis y_axis(values.low - margin, values.high + margin, kBottom, top, 8, TickKind::kReal);
    draw_axes(x_axis, y_axis, top);
    for (std::size_t i = 0; i < curves_.size(); ++i) draw_curve(curves_[i], i % kNumStyles, x_axis, y_axis);
    draw_references(y_axis, top);
  }

  void draw_axes(const Axis& x_axis, const Axis& y_axis, double top) {
    for (const double tick : y_axis.ticks()) {
      const double y = y_axis.pixel(tick);
      write("<line class=\"grid\" x1=\"{0:.1f}\" y1=\"{1:.1f}\" x2=\"{2:.1f}\" y2=\"{1:.1f}\"/>", kLeft, y, kRight);
      write("<text class=\"tick\" x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>\n", kLeft - 9.0, y + 4.5,
            y_axis.label(tick));
    }
    for (const double tick : x_axis.ticks()) {
      const double x = x_axis.pixel(tick);
      write("<line class=\"axis\" x1=\"{0:.1f}\" y1=\"{1:.1f}\" x2=\"{0:.1f}\" y2=\"{2:.1f}\"/>", x, kBottom,
            kBottom + 5.0);
      write("<text class=\"tick\" x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{}</text>\n", x, kBottom + 21.0,
            x_axis.label(tick));
    }
    write("<line class=\"axis\" x1=\"{0:.1f}\" y1=\"{1:.1f}\" x2=\"{2:.1f}\" y2=\"{1:.1f}\"/>\n", kLeft, kBottom,
          kRight);
    write("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{}</text>\n", (kLeft + kRight) / 2.0, kHeight - 14.0,
          escaped(options_.x_label));
    write("<text transform=\"translate(20 {:.1f}) rotate(-90)\" text-anchor=\"middle\">{}</text>\n",
          (top + kBottom) / 2.0, escaped(options_.y_label));
  }

  void draw_curve(const Curve& curve, std::size_t style, const Axis& x_axis, const Axis& y_axis) {
    const std::vector<Pixel> pixels = decimated(curve, x_axis, y_axis);
    if (pixels.empty()) return;
    if (pixels.size() > 1) {
      write("<polyline class=\"curve s{}\" points=\"", style);
      for (const Pixel& pixel : pixels) write("{:.1f},{:.1f} ", pixel.x, pixel.y);
      svg_ += "\"/>\n";
    }
    // Few points, such as evaluations, are shown one by one.
    constexpr std::size_t kFewPoints = 40;
    if (pixels.size() > kFewPoints) return;
    for (const Pixel& pixel : pixels) {
      write("<circle class=\"d{}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.2\"/>", style, pixel.x, pixel.y);
    }
    svg_ += '\n';
  }

  /// Lines last, so that no curve hides a label; labels of neighbouring lines are moved apart.
  void draw_references(const Axis& y_axis, double top) {
    std::stable_sort(references_.begin(), references_.end(),
                     [](const ReferenceLine& a, const ReferenceLine& b) { return a.value > b.value; });
    std::vector<double> baselines;
    for (const ReferenceLine& line : references_) {
      const double wished = y_axis.pixel(line.value) - 6.0;
      baselines.push_back(std::max(wished, baselines.empty() ? top : baselines.back() + kReferenceGap));
    }
    double limit = kBottom - 5.0;
    for (auto baseline = baselines.rbegin(); baseline != baselines.rend(); ++baseline, limit -= kReferenceGap) {
      *baseline = std::min(*baseline, limit);
    }
    for (std::size_t i = 0; i < references_.size(); ++i) {
      write("<line class=\"reference\" x1=\"{0:.1f}\" y1=\"{1:.1f}\" x2=\"{2:.1f}\" y2=\"{1:.1f}\"/>\n", kLeft,
            y_axis.pixel(references_[i].value), kRight);
    }
    for (std::size_t i = 0; i < references_.size(); ++i) {
      write(
          "<text class=\"reference-label\" x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"end\">{}<tspan dx=\"{:.0f}\">{:.4g}"
          "</tspan></text>\n",
          kRight - 4.0, baselines[i], escaped(references_[i].name), kValueGap, references_[i].value);
    }
  }

  std::span<const Curve> curves_;
  std::vector<ReferenceLine> references_;
  const LossCurveOptions& options_;
  std::string svg_;
};

}  // namespace

std::string loss_curve_svg(std::span<const Curve> curves, std::span<const ReferenceLine> references,
                           const LossCurveOptions& options) {
  return Picture(curves, references, options).draw();
}

}  // namespace primus::view
