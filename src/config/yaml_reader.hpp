#pragma once
// YAML text -> Node, with a line for everything, duplicate keys refused and hostile sizes bounded.
#include <string>
#include <string_view>
#include <vector>

#include "base/error.hpp"
#include "config/node.hpp"

namespace primus::config {

/// Parse one YAML document. `file` stands in origins and problems. Faults are added to `problems`; what could be read
/// up to them is returned.
Node read_yaml(std::string_view content, const std::string& file, std::vector<Problem>& problems);

}  // namespace primus::config
