#pragma once
// How many processes a run has, and who says so (decision 3).
#include <cstdint>
#include <optional>

#include "config/rules.hpp"

namespace primus::launch {

/// The environment's world: WORLD_SIZE, or NNODES x GPUS_PER_NODE, for both of which a Slurm job's own variables stand
/// in. Either alone counts: one node, and on several nodes 8 devices each in a plan, the process of a CPU in a train.
/// Throws ConfigError if one is no positive integer.
std::optional<config::WorldSize> world_of_environment(config::Purpose purpose);

}  // namespace primus::launch
