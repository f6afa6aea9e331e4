#include "view/memory_timeline.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <string_view>

#include "view/axis.hpp"
#include "view/svg.hpp"

namespace primus::view {
namespace {

constexpr double kWidth = 960.0;
constexpr double kMargin = 24.0;
constexpr double kTop = 74.0;
constexpr double kLabelSize = 13.0;
constexpr double kValueRoom = 64.0;

// What is beside picture_style's rules.
constexpr std::string_view kLight = R"(  .tick { fill: #59636e; font-variant-numeric: tabular-nums; }
  .value { font-weight: 600; font-variant-numeric: tabular-nums; }
  .grid { stroke: #e3e6ea; stroke-width: 1; }
  .floor { stroke: #8b949e; stroke-width: 0.8; }
  .held { fill: #d55e00; fill-opacity: 0.55; stroke: #a34700; stroke-width: 0.8; }
)";
constexpr std::string_view kDark = R"( .tick { fill: #9da7b3; } .grid { stroke: #262c36; }
    .floor { stroke: #6e7681; } .held { fill: #e8711a; stroke: #ff9248; }
)";

class Picture {
 public:
  explicit Picture(const MemoryTimeline& timeline) : timeline_(timeline) {
    for (const MemoryBand& band : timeline.bands) {
      label_width_ = std::max(label_width_, text_width(band.label, kLabelSize));
      for (const HeldPoint& point : band.points) {
        end_ = std::max(end_, point.time);
        largest_ = std::max(largest_, point.value);
      }
    }
    pitch_ = std::clamp(640.0 / static_cast<double>(std::max<std::size_t>(timeline.bands.size(), 1)), 16.0, 72.0);
  }

  std::string draw() {
    const double left = kMargin + label_width_ + 10.0;
    const double bottom = kTop + pitch_ * static_cast<double>(timeline_.bands.size());
    const Axis axis(0.0, std::max(end_, 1e-9), left, kWidth - kMargin - kValueRoom, 10, TickKind::kReal);
    write(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" width=\"{0:.0f}\" "
        "height=\"{1:.0f}\" role=\"img\">\n<title>{2}</title>\n<style>{3}</style>\n",
        kWidth, bottom + 52.0, escaped(timeline_.title), picture_style(kLight, kDark));
    write("<rect class=\"paper\" width=\"100%\" height=\"100%\"/>\n");
    write("<text class=\"title\" x=\"{:.0f}\" y=\"34\">{}</text>\n", kMargin, escaped(timeline_.title));
    write("<text class=\"small\" x=\"{:.0f}\" y=\"55\">{}</text>\n", kMargin, escaped(timeline_.subtitle));
    for (const double tick : axis.ticks()) {
      write("<line class=\"grid\" x1=\"{0:.1f}\" y1=\"{1:.1f}\" x2=\"{0:.1f}\" y2=\"{2:.1f}\"/>", axis.pixel(tick),
            kTop, bottom + 4.0);
      write("<text class=\"tick\" x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{}</text>\n", axis.pixel(tick),
            bottom + 20.0, axis.label(tick));
    }
    write("<text class=\"small\" x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{}</text>\n",
          (left + kWidth - kMargin - kValueRoom) / 2.0, bottom + 40.0, escaped(timeline_.x_label));
    for (std::size_t i = 0; i < timeline_.bands.size(); ++i) {
      draw_band(timeline_.bands[i], kTop + pitch_ * static_cast<double>(i + 1), axis, left);
    }
    return svg_ + "</svg>\n";
  }

 private:
  template <typename... Args>
  void write(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(svg_), format, std::forward<Args>(args)...);
  }

  void draw_band(const MemoryBand& band, double floor, const Axis& axis, double left) {
    const double scale = (pitch_ - 3.0) / std::max(largest_, 1e-9);
    double peak = 0.0;
    std::string path = fmt::format("M{:.1f} {:.1f}", left, floor);
    double x = left;
    for (std::size_t i = 0; i < band.points.size();) {
      // Everything that begins within half a pixel is one step, as high as its highest.
      const double begin = axis.pixel(band.points[i].time);
      double value = 0.0;
      for (; i < band.points.size() && axis.pixel(band.points[i].time) < begin + 0.5; ++i) {
        value = std::max(value, band.points[i].value);
      }
      peak = std::max(peak, value);
      x = i < band.points.size() ? axis.pixel(band.points[i].time) : begin;
      path += fmt::format("H{:.1f}V{:.1f}H{:.1f}", begin, floor - value * scale, x);
    }
    path += fmt::format("V{:.1f}Z", floor);
    write("<path class=\"held\" d=\"{}\"><title>{}: at most {:.2f} {}</title></path>", path, escaped(band.label), peak,
          escaped(timeline_.unit));
    write("<line class=\"floor\" x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\"/>", left, floor,
          axis.pixel(end_), floor);
    const double baseline = floor - std::min(pitch_ / 2.0 - 4.5, pitch_ - 12.0);
    write("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>", left - 10.0, baseline, escaped(band.label));
    write("<text class=\"value\" x=\"{:.1f}\" y=\"{:.1f}\">{:.1f}</text>\n", axis.pixel(end_) + 7.0, baseline, peak);
  }

  const MemoryTimeline& timeline_;
  double label_width_ = 0.0;
  double pitch_ = 0.0;
  double end_ = 0.0;
  double largest_ = 0.0;
  std::string svg_;
};

/// The largest value in each of `width` columns of equal time.
std::vector<double> most_by_column(const MemoryBand& band, double end, int width) {
  std::vector<double> most(static_cast<std::size_t>(width), 0.0);
  const double scale = end > 0.0 ? width / end : 0.0;
  double value = 0.0;
  std::size_t next = 0;
  for (std::size_t column = 0; column < most.size(); ++column) {
    most[column] = value;
    for (; next < band.points.size(); ++next) {
      if (band.points[next].time * scale >= static_cast<double>(column + 1)) break;
      value = band.points[next].value;
      most[column] = std::max(most[column], value);
    }
  }
  return most;
}

char tenths(double value, double largest) {
  if (value <= 0.0 || largest <= 0.0) return '.';
  const int tenth = static_cast<int>(std::ceil(10.0 * value / largest - 1e-9));
  return tenth >= 10 ? '#' : static_cast<char>('0' + tenth);
}

}  // namespace

std::string memory_timeline_svg(const MemoryTimeline& timeline) {
  return Picture(timeline).draw();
}

std::string memory_timeline_text(const MemoryTimeline& timeline, int width) {
  double end = 0.0;
  double largest = 0.0;
  std::size_t label_width = 0;
  for (const MemoryBand& band : timeline.bands) {
    label_width = std::max(label_width, band.label.size());
    for (const HeldPoint& point : band.points) {
      end = std::max(end, point.time);
      largest = std::max(largest, point.value);
    }
  }
  std::string text = fmt::format("{}\n{}\n", timeline.title, timeline.subtitle);
  for (const MemoryBand& band : timeline.bands) {
    const std::vector<double> most = most_by_column(band, end, width);
    std::string row;
    for (const double value : most) row += tenths(value, largest);
    text += fmt::format("{:>{}} {} {:>8.1f}\n", band.label, label_width, row,
                        most.empty() ? 0.0 : *std::max_element(most.begin(), most.end()));
  }
  return text +
         fmt::format("each digit: tenths of {:.1f} {}, rounded up; {}\n", largest, timeline.unit, timeline.x_label);
}

}  // namespace primus::view
