#pragma once
// A memory projection drawn: stacked bars by pipeline rank, and what each rank holds over a step.
#include <optional>
#include <string>

#include "cli/projection_common.hpp"

namespace primus::cli {

std::string memory_bars(const Projected& projected, const std::optional<projection::Hardware>& device);
std::string memory_over_a_step(const Projected& projected);

/// Both with the table, as one page.
std::string memory_page(const Projected& projected, const std::optional<projection::Hardware>& device);

}  // namespace primus::cli
