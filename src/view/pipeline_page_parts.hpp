#pragma once
// The fixed parts of a pipeline page, and how its boxes are packed for it.
#include <string>
#include <string_view>

#include "view/pipeline_chart.hpp"

namespace primus::view {

extern const std::string_view kPipelinePageStyle;
extern const std::string_view kPipelinePageScript;

/// A step is divided into this many ticks, in which packed times are counted.
inline constexpr double kPackedTicks = 4'194'304.0;
/// Levels of a packed memory curve, and the most points that one has.
inline constexpr int kPackedLevels = 1000;
inline constexpr int kPackedPoints = 4096;

/// Base64 of variable-length integers, four a box: ticks since the last box's start, length in ticks, the micro-batch
/// less the last one of its kind (zigzag), kind + 4·part + 12·chunk.
std::string packed_boxes(const ChartRank& rank, double step);

/// The same, two a point: ticks since the last point, level of `largest`. Points nearer than can be seen are one, the
/// largest.
std::string packed_curve(const ChartRank& rank, double step, double largest);

}  // namespace primus::view
