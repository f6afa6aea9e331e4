#pragma once
// The command line of primus-cli.
#include <span>
#include <string>

namespace primus::cli {

/// Run the program on its arguments (without its name) and return its exit code. Prints its own errors.
int run(std::span<const std::string> words);

}  // namespace primus::cli
