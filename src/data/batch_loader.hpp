#pragma once
// Whole steps of micro-batches, the next one read while the current one is computed.
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "data/data_source.hpp"

namespace primus::data {

/// Read ahead in a thread, or only when asked.
enum class Prefetch { kOff, kOn };

/// How a global batch is divided.
struct BatchShape {
  std::int64_t micro_batch_size = 1;
  DataParallelRank data_parallel;
};

/// Where a step begins, and how many micro-batches a rank has in it.
struct StepPosition {
  std::int64_t consumed_samples = 0;
  std::int64_t num_micro_batches = 1;
  bool operator==(const StepPosition&) const = default;
};

/// Gives the micro-batches of a step. Reading ahead guesses that the next step follows on; a wrong guess costs time and
/// changes nothing. An error met while reading ahead is thrown when its step is asked for. Not for several threads.
class BatchLoader {
 public:
  BatchLoader(std::shared_ptr<const DataSource> source, Split split, const BatchShape& shape, Prefetch prefetch);
  BatchLoader(const BatchLoader&) = delete;
  BatchLoader& operator=(const BatchLoader&) = delete;
  ~BatchLoader();

  /// The micro-batches of the step at `position`.
  std::vector<GptBatch> step(const StepPosition& position);

 private:
  struct Result {
    std::vector<GptBatch> batches;
    std::exception_ptr error;
  };

  std::vector<GptBatch> read(const StepPosition& position) const;
  void work();

  std::shared_ptr<const DataSource> source_;
  Split split_;
  BatchShape shape_;

  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_stopping_ = false;
  std::optional<StepPosition> wanted_;  // what the thread reads, or has read
  std::optional<Result> result_;        // of `wanted_`
  std::thread thread_;
};

}  // namespace primus::data
