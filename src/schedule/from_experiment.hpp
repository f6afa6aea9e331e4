#pragma once
// The schedule that an experiment runs, and how its stages' work compares.
#include "config/experiment.hpp"
#include "layout/stage_layout.hpp"
#include "model/model_spec.hpp"
#include "schedule/algorithms.hpp"
#include "schedule/simulate.hpp"

namespace primus::schedule {

/// The algorithm that the keys choose: patch_primus_pipeline with pp_algorithm, patch_zero_bubble with its switches, or
/// Megatron's own 1F1B. An interleaved schedule of one chunk is 1F1B.
Algorithm algorithm_of(const config::Experiment& experiment);

/// That schedule for `num_micro_batches` of one step, on stages that `stages` places.
Request request_of(const config::Experiment& experiment, const layout::StageLayout& stages, int num_micro_batches);

/// The stages for an algorithm: the experiment's own where their number fits, else the layers spread evenly over
/// `num_chunks` chunks a rank. Throws UserError where there are fewer layers than stages.
layout::StageLayout stages_for(const config::Experiment& experiment, Algorithm algorithm, int num_chunks);

/// What no count of FLOPs says. Both are shares of a mean: 0 where they shall cost nothing.
struct CommunicationShares {
  double message = 0.0;   // one activation to the next rank, of a rank's forward
  double exchange = 0.0;  // one dispatch or combine, of the layer's forward arithmetic
};

/// Times in forwards: 1 is what a rank's forward takes in the mean, exchanges left aside. Arithmetic is counted in
/// FLOPs: projections cost the same in each of the three passes, attention's core twice its forward in the input
/// gradient and nothing in the weight gradient.
Costs model_costs(const model::ModelSpec& spec, const layout::StageLayout& stages, const CommunicationShares& shares);

}  // namespace primus::schedule
