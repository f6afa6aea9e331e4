#pragma once
// A look at what a run starts from, before anything is started.
#include <string>

#include "config/experiment.hpp"

namespace primus::cli {

/// Throws ConfigError, with the place of the key, if the experiment names a checkpoint that is not there.
void check_start(const config::Experiment& experiment, const std::string& experiment_file);

/// The same for a plan, in words: the folder and the key that names it, random weights, or what a train will refuse.
struct StartUse {
  std::string key;     // "": random weights
  std::string folder;  // of the checkpoint that is tried first
  std::string fault;   // "": none
};
StartUse look_at_start(const config::Experiment& experiment);

}  // namespace primus::cli
