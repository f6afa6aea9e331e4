#pragma once
// A table and times in; timeline, bubble and memory of every rank out.
#include <optional>
#include <vector>

#include "schedule/phases.hpp"
#include "schedule/schedule.hpp"
#include "schedule/timing.hpp"

namespace primus::schedule {

/// Times of one micro-batch on one stage, in any unit, and what its forward keeps.
struct StageCost {
  double forward = 1.0;
  double backward = 1.0;  // input gradient
  double weight_grad = 1.0;
  /// Layers that exchange tokens, all alike, and their phases; the times above contain them. Only pairs look here.
  int num_exchange_layers = 0;
  PhaseTimes phases = {};
  double activation = 1.0;            // bytes, or activations: from forward to backward
  double kept_for_weight_grad = 1.0;  // the part of it that waits for a weight gradient that stands apart
};

struct Costs {
  std::vector<StageCost> stages;  // in the order of the layers
  double message = 0.0;           // between two ranks
  double reduce = 0.0;            // a chunk's gradients, while nothing else runs on its rank
  double gather = 0.0;            // a chunk's parameters, likewise
};

/// Times and memory that every stage shares: a whole rank's pass divided over its chunks, a rank's activation likewise.
Costs even_costs(const Shape& shape, double forward, double backward, double weight_grad);

/// What a rank holds from a moment on.
struct Held {
  double time = 0.0;
  double amount = 0.0;
};

struct RankTimeline {
  std::vector<Span> spans;  // as the table's actions
  double forward = 0.0;     // sums of times; a pair's time counts once, shared by what its halves take alone
  double backward = 0.0;
  double weight_grad = 0.0;
  double end = 0.0;
  std::vector<Held> held;  // steps of the curve, in time
  double peak = 0.0;       // the most of it
  int peak_in_flight = 0;  // chunk activations

  double busy() const { return forward + backward + weight_grad; }
};

struct Timeline {
  double step = 0.0;  // until the last rank ends
  std::vector<RankTimeline> ranks;

  /// Share of the step in which a rank computes nothing.
  double bubble(const RankTimeline& rank) const { return step > 0.0 ? 1.0 - rank.busy() / step : 0.0; }
  double mean_bubble() const;
};

/// Run the table with these times. Messages travel beside the work; a rank waits only for what its next action reads.
Timeline simulate(const Schedule& schedule, const Costs& costs);

/// How the builder of a searched order sees costs.
Durations durations_of(const Costs& costs);

/// Megatron's formula for 1F1B and its interleaved form, where all stages take the same time and messages none:
/// (P − 1) / (P − 1 + M·V).
double bubble_formula(const Shape& shape);

}  // namespace primus::schedule
