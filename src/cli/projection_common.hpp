#pragma once
// What `projection memory`, `projection compare`, `view layout` and `view memory` share: their options, and an
// experiment with its projection.
#include <optional>
#include <string>
#include <vector>

#include "cli/answer_file.hpp"
#include "cli/config_common.hpp"
#include "projection/advice.hpp"
#include "projection/hardware.hpp"
#include "projection/memory.hpp"

namespace primus::cli {

struct ProjectionOptions {
  ReadOptions read;
  std::string hbm;  // size of a device's memory
  std::string gpu;  // name of a device
  double imbalance = 1.0;
};

/// --config, --world-size, --hbm, --gpu, --imbalance.
void add_projection_options(CLI::App& app, ProjectionOptions& options);

/// What has a meaning in our accounting alone is refused in others.
void refuse_ours_only(const CLI::App& app, const std::string& accounting);

/// An experiment with what its layout and memory follow from.
struct Planned {
  std::string name;  // of the experiment
  config::Resolution resolution;
  projection::MemoryInputs inputs;
};

struct Projected : Planned {
  projection::MemoryProjection memory;
};

/// Throws ConfigError.
Planned plan(const std::string& file, const ProjectionOptions& options, std::vector<std::string> overrides,
             const LaunchOptions& launch);

/// The same, projected. Throws ConfigError, and UserError for models whose activations are not described.
Projected project(const ProjectionOptions& options, const LaunchOptions& launch);
Projected project(const std::string& file, const ProjectionOptions& options, std::vector<std::string> overrides,
                  const LaunchOptions& launch);

/// The device that --gpu or --hbm names; none if neither does. Both at once: ConfigError.
std::optional<projection::Hardware> device_of(const ProjectionOptions& options);

/// Of one step.
std::int64_t num_micro_batches(const Planned& planned);

/// "12.9 GiB": two decimals below ten, one above.
std::string gib_text(std::int64_t num_bytes);

/// "0, 24, 48, 72": the first layers of a rank's chunks with their numbers, "0-3, 24-27".
std::string layers_text(const std::vector<model::StageContent>& chunks);
std::string layers_text(const projection::RankMemory& rank);

/// A line that says how the world is cut, another for the schedule and so on.
std::vector<std::pair<std::string, std::string>> setting_lines(const Planned& planned);

}  // namespace primus::cli
