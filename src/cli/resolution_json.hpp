#pragma once
// A resolved experiment as JSON, for `config show --format json` and a dry run's plan.
#include <vector>

#include "cli/messages.hpp"
#include "config/resolve.hpp"

namespace primus::cli {

enum class Origins { kLeftOut, kShown };

Json json_of(const config::Resolution& resolution, Origins origins);

/// Notes as a list of key and text.
Json notes_json(const std::vector<config::Note>& notes);

}  // namespace primus::cli
