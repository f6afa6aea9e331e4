#pragma once
// The order in which one pipeline rank computes: what its activations in flight follow from.
#include <vector>

#include "config/experiment.hpp"
#include "layout/stage_layout.hpp"
#include "schedule/schedule.hpp"

namespace primus::projection {

enum class Algorithm { k1F1B, kInterleaved, kZeroBubble, kZbv, kVHalf, kVMin };
std::string_view name(Algorithm algorithm);

/// Whether a forward and the backward behind it run side by side, which costs one more forward of warm-up.
enum class Overlap { kOff, kOn };

struct Pipeline {
  Algorithm algorithm = Algorithm::k1F1B;
  int num_ranks = 1;
  int num_chunks = 1;
  int num_micro_batches = 1;
  int group = 1;  // micro-batches that an interleaved schedule takes in a row
  Overlap overlap = Overlap::kOff;
};

/// The schedule that an experiment runs. `num_micro_batches`: of one step.
Pipeline pipeline_of(const config::Experiment& experiment, const layout::StageLayout& stages,
                     std::int64_t num_micro_batches);

/// Forwards, backwards and weight gradients of one rank in order. Without weight gradients of their own, a backward
/// ends its micro-batch's activations, else the weight gradient does.
std::vector<schedule::Action> passes(const Pipeline& pipeline, int rank);

}  // namespace primus::projection
