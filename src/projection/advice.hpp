#pragma once
// What would make a run smaller: changes of settings, each resolved by the rules and projected anew.
#include <string>
#include <vector>

#include "projection/memory.hpp"

namespace primus::projection {

struct Remedy {
  std::vector<std::string> words;  // overrides: "--context_parallel_size", "2"
  std::int64_t world_size = 0;     // that it needs, where it is not the run's; else 0
  std::int64_t total = 0;          // of the largest rank, with it
  std::int64_t saved = 0;          // less than without; other layouts of the ranks are listed even where it is negative
  std::string effect = "";         // what it costs

  /// As it is written behind the command: "--world-size 16 --expert_model_parallel_size 16".
  std::string text() const;
};

/// A change that the rules refuse, or that saves nothing.
struct NoRemedy {
  std::string words;
  std::string why;
};

struct Advice {
  std::vector<Remedy> remedies;  // the largest saving first
  std::vector<NoRemedy> others;
};

/// `inputs` and `projection` are the experiment's.
Advice advise(const config::Experiment& experiment, const MemoryInputs& inputs, const MemoryProjection& projection);

}  // namespace primus::projection
