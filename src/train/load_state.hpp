#pragma once
// What a training checkpoint holds beside weights, into a run.
#include "checkpoint/checkpoint_reader.hpp"
#include "train/save_options.hpp"
#include "train/start.hpp"

namespace primus::train {

/// What of a checkpoint is asked for.
struct Wanted {
  OptimizerState optimizer = OptimizerState::kIncluded;
  Generators generators = Generators::kIncluded;
  enum class Position { kStored, kNew } position = Position::kStored;
};

/// Does it hold what the run needs? Throws ConfigError that names every tensor which is missing, extra, of another
/// shape or type, and every setting of the schedule that differs.
void check_state(const checkpoint::CheckpointReader& reader, const Wanted& wanted, const config::Experiment& experiment,
                 const RunState& run);

/// Optimizer, loss scale, schedules and generators; the state has been checked. Throws DamagedError.
void load_state(const checkpoint::CheckpointReader& reader, const Wanted& wanted, const config::Experiment& experiment,
                const RunState& run);

Position position_of(const checkpoint::CheckpointReader& reader, const Wanted& wanted,
                     const config::Experiment& experiment);

/// load_main_params_from_ckpt: master copies in the precision in which the weights are stored.
void load_masters_from_weights(const std::string& folder, const RunState& run);

}  // namespace primus::train
