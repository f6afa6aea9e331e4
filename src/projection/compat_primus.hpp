#pragma once
// The accounting of the original's memory projection, with its simplifications (projection-and-pipeline.md 1.2 to
// 1.5): for comparing with numbers that it printed. Ours is memory.hpp.
#include "projection/memory_inputs.hpp"

namespace primus::projection {

/// One pipeline rank.
struct PrimusMemory {
  double num_parameters = 0.0;
  double bytes_per_parameter = 0.0;
  double activations = 0.0;  // bytes

  double resident() const { return num_parameters * bytes_per_parameter; }
  double total() const { return resident() + activations; }
};

/// `global_batch_size` decides whether the pipeline fills.
PrimusMemory primus_memory(const MemoryInputs& inputs, int pipeline_rank, std::int64_t global_batch_size);

/// All layers, embedding and output.
double primus_total_parameters(const MemoryInputs& inputs);

}  // namespace primus::projection
