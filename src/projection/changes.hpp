#pragma once
// Changes of settings that are worth a try where a run is too large. Whether they are legal is for the rules to say.
#include <string>
#include <vector>

#include "projection/memory_inputs.hpp"

namespace primus::projection {

/// One change in one or several ways of writing it, the one to be preferred first; each is overrides.
struct Change {
  std::vector<std::vector<std::string>> ways;
  std::string effect;                                     // what it costs
  enum class Kind { kLayout, kKept } kind = Kind::kKept;  // of ranks, or of what is kept
};

/// Those that are a change of this run at all.
std::vector<Change> changes(const MemoryInputs& inputs);

}  // namespace primus::projection
