#pragma once
// Samples by number: what a data set, or a blend of several, offers to the loader.
#include <cstdint>
#include <span>
#include <string>

namespace primus::data {

/// Stands for "no token" in a sample that the data could not fill; no vocabulary has it.
inline constexpr std::int64_t kNoToken = -1;

/// A fixed list of samples. Safe to read from several threads.
class SampleSet {
 public:
  SampleSet() = default;
  SampleSet(const SampleSet&) = delete;
  SampleSet& operator=(const SampleSet&) = delete;
  virtual ~SampleSet() = default;

  /// For messages.
  virtual const std::string& name() const = 0;
  virtual std::int64_t num_samples() const = 0;
  /// Fill `out` (seq_length + 1 tokens) with sample `sample`; what is missing at its end becomes kNoToken.
  virtual void read(std::int64_t sample, std::span<std::int64_t> out) const = 0;
};

}  // namespace primus::data
