#pragma once
// Does a rank fit a device? And by how much must one be sure?
#include <string_view>

#include "projection/memory.hpp"

namespace primus::projection {

/// kBarely: what is left is less than what the sum may be wrong by.
enum class Fit { kFits, kBarely, kNot };
std::string_view name(Fit fit);

/// A quarter of what is there for a moment and of what was measured on another device: an allocator's fragments.
std::int64_t uncertainty(const RankMemory& rank);

Fit fit_of(const RankMemory& rank, std::int64_t device_bytes);

}  // namespace primus::projection
