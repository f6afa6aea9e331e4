#pragma once
// Devices by name, from configs/hardware; and sizes of memory as people write them.
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace primus::projection {

struct Hardware {
  std::string name;
  std::string vendor;
  std::int64_t memory_bytes = 0;
};

/// All files of the folder, by name. Throws ConfigError where one is not as expected.
std::vector<Hardware> read_hardware(const std::filesystem::path& folder);

/// The device of this name, in any case. Throws ConfigError that names `option` and the nearest device.
Hardware find_hardware(const std::vector<Hardware>& all, const std::string& name, const std::string& option);

/// "140GiB", "192 GB", "80000 MiB", "150109880320" (bytes). Throws ConfigError for what is no size, is not positive or
/// lies beyond 2^63.
std::int64_t parse_memory_size(const std::string& text, const std::string& option);

}  // namespace primus::projection
