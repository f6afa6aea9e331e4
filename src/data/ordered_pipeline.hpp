#pragma once
// One thread that reads, several that work, one that takes the results in order; memory is bounded by the queue.
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

namespace primus::data {

/// Runs produce() until it gives nothing, work(item) on `num_threads` threads, and consume(result) in the items' order
/// on the calling thread. At most four items a thread are on the way. The first exception of any part ends all of them
/// and is thrown again.
template <typename Item, typename Result>
class OrderedPipeline {
 public:
  using Produce = std::function<std::optional<Item>()>;
  using Work = std::function<Result(Item)>;
  using Consume = std::function<void(Result)>;

  OrderedPipeline(int num_threads, Produce produce, Work work)
      : most_on_the_way_(kItemsAThread * static_cast<std::size_t>(num_threads)),
        produce_(std::move(produce)),
        work_(std::move(work)) {
    threads_.emplace_back([this] { read_items(); });
    for (int i = 0; i < num_threads; ++i) threads_.emplace_back([this] { work_on_items(); });
  }
  OrderedPipeline(const OrderedPipeline&) = delete;
  OrderedPipeline& operator=(const OrderedPipeline&) = delete;
  ~OrderedPipeline() {
    stop(nullptr);
    for (std::thread& thread : threads_) thread.join();
  }

  void run(const Consume& consume) {
    for (std::int64_t next = 0;; ++next) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return error_ || results_.contains(next) || (is_read_ && next == num_read_); });
      if (error_) std::rethrow_exception(error_);
      if (!results_.contains(next)) return;
      auto result = std::move(results_.extract(next).mapped());
      --num_on_the_way_;
      lock.unlock();
      changed_.notify_all();
      consume(std::move(result));
    }
  }

 private:
  static constexpr std::size_t kItemsAThread = 4;

  void stop(std::exception_ptr error) {
    {
      const std::lock_guard lock(mutex_);
      is_stopping_ = true;
      if (!error_) error_ = std::move(error);
    }
    changed_.notify_all();
  }

  void read_items() {
    try {
      while (true) {
        {
          std::unique_lock lock(mutex_);
          changed_.wait(lock, [this] { return is_stopping_ || num_on_the_way_ < most_on_the_way_; });
          if (is_stopping_) return;
        }
        std::optional<Item> item = produce_();
        {
          const std::lock_guard lock(mutex_);
          if (!item) {
            is_read_ = true;
          } else {
            items_.emplace_back(num_read_++, std::move(*item));
            ++num_on_the_way_;
          }
        }
        changed_.notify_all();
        if (!item) return;
      }
    } catch (...) {
      stop(std::current_exception());
    }
  }

  void work_on_items() {
    try {
      while (true) {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return is_stopping_ || !items_.empty() || is_read_; });
        if (is_stopping_ || items_.empty()) return;
        auto [number, item] = std::move(items_.front());
        items_.pop_front();
        lock.unlock();
        Result result = work_(std::move(item));
        lock.lock();
        results_.emplace(number, std::move(result));
        lock.unlock();
        changed_.notify_all();
      }
    } catch (...) {
      stop(std::current_exception());
    }
  }

  std::size_t most_on_the_way_;
  Produce produce_;
  Work work_;

  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_stopping_ = false;
  bool is_read_ = false;
  std::exception_ptr error_;
  std::int64_t num_read_ = 0;
  std::size_t num_on_the_way_ = 0;  // read and not taken
  std::deque<std::pair<std::int64_t, Item>> items_;
  std::map<std::int64_t, Result> results_;
  std::vector<std::thread> threads_;
};

}  // namespace primus::data
