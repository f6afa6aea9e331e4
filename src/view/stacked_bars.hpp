#pragma once
// Stacked bars, one a row, as self-contained SVG.
#include <optional>
#include <string>
#include <vector>

namespace primus::view {

struct StackedBar {
  std::string label;
  std::vector<double> values;  // by series, none negative
};

/// A line across all bars, such as a device's memory.
struct BarLimit {
  std::string name;
  double value = 0.0;
};

struct BarChart {
  std::string title;
  std::string subtitle;
  std::string unit;                 // "GiB"
  std::vector<std::string> series;  // at most kMaxBarSeries
  std::vector<StackedBar> bars;     // from the top
  std::optional<BarLimit> limit;
};
inline constexpr std::size_t kMaxBarSeries = 9;

/// SVG text; legible in print, for colour-blind readers, in dark and light. Series without any value are left out.
std::string stacked_bars_svg(const BarChart& chart);

/// The nine colours as CSS rules `.f0` to `.f8`, for light and dark, without the `<style>` around them.
std::string bar_colours();

}  // namespace primus::view
