#include "ops/allocator.hpp"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

#include "base/error.hpp"
#include "ops/aten.hpp"

namespace primus::ops {
namespace {

constexpr std::size_t kAlignment = 64;
constexpr std::size_t kHugePage = std::size_t{2} << 20;
// Below this size malloc is as good as a cache of ours.
constexpr std::size_t kSmallestCached = std::size_t{32} << 10;
// A cached block serves a request if at most this part of it would lie idle.
constexpr std::size_t kLargestWasteShare = 4;

thread_local MemoryTag current_tag = MemoryTag::kWorkspace;

struct Block {
  void* data;
  std::size_t capacity;
  std::size_t num_bytes;
  MemoryTag tag;
};

class CountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t num_bytes) override {
    if (num_bytes == 0) return {nullptr, c10::Device(c10::DeviceType::CPU)};
    auto* block = new Block{nullptr, 0, num_bytes, current_tag};
    {
      const std::lock_guard lock(mutex_);
      take(*block);
      count(*block);
    }
    if (fresh_ == FreshMemory::kPoisoned) std::memset(block->data, 0xff, block->capacity);
    return {block->data, block, &CountingAllocator::release, c10::Device(c10::DeviceType::CPU)};
  }

  // Tensors whose deleter is not ours must not be taken for ours.
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }

  void copy_data(void* destination, const void* source, std::size_t num_bytes) const override {
    std::memcpy(destination, source, num_bytes);
  }

  MemoryReport report() {
    const std::lock_guard lock(mutex_);
    return report_;
  }

  void reset_peak() {
    const std::lock_guard lock(mutex_);
    report_.peak_bytes = report_.total_bytes;
    report_.saved_peak_bytes = report_.saved_bytes();
    report_.workspace_peak_bytes = report_.held(MemoryTag::kWorkspace);
    report_.scratch_peak_bytes = report_.held(MemoryTag::kOpScratch);
    report_.pass_peak_bytes = report_.saved_bytes() + report_.held(MemoryTag::kWorkspace);
    report_.workspace_allocated_bytes = 0;
  }

  void release_cache() {
    const std::lock_guard lock(mutex_);
    for (const auto& [capacity, data] : cache_) {
      report_.reserved_bytes -= static_cast<std::int64_t>(capacity);
      std::free(data);
    }
    cache_.clear();
  }

  void set_fresh_memory(FreshMemory fresh) { fresh_ = fresh; }

  static CountingAllocator& instance() {
    // Never destroyed: tensors of static lifetime may be freed after it would be.
    static auto* allocator = new CountingAllocator();
    return *allocator;
  }

 private:
  static void release(void* context) {
    std::unique_ptr<Block> block(static_cast<Block*>(context));
    instance().give_back(*block);
  }

  void take(Block& block) {
    // Whether a block is cached is decided by its capacity alone, here and where it is given back: a block that could
    // be put into the cache but never be found there again would be lost to every later request.
    block.capacity = (block.num_bytes + kAlignment - 1) / kAlignment * kAlignment;
    if (block.capacity >= kSmallestCached) {
      const auto fit = cache_.lower_bound(block.capacity);
      if (fit != cache_.end() && fit->first - block.capacity <= fit->first / kLargestWasteShare) {
        block.capacity = fit->first;
        block.data = fit->second;
        cache_.erase(fit);
        return;
      }
    }
    const bool is_large = block.capacity >= kHugePage;
    if (::posix_memalign(&block.data, is_large ? kHugePage : kAlignment, block.capacity) != 0) {
      throw UserError(fmt::format("out of memory: {} bytes asked for, {} held", block.num_bytes, report_.total_bytes));
    }
    if (is_large) ::madvise(block.data, block.capacity, MADV_HUGEPAGE);
    report_.reserved_bytes += static_cast<std::int64_t>(block.capacity);
  }

  void count(const Block& block) {
    const auto num_bytes = static_cast<std::int64_t>(block.num_bytes);
    report_.held_bytes[static_cast<int>(block.tag)] += num_bytes;
    report_.total_bytes += num_bytes;
    report_.peak_bytes = std::max(report_.peak_bytes, report_.total_bytes);
    const std::int64_t saved = report_.saved_bytes();
    const std::int64_t workspace = report_.held(MemoryTag::kWorkspace);
    report_.saved_peak_bytes = std::max(report_.saved_peak_bytes, saved);
    report_.workspace_peak_bytes = std::max(report_.workspace_peak_bytes, workspace);
    report_.scratch_peak_bytes = std::max(report_.scratch_peak_bytes, report_.held(MemoryTag::kOpScratch));
    report_.pass_peak_bytes = std::max(report_.pass_peak_bytes, saved + workspace);
    if (block.tag == MemoryTag::kWorkspace) report_.workspace_allocated_bytes += num_bytes;
  }

  void give_back(const Block& block) {
    const std::lock_guard lock(mutex_);
    const auto num_bytes = static_cast<std::int64_t>(block.num_bytes);
    report_.held_bytes[static_cast<int>(block.tag)] -= num_bytes;
    report_.total_bytes -= num_bytes;
    if (block.capacity >= kSmallestCached) {
      // In front of its equals: the block that was freed last is served first, while its lines are still in a cache.
      cache_.emplace_hint(cache_.lower_bound(block.capacity), block.capacity, block.data);
    } else {
      report_.reserved_bytes -= static_cast<std::int64_t>(block.capacity);
      std::free(block.data);
    }
  }

  std::mutex mutex_;
  std::multimap<std::size_t, void*> cache_;  // free blocks by capacity
  MemoryReport report_;
  FreshMemory fresh_ = FreshMemory::kAsItIs;
};

}  // namespace

std::string_view name(MemoryTag tag) {
  switch (tag) {
    case MemoryTag::kWorkspace:
      return "workspace";
    case MemoryTag::kParameters:
      return "parameters";
    case MemoryTag::kMainGradients:
      return "main_gradients";
    case MemoryTag::kOptimizer:
      return "optimizer";
    case MemoryTag::kBatch:
      return "batch";
    case MemoryTag::kOpScratch:
      return "op_scratch";
    default:
      return model::name(
          static_cast<model::SavedCategory>(static_cast<int>(tag) - static_cast<int>(MemoryTag::kSavedFirst)));
  }
}

std::int64_t MemoryReport::saved_bytes() const {
  std::int64_t bytes = 0;
  for (int tag = static_cast<int>(MemoryTag::kSavedFirst); tag < kNumMemoryTags; ++tag) bytes += held_bytes[tag];
  return bytes;
}

MemoryScope::MemoryScope(MemoryTag tag) : previous_(current_tag) {
  current_tag = tag;
}
MemoryScope::~MemoryScope() {
  current_tag = previous_;
}

void install_allocator() {
  c10::SetCPUAllocator(&CountingAllocator::instance(), /*priority=*/100);
}
MemoryReport memory_report() {
  return CountingAllocator::instance().report();
}
void reset_peak() {
  CountingAllocator::instance().reset_peak();
}
void release_cache() {
  CountingAllocator::instance().release_cache();
}
void set_fresh_memory(FreshMemory fresh) {
  CountingAllocator::instance().set_fresh_memory(fresh);
}

}  // namespace primus::ops
