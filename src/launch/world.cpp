#include "launch/world.hpp"

#include <fmt/format.h>

#include <cstdlib>
#include <string>
#include <string_view>

#include "base/error.hpp"
#include "config/parse.hpp"

namespace primus::launch {
namespace {

constexpr std::int64_t kMostProcesses = 1'000'000;

std::optional<std::int64_t> count_of(const char* name) {
  const char* text = std::getenv(name);
  if (!text || !*text) return std::nullopt;
  const auto count = config::parse_int(text);
  if (count && *count >= 1 && *count <= kMostProcesses) return count;
  throw ConfigError({{.file = "environment",
                      .key = name,
                      .message = "not a number of processes",
                      .expected = "integer >= 1",
                      .found = fmt::format("'{}'", text)}});
}

}  // namespace

std::optional<config::WorldSize> world_of_environment() {
  if (const char* mode = std::getenv("RUN_MODE"); mode && std::string_view(mode) == "single")
    return config::WorldSize{1, "RUN_MODE"};
  if (const auto world = count_of("WORLD_SIZE")) return config::WorldSize{*world, "WORLD_SIZE"};
  const auto nodes = count_of("NNODES");
  const auto devices = count_of("GPUS_PER_NODE");
  if (!nodes || !devices) return std::nullopt;
  return config::WorldSize{*nodes * *devices, "NNODES x GPUS_PER_NODE"};
}

}  // namespace primus::launch
