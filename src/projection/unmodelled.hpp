#pragma once
// Settings whose bytes the projection does not follow.
#include <string>
#include <vector>

#include "config/experiment.hpp"

namespace primus::projection {

/// A setting in use, and what is counted in its place.
struct Unmodelled {
  std::string key;
  std::string counted_as;
};

std::vector<Unmodelled> unmodelled(const config::Experiment& experiment);

}  // namespace primus::projection
