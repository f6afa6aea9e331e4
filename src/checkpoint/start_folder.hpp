#pragma once
// Which folder a run starts from: decided by the experiment and what is on the disk, before and in the worker alike.
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "config/experiment.hpp"

namespace primus::checkpoint {

/// Where the run saves: `save`, the run folder's `checkpoints` where nobody wrote that key, nothing where somebody
/// wrote null (decision 20).
std::optional<std::string> save_folder(const config::Experiment& experiment);

/// Where the run's short-lived checkpoints lie (non_persistent_save_interval); nothing if it makes none.
std::optional<std::string> short_lived_folder(const config::Experiment& experiment);

/// Does the run go on from its own checkpoints? On unless somebody wrote no (decision 20).
bool continues_itself(const config::Experiment& experiment);

/// A folder to start from.
struct StartFolder {
  std::string key;  // load, pretrained_checkpoint, or auto_continue_train: the run's own checkpoints
  std::string folder;
  std::vector<std::filesystem::path> candidates;  // checkpoints in it, the best first; one that names a model: itself
};

/// The run's own checkpoints first (of these and its short-lived ones the newest), then `load`, then
/// `pretrained_checkpoint`; none: random weights. Throws ConfigError, of a problem with its key and without a file, for
/// a folder or a step that is not there.
std::optional<StartFolder> find_start_folder(const config::Experiment& experiment);

}  // namespace primus::checkpoint
