#pragma once
// What would make a run smaller: each change of one setting, projected anew.
#include <string>
#include <vector>

#include "projection/memory.hpp"

namespace primus::projection {

struct Remedy {
  std::string words;        // "--context_parallel_size 2"
  std::int64_t total = 0;   // of the largest rank, with it
  std::int64_t saved = 0;   // less than without; other layouts of the ranks are listed even where it is negative
  std::string effect = "";  // what it costs
};

/// The largest saving first.
std::vector<Remedy> remedies(const MemoryInputs& inputs, const MemoryProjection& projection);

}  // namespace primus::projection
