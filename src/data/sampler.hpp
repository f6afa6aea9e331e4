#pragma once
// Which sample stands at which place of the run: a function of seed and place only.
#include <cstdint>
#include <mutex>
#include <vector>

namespace primus::data {

/// `dataloader_type`.
enum class DataloaderType {
  kSingle,  // one pass, in the data set's own order
  kCyclic,  // pass after pass, each in a random order of its own
};

/// One rank of the data-parallel group.
struct DataParallelRank {
  std::int64_t rank = 0;
  std::int64_t size = 1;
};

/// The order of the numbers 0 … size - 1 in pass `epoch`.
std::vector<std::int64_t> cyclic_order(std::uint64_t seed, std::int64_t epoch, std::int64_t size);

/// Maps places (samples consumed so far) to sample numbers. Safe to use from several threads.
class Sampler {
 public:
  Sampler(DataloaderType type, std::uint64_t seed, std::int64_t num_samples);

  /// The sample at a place. `single` has num_samples places: InternalError beyond.
  std::int64_t at(std::int64_t place) const;

 private:
  DataloaderType type_;
  std::uint64_t seed_;
  std::int64_t num_samples_;
  mutable std::mutex mutex_;
  mutable std::int64_t epoch_ = -1;
  mutable std::vector<std::int64_t> order_;  // of epoch_
};

}  // namespace primus::data
