#pragma once
// `--accounting primus` and `--accounting blog`: other people's ways of counting, as their numbers were made.
#include <optional>
#include <string>

#include "cli/messages.hpp"
#include "cli/projection_common.hpp"

namespace primus::cli {

using Device = std::optional<projection::Hardware>;

std::string primus_text(const Projected& projected, const Device& device);
Json primus_json(const Projected& projected, const Device& device);
std::string blog_text(const Projected& projected, const Device& device);
Json blog_json(const Projected& projected, const Device& device);

}  // namespace primus::cli
