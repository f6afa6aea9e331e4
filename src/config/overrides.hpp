#pragma once
// The overrides behind a command: `--key value`, `--key=value`, `key=value`, `--flag`, `--no-flag`, `--a.b value`.
#include <array>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.hpp"
#include "config/node.hpp"

namespace primus::config {

/// What names a run: overridden like keys, but no rows of the table.
constexpr std::array<std::string_view, 4> kRunNames = {"work_group", "user_name", "exp_name", "workspace"};

/// One override; `value` is a map for `a.b=3`.
struct Override {
  std::string key;      // snake case, as in the key table
  std::string written;  // as on the command line, for messages
  Node value;
};

/// Read the overrides in order. Faults (stray words, malformed keys) go to `problems`.
std::vector<Override> parse_overrides(std::span<const std::string> words, std::vector<Problem>& problems);

}  // namespace primus::config
