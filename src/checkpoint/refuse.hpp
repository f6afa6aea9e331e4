#pragma once
// How files that cannot be used are refused: exit code 2, with file, tensor or field, expected and found.
#include <utility>

#include "base/error.hpp"

namespace primus::checkpoint {

/// What is wrong with a file; empty fields are left out of the text.
struct Fault {
  std::string file;
  std::string key = {};  // tensor or field
  std::string message;
  std::string expected = {};
  std::string found = {};
  std::string nearest = {};
};

inline Problem problem_of(Fault fault) {
  return {.file = std::move(fault.file),
          .key = std::move(fault.key),
          .message = std::move(fault.message),
          .expected = std::move(fault.expected),
          .found = std::move(fault.found),
          .nearest = std::move(fault.nearest)};
}

/// Throws ConfigError.
[[noreturn]] inline void refuse(Fault fault) {
  throw ConfigError({problem_of(std::move(fault))});
}

}  // namespace primus::checkpoint
