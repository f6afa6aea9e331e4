#pragma once
// A run of a tiny model by the real primus-worker, which may be killed, and what it leaves.
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "data/temporary_folder.hpp"

namespace primus::faults {

struct Ended {
  int exit_code = 0;
  int signal = 0;  // that ended it; 0: none
  std::string out;
  std::string err;
};

class WorkerRun {
 public:
  /// A run of 12 steps that saves after every second one, with these overrides besides.
  explicit WorkerRun(const std::vector<std::string>& overrides = {});

  /// Start it, or go on. `fault`: see file_faults.cpp; with `kill_after`, SIGKILL comes after that time.
  Ended run(const std::string& fault = "", std::optional<std::chrono::milliseconds> kill_after = {}) const;

  /// The records without what depends on clock and memory.
  std::vector<std::string> curve() const;
  /// Checksums of all tensors of a step's checkpoint, which is read whole; what is damaged fails the test.
  std::vector<std::string> state(std::int64_t iteration) const;
  std::filesystem::path checkpoints() const;
  /// File operations under the folder of checkpoints in a whole run.
  long num_operations(const std::string& op = "") const;

 private:
  data::TemporaryFolder folder_;
  std::filesystem::path run_folder_;
};

}  // namespace primus::faults
