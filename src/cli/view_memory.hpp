#pragma once
// A memory projection drawn: stacked bars by pipeline rank, and what each rank holds over a step.
#include <optional>

#include "cli/projection_common.hpp"
#include "view/picture_page.hpp"

namespace primus::cli {

enum class MemoryPictures { kBars, kTime, kBoth };

/// The pictures with what they rest on, as a page without tables.
view::PicturePage memory_page(const Projected& projected, const std::optional<projection::Hardware>& device,
                              MemoryPictures pictures);

enum class RowsOf { kStages, kRanks };

/// Bytes by category, a row a stage or a rank.
view::PageTable stage_table(const Projected& projected, RowsOf rows);

}  // namespace primus::cli
