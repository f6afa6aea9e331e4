#include "launch/world.hpp"

#include <fmt/format.h>

#include <string>
#include <string_view>

#include "base/error.hpp"
#include "config/parse.hpp"
#include "launch/environment.hpp"

namespace primus::launch {
namespace {

constexpr std::int64_t kMostProcesses = 1'000'000;
// Devices of a node where nobody says them: Primus' default of GPUS_PER_NODE, and what `slurm` takes.
constexpr std::int64_t kUsualDevices = 8;

std::optional<std::int64_t> count_of(const Variables& environment, const char* name) {
  const auto text = environment.find(name);
  if (text == environment.end() || text->second.empty()) return std::nullopt;
  const auto count = config::parse_int(text->second);
  if (count && *count >= 1 && *count <= kMostProcesses) return count;
  const bool is_of_slurm = slurm_variables(current_environment()).contains(name);
  throw ConfigError({{.file = "environment",
                      .key = is_of_slurm ? slurm_name(name) : name,
                      .message = "not a number of processes",
                      .expected = "integer >= 1",
                      .found = fmt::format("'{}'", text->second)}});
}

}  // namespace

std::optional<config::WorldSize> world_of_environment(config::Purpose purpose) {
  Variables environment = current_environment();
  const Variables of_slurm = slurm_variables(environment);
  for (const auto& [name, value] : of_slurm) environment[name] = value;
  if (const auto mode = environment.find("RUN_MODE"); mode != environment.end() && mode->second == "single")
    return config::WorldSize{1, "RUN_MODE"};
  if (const auto world = count_of(environment, "WORLD_SIZE")) return config::WorldSize{*world, "WORLD_SIZE"};
  const auto nodes = count_of(environment, "NNODES");
  const auto devices = count_of(environment, "GPUS_PER_NODE");
  if (nodes && devices) return config::WorldSize{*nodes * *devices, "NNODES x GPUS_PER_NODE"};
  if (devices) return config::WorldSize{*devices, "GPUS_PER_NODE, one node"};
  // One node is what there is without a word, too: its devices are open.
  if (!nodes || *nodes == 1) return std::nullopt;
  if (purpose == config::Purpose::kTrain) return config::WorldSize{*nodes, "NNODES, one process a node"};
  return config::WorldSize{*nodes * kUsualDevices, fmt::format("NNODES, {} devices a node", kUsualDevices)};
}

}  // namespace primus::launch
