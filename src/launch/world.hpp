#pragma once
// How many processes a run has, and who says so (decision 3).
#include <cstdint>
#include <optional>

#include "config/rules.hpp"

namespace primus::launch {

/// The environment's world: WORLD_SIZE, or NNODES x GPUS_PER_NODE. Throws ConfigError if one is no positive integer.
std::optional<config::WorldSize> world_of_environment();

}  // namespace primus::launch
