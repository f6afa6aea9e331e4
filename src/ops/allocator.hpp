#pragma once
// Our allocator under libtorch's CPU tensors: counts who holds what (decision 17), and keeps freed blocks, since a
// training step asks for the same sizes again and fresh pages cost more than the arithmetic on them.
#include <cstdint>
#include <string_view>

#include "model/saved_tensors.hpp"

namespace primus::ops {

/// What an allocation is for: the scope that allocates says so, never a declaration.
enum class MemoryTag : int {
  kWorkspace,
  kParameters,
  kMainGradients,
  kOptimizer,
  kBatch,
  kOpScratch,
  kSavedFirst,  // + SavedCategory
};
inline constexpr int kNumMemoryTags = static_cast<int>(MemoryTag::kSavedFirst) + model::kNumSavedCategories;

constexpr MemoryTag saved_tag(model::SavedCategory category) {
  return static_cast<MemoryTag>(static_cast<int>(MemoryTag::kSavedFirst) + static_cast<int>(category));
}
std::string_view name(MemoryTag tag);

/// Allocations of this thread carry `tag` while the scope lives; scopes nest.
class MemoryScope {
 public:
  explicit MemoryScope(MemoryTag tag);
  ~MemoryScope();
  MemoryScope(const MemoryScope&) = delete;
  MemoryScope& operator=(const MemoryScope&) = delete;

 private:
  MemoryTag previous_;
};

/// Bytes asked for, by tag, and in all; peaks since the last reset.
struct MemoryReport {
  std::int64_t held_bytes[kNumMemoryTags] = {};
  std::int64_t total_bytes = 0;
  std::int64_t peak_bytes = 0;            // of total_bytes
  std::int64_t saved_peak_bytes = 0;      // of saved_bytes()
  std::int64_t workspace_peak_bytes = 0;  // of what no scope claims
  std::int64_t scratch_peak_bytes = 0;
  std::int64_t pass_peak_bytes = 0;            // of saved_bytes() and workspace at one time
  std::int64_t workspace_allocated_bytes = 0;  // since the last reset, whether given back or not
  std::int64_t reserved_bytes = 0;             // total_bytes and what lies in the cache

  std::int64_t held(MemoryTag tag) const { return held_bytes[static_cast<int>(tag)]; }
  std::int64_t saved_bytes() const;
};

/// Put our allocator under every CPU tensor from now on. Call once, before the first tensor.
void install_allocator();
MemoryReport memory_report();
void reset_peak();
/// Give cached blocks back to the system.
void release_cache();

enum class FreshMemory { kAsItIs, kPoisoned };
/// kPoisoned: every block is filled with NaN bytes before it is handed out; for tests (D8).
void set_fresh_memory(FreshMemory fresh);

}  // namespace primus::ops
