#pragma once
// The words before a command: global options, launcher file, launch mode; then the command itself.
#include <span>
#include <string>

#include "launch/output_copy.hpp"

namespace primus::cli {

/// Read the words, run the command and return its exit code. `output` lives longer than what the command throws.
int run_front(std::span<const std::string> words, launch::OutputCopy& output);

}  // namespace primus::cli
