#pragma once
// How many rows a rank's experts get of one micro-batch: balanced, and at most.
#include <cstdint>

#include "model/model_spec.hpp"
#include "model/sharding.hpp"

namespace primus::model {

/// Rows that every rank's experts get where routing is balanced. `tokens` are those that one rank sends; expert-tensor
/// ranks see each other's rows, too.
std::int64_t balanced_rows(const MoeSpec& moe, std::int64_t tokens, const Sharding& sharding);

/// The most that can exist: a token chooses an expert once, experts take what their capacity leaves.
std::int64_t most_rows(const MoeSpec& moe, std::int64_t tokens, const Sharding& sharding);

/// Of the busiest rank: the balanced number times the sharding's imbalance, as far as so many rows can exist.
std::int64_t received_rows(const MoeSpec& moe, std::int64_t tokens, const Sharding& sharding);

}  // namespace primus::model
