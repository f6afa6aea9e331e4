#pragma once
// How many sequences each step of a run takes: one size, a ramp, or sizes from given places on.
#include <string>
#include <utility>
#include <vector>

#include "config/experiment.hpp"

namespace primus::train {

class BatchSizes {
 public:
  /// From rampup_batch_size, step_batch_size_schedule or global_batch_size. Throws UserError for a schedule that cannot
  /// be read.
  static BatchSizes from(const config::Experiment& experiment);

  bool is_constant() const { return from_samples_.size() == 1; }

  /// Sequences of the step that begins after `consumed_samples`, a multiple of the micro-batch.
  std::int64_t at(std::int64_t consumed_samples) const;

  /// Steps until `samples` are consumed; a last step that would go beyond is left out.
  std::int64_t steps_of(std::int64_t samples) const;
  /// Samples that so many steps consume.
  std::int64_t samples_of(std::int64_t steps) const;

 private:
  /// Sizes from a number of consumed samples on, rising, the first from 0.
  std::vector<std::pair<std::int64_t, std::int64_t>> from_samples_ = {{0, 1}};
  std::int64_t micro_batch_ = 1;
};

/// "0:64 2B:128": sizes from a number of tokens on, which may end in K, M, B or T. Throws UserError.
std::vector<std::pair<std::int64_t, std::int64_t>> parse_batch_schedule(const std::string& text,
                                                                        std::int64_t seq_length);

}  // namespace primus::train
