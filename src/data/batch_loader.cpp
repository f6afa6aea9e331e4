#include "data/batch_loader.hpp"

namespace primus::data {

BatchLoader::BatchLoader(std::shared_ptr<const DataSource> source, Split split, const BatchShape& shape,
                         Prefetch prefetch)
    : source_(std::move(source)), split_(split), shape_(shape) {
  if (prefetch == Prefetch::kOn) thread_ = std::thread([this] { work(); });
}

BatchLoader::~BatchLoader() {
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

std::vector<GptBatch> BatchLoader::read(const StepPosition& position) const {
  std::vector<GptBatch> batches;
  batches.reserve(static_cast<std::size_t>(position.num_micro_batches));
  for (std::int64_t i = 0; i < position.num_micro_batches; ++i) {
    batches.push_back(
        source_->read(split_, {position.consumed_samples, i, shape_.micro_batch_size, shape_.data_parallel}));
  }
  return batches;
}

std::vector<GptBatch> BatchLoader::step(const StepPosition& position) {
  if (!thread_.joinable()) return read(position);
  std::unique_lock lock(mutex_);
  std::optional<Result> result;
  if (wanted_ == position) {
    changed_.wait(lock, [this] { return result_.has_value(); });
    result = std::move(result_);
  } else {
    // A wrong guess, or the first step: read here, so that the thread need not be waited for.
    lock.unlock();
    result.emplace();
    try {
      result->batches = read(position);
    } catch (...) {
      result->error = std::current_exception();
    }
    lock.lock();
  }
  result_.reset();
  wanted_.reset();
  if (!result->error) {
    const std::int64_t num_samples = position.num_micro_batches * shape_.micro_batch_size * shape_.data_parallel.size;
    wanted_ = StepPosition{position.consumed_samples + num_samples, position.num_micro_batches};
  }
  lock.unlock();
  changed_.notify_all();
  if (result->error) std::rethrow_exception(result->error);
  return std::move(result->batches);
}

void BatchLoader::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return is_stopping_ || (wanted_ && !result_); });
    if (is_stopping_) return;
    const StepPosition position = *wanted_;
    lock.unlock();
    Result result;
    try {
      result.batches = read(position);
    } catch (...) {
      result.error = std::current_exception();
    }
    lock.lock();
    if (wanted_ == position) {
      result_ = std::move(result);
      changed_.notify_all();
    }
  }
}

}  // namespace primus::data
