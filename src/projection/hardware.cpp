#include "projection/hardware.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.hpp"
#include "base/files.hpp"
#include "base/text.hpp"
#include "config/parse.hpp"
#include "config/yaml_reader.hpp"

namespace primus::projection {
namespace {

constexpr std::int64_t kMiB = std::int64_t{1} << 20;

Hardware read_one(const std::filesystem::path& path, std::vector<Problem>& problems) {
  const config::Node node = config::read_yaml(read_file(path), path.string(), problems);
  Hardware hardware;
  for (const config::Node::Entry& entry : node.entries) {
    const Problem place{.file = path.string(), .line = entry.line, .key = entry.key};
    if (entry.key == "name") {
      hardware.name = entry.value.text;
    } else if (entry.key == "vendor") {
      hardware.vendor = entry.value.text;
    } else if (entry.key == "memory_mib") {
      const auto size = config::parse_int(entry.value.text);
      const bool is_size = size && *size > 0 && *size <= (std::int64_t{1} << 40);
      if (is_size) hardware.memory_bytes = *size * kMiB;
      if (is_size) continue;
      problems.push_back(place);
      problems.back().message = "not a size of memory";
      problems.back().expected = "integer from 1 to 2^40";
      problems.back().found = entry.value.text;
    } else {
      problems.push_back(place);
      problems.back().message = "unknown key";
      problems.back().expected = "name, vendor or memory_mib";
    }
  }
  if (problems.empty() && (hardware.name.empty() || hardware.memory_bytes == 0)) {
    problems.push_back({.file = path.string(), .message = "name or memory_mib is missing"});
  }
  return hardware;
}

[[noreturn]] void refuse(const std::string& option, const std::string& message, const std::string& found) {
  throw ConfigError({{.file = "command line",
                      .key = option,
                      .message = message,
                      .expected = "a size such as 140GiB, 192GB or a number of bytes",
                      .found = found}});
}

/// Bytes of a unit; 0: unknown.
double unit_bytes(const std::string& unit) {
  constexpr std::pair<std::string_view, double> kUnits[] = {
      {"", 1.0},    {"b", 1.0},      {"kb", 1e3},     {"mb", 1e6},     {"gb", 1e9},
      {"tb", 1e12}, {"kib", 1024.0}, {"mib", 0x1p20}, {"gib", 0x1p30}, {"tib", 0x1p40}};
  for (const auto& [name, bytes] : kUnits) {
    if (name == unit) return bytes;
  }
  return 0.0;
}

}  // namespace

std::vector<Hardware> read_hardware(const std::filesystem::path& folder) {
  std::vector<Hardware> all;
  std::vector<Problem> problems;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (entry.path().extension() == ".yaml") all.push_back(read_one(entry.path(), problems));
  }
  if (error) throw UserError(fmt::format("{}: {}", folder.string(), error.message()));
  if (!problems.empty()) throw ConfigError(std::move(problems));
  std::sort(all.begin(), all.end(), [](const Hardware& a, const Hardware& b) { return a.name < b.name; });
  return all;
}

Hardware find_hardware(const std::vector<Hardware>& all, const std::string& name, const std::string& option) {
  std::vector<std::string_view> names;
  std::string listed;
  for (const Hardware& hardware : all) {
    if (lower(hardware.name) == lower(name)) return hardware;
    names.push_back(hardware.name);
    listed += (listed.empty() ? "" : ", ") + hardware.name;
  }
  const auto nearest = nearest_name(name, names);
  throw ConfigError({{.file = "command line",
                      .key = option,
                      .message = "unknown device",
                      .expected = "one of " + listed,
                      .found = name,
                      .nearest = nearest ? fmt::format("did you mean '{}'?", *nearest) : ""}});
}

std::int64_t parse_memory_size(const std::string& text, const std::string& option) {
  const std::string_view trimmed = trim(text);
  const std::size_t digits = trimmed.find_first_not_of("0123456789.+-eE");
  const std::string number(trimmed.substr(0, digits));
  const std::string unit = digits == std::string_view::npos ? "" : lower(trim(trimmed.substr(digits)));
  const auto value = config::parse_real(number);
  const double bytes = unit_bytes(unit);
  if (!value || bytes == 0.0 || !std::isfinite(*value)) refuse(option, "not a size of memory", text);
  if (*value <= 0.0) refuse(option, "a device has some memory", text);
  if (*value * bytes >= 0x1p63) refuse(option, "beyond 2^63 bytes", text);
  return static_cast<std::int64_t>(*value * bytes);
}

}  // namespace primus::projection
