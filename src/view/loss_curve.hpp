#pragma once
// Loss curves as self-contained SVG.
#include <span>
#include <string>
#include <vector>

namespace primus::view {

struct CurvePoint {
  double step = 0.0;
  double value = 0.0;
};

struct Curve {
  std::string name;                // legend text
  std::vector<CurvePoint> points;  // ascending steps
};

/// A horizontal line with a name, for instance what a bigram model reaches.
struct ReferenceLine {
  std::string name;
  double value = 0.0;
};

struct LossCurveOptions {
  std::string title;
  std::string x_label = "iteration";
  std::string y_label = "loss (nats per token)";
};

/// SVG text; legible in print, for colour-blind readers, in dark and light. Points that are not finite are left out.
std::string loss_curve_svg(std::span<const Curve> curves, std::span<const ReferenceLine> references,
                           const LossCurveOptions& options);

}  // namespace primus::view
