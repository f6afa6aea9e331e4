#pragma once
// Bytes held over a step, one band a rank, as self-contained SVG.
#include <optional>
#include <string>
#include <vector>

namespace primus::view {

/// One value until the next point's time.
struct HeldPoint {
  double time = 0.0;
  double value = 0.0;
};

struct MemoryBand {
  std::string label;
  std::vector<HeldPoint> points;  // ascending times
};

struct MemoryTimeline {
  std::string title;
  std::string subtitle;
  std::string unit;
  std::string x_label;
  std::vector<MemoryBand> bands;  // from the top; all have the same scale
};

/// SVG text; dark and light. Points nearer to each other than a pixel are drawn as their largest.
std::string memory_timeline_svg(const MemoryTimeline& timeline);

/// A row a band and a digit a column: tenths of the largest value of all bands, rounded up, `#` for the largest itself.
std::string memory_timeline_text(const MemoryTimeline& timeline, int width);

}  // namespace primus::view
