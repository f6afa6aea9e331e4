#pragma once
// Pipelines as one self-contained HTML page: zoom, move, hover, colours by pass or micro-batch.
#include <string>

#include "view/pipeline_chart.hpp"
#include "view/pipeline_svg.hpp"

namespace primus::view {

/// HTML without any reference to the network; dark and light, printable. Boxes travel packed (pipeline_page_parts.hpp)
/// and are drawn on a canvas, so that half a million of them open at once.
std::string pipeline_page(const PipelinePicture& picture, ColourBy colour_by);

}  // namespace primus::view
