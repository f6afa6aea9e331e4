#pragma once
// YAML text -> Node, with a line for everything, duplicate keys refused and hostile sizes bounded.
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.hpp"
#include "config/node.hpp"

namespace primus::config {

/// A configuration file is a few kilobytes long; more than this is none.
inline constexpr std::size_t kMaxYamlBytes = 1 << 20;

/// Parse one YAML document. `file` stands in origins and problems. Faults are added to `problems`; what could be read
/// up to them is returned.
Node read_yaml(std::string_view content, const std::string& file, std::vector<Problem>& problems);

}  // namespace primus::config
