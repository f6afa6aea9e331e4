#pragma once
// Faults of several places told in one run: each step is done whatever the one before found.
#include <algorithm>
#include <utility>
#include <vector>

#include "base/error.hpp"

namespace primus::cli {

/// Problems of steps that may each throw a ConfigError.
class Gathered {
 public:
  template <typename Step>
  void step(Step&& run) {
    try {
      run();
    } catch (const ConfigError& error) {
      for (const Problem& problem : error.problems()) {
        if (!is_told(problem)) problems_.push_back(problem);
      }
    }
  }

  bool is_empty() const { return problems_.empty(); }

  std::vector<Problem> take() { return std::exchange(problems_, {}); }

  /// Throws one ConfigError if a step found something.
  void raise() {
    if (!problems_.empty()) throw ConfigError(std::exchange(problems_, {}));
  }

 private:
  // Two steps that read one variable find the same fault.
  bool is_told(const Problem& problem) const {
    return problem.file == "environment" && std::any_of(problems_.begin(), problems_.end(), [&](const Problem& known) {
             return known.key == problem.key || known.key.ends_with(" " + problem.key);
           });
  }

  std::vector<Problem> problems_;
};

}  // namespace primus::cli
