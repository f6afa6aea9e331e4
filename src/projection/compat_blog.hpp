#pragma once
// The accounting behind the figures of the guide to MoE training at scale ("deep-dive"): a closed form that gives all
// of its plotted values (projection-and-pipeline.md 5.6).
#include "projection/memory_inputs.hpp"

namespace primus::projection {

/// Bytes of the first rank, as the figures stack them.
struct BlogMemory {
  double parameters = 0.0;
  double gradients = 0.0;
  double main_parameters = 0.0;  // counted in two bytes
  double moments = 0.0;
  double activations = 0.0;

  double total() const { return parameters + gradients + main_parameters + moments + activations; }
};

/// Attention is one square matrix, shared experts and routers are left out, the vocabulary is 100,352; state is divided
/// over the expert-data ranks. Throws UserError for a model without experts.
BlogMemory blog_memory(const MemoryInputs& inputs);

}  // namespace primus::projection
