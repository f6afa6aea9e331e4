#pragma once
// A memory projection drawn: stacked bars by pipeline rank, and what each rank holds over a step.
#include <optional>
#include <string>

#include "cli/projection_common.hpp"

namespace primus::cli {

enum class MemoryPictures { kBars, kTime, kBoth };

/// With the table, as one page.
std::string memory_page(const Projected& projected, const std::optional<projection::Hardware>& device,
                        MemoryPictures pictures);

}  // namespace primus::cli
