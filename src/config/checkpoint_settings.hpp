#pragma once
// use_checkpoint_args: what a checkpoint says about its model stands in the place of what was merely inherited.
#include <string>
#include <vector>

#include "config/rules.hpp"

namespace primus::config {

/// What came of it.
struct CheckpointSettings {
  std::vector<Problem> problems;  // settings that the user wrote and that the checkpoint contradicts
  std::vector<Note> notes;
};

/// Read the experiment of the checkpoint that `load` names, of a folder of checkpoints the latest or that of
/// `ckpt_step`, and take over what its model is made of; with use_mp_args_from_checkpoint_args the parallel sizes,
/// unless use_tokenizer_model_from_checkpoint_args is off the tokenizer. Does nothing while use_checkpoint_args is off.
CheckpointSettings take_checkpoint_settings(Experiment& experiment, const std::string& experiment_file);

}  // namespace primus::config
