#pragma once
// When each pass of every rank runs: a forward takes as long as a backward's half, messages take no time.
#include "projection/memory.hpp"

namespace primus::projection {

struct TimedPass {
  schedule::Action action;
  double start = 0.0;  // in forwards of one chunk
  double end = 0.0;
};

/// By pipeline rank, in the order of its passes.
std::vector<std::vector<TimedPass>> pass_times(const MemoryInputs& inputs);

}  // namespace primus::projection
