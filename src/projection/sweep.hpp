#pragma once
// Sweeps: `cp=1,2,4` and `ep=8,16` become every combination of overrides.
#include <span>
#include <string>
#include <vector>

namespace primus::projection {

/// One layout of a sweep.
struct SweepPoint {
  std::string label;               // "cp 2, ep 8"
  std::vector<std::string> words;  // overrides
};

/// The keys that the axes sweep. Throws as sweep_points().
std::vector<std::string> swept_keys(std::span<const std::string> axes);

/// Axes as written; a short name (tp, cp, pp, vpp, ep, etp, mbs, gbs, seq) or any key. Throws ConfigError for an axis
/// without values, an unknown name, a setting or a value that stands twice, and more than 10,000 layouts.
std::vector<SweepPoint> sweep_points(std::span<const std::string> axes);

}  // namespace primus::projection
