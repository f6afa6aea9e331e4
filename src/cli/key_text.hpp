#pragma once
// A row of the key table in words.
#include <string>

#include "cli/messages.hpp"
#include "config/key_table.hpp"

namespace primus::cli {

/// "works", "works; note", "works for a, b; the rest is planned", "planned: what", "no effect: why".
std::string state_with_reason(const config::Key& key);

/// Name, type, default, allowed, meaning and state for programs.
Json describe_key(const config::Key& key);

}  // namespace primus::cli
