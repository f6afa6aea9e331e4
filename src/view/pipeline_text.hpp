#pragma once
// Pipelines as bars of letters, for a terminal.
#include <string>

#include "view/pipeline_chart.hpp"

namespace primus::view {

/// Whether the terminal shows colours.
enum class Paint { kPlain, kColoured };

/// Each chart: facts, a bar for each rank, then a table of sums. `width` columns in all, at least 60. Boxes wide enough
/// for it carry their micro-batch; in the others each column has the letter of what most of it is: F, B, W, lower case
/// for odd chunks, a point for idle time.
std::string pipeline_text(const PipelinePicture& picture, int width, Paint paint);

}  // namespace primus::view
