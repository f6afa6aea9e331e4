#pragma once
// Pipelines as self-contained SVG: a row a rank, what it holds beneath it, all charts on one time axis.
#include <string>

#include "view/pipeline_chart.hpp"

namespace primus::view {

/// What the boxes' colours tell apart: forward, backward and weight gradient (chunks as shades), or micro-batches.
enum class ColourBy : std::uint8_t { kPass, kMicroBatch };

/// SVG text; legible in print, for colour-blind readers, in dark and light. Boxes narrower than what can be seen are
/// drawn as what most of their half pixel is.
std::string pipeline_svg(const PipelinePicture& picture, ColourBy colour_by);

}  // namespace primus::view
