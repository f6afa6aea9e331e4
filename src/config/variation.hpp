#pragma once
// A resolved experiment with a few settings changed, without reading its files again: what a planner tries.
#include <span>
#include <string>

#include "config/rules.hpp"

namespace primus::config {

/// The experiment as its files and the command line give it with `overrides` behind them, on this world, with all
/// rules applied anew. Throws ConfigError.
Experiment with_overrides(const Experiment& resolved, std::span<const std::string> overrides, const WorldSize& world);

}  // namespace primus::config
