#pragma once
// `--accounting primus` and `--accounting blog`: other people's ways of counting, as their numbers were made.
#include <string>

#include "cli/messages.hpp"
#include "cli/projection_common.hpp"

namespace primus::cli {

std::string primus_text(const Projected& projected);
Json primus_json(const Projected& projected);
std::string blog_text(const Projected& projected);
Json blog_json(const Projected& projected);

}  // namespace primus::cli
