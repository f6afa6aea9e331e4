#pragma once
// A rank's memory as a tree of components, and its largest parts: the same in text and on a page.
#include <string>
#include <vector>

#include "projection/memory.hpp"

namespace primus::cli {

struct TreeRow {
  int depth = 0;
  std::string label;
  std::int64_t bytes = 0;
  std::string remark;
};

/// Resident state by component, activations by kind, what a pass holds for a moment, the framework, the total.
std::vector<TreeRow> component_tree(const projection::RankMemory& rank);

struct Contributor {
  std::string name;
  std::int64_t bytes = 0;

  double percent(const projection::RankMemory& rank) const {
    return 100.0 * static_cast<double>(bytes) / static_cast<double>(rank.total());
  }
};

/// The five that take most, the largest first.
std::vector<Contributor> largest_contributors(const projection::RankMemory& rank);

}  // namespace primus::cli
