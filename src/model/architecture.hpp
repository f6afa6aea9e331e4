#pragma once
// Which parts of an experiment's architecture no run can build yet, by name; and which of them no count here knows.
#include <string>
#include <vector>

#include "config/experiment.hpp"

namespace primus::model {

/// kWhole: parameter and FLOP counts know the part (or it has none). kMissing: its shapes are not known here, and the
/// counts leave it out.
enum class Counted { kWhole, kMissing };

struct ArchitecturePart {
  std::string key;   // that asks for it
  std::string name;  // "gated delta nets"
  Counted counted = Counted::kWhole;
};

/// The parts of this experiment's model that training does not build in this release, in the order of a forward pass.
std::vector<ArchitecturePart> unsupported_parts(const config::Experiment& experiment);

/// Those of them that count_parameters and flops_per_token leave out. Not empty: totals are lower bounds.
std::vector<ArchitecturePart> uncounted_parts(const config::Experiment& experiment);

}  // namespace primus::model
