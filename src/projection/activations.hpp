#pragma once
// Activations of a pipeline rank over its schedule: what each chunk keeps of a micro-batch, and what the passes in
// flight hold together.
#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "model/pass_peaks.hpp"
#include "projection/memory_inputs.hpp"

namespace primus::projection {

/// One chunk of a rank: bytes of one micro-batch, and how many are in flight where the rank's sum is largest.
struct ChunkMemory {
  model::StageContent content;
  std::array<std::int64_t, model::kNumSavedCategories> saved{};  // kept
  model::MicroBatchPeaks passes;                                 // nothing else in flight
  int in_flight = 0;

  std::int64_t kept() const;
};

/// The chunks of a rank, nothing in flight.
std::vector<ChunkMemory> chunks_of(const MemoryInputs& inputs, int rank);

/// Bytes of activations around one pass of a rank.
struct PassMemory {
  std::size_t index = 0;  // of the pass among the rank's actions
  std::int64_t peak = 0;  // while it runs
  std::int64_t held = 0;  // once it is done
};

/// Told for each pass, with the number of micro-batches in flight by chunk; a forward's own is among them.
using PassVisit = std::function<void(const PassMemory& pass, const std::vector<int>& in_flight)>;

/// In the order of `actions`, a rank's list of a table; messages and the like are passed over.
void walk_activations(std::span<const schedule::Action> actions, std::span<const ChunkMemory> chunks,
                      const PassVisit& visit);

/// What a rank holds from a moment on, in bytes: from the start of a pass its most, from its end what stays. `spans`
/// are those of `actions`; ascending times.
std::vector<schedule::Held> held_activations(std::span<const schedule::Action> actions,
                                             std::span<const schedule::Span> spans,
                                             std::span<const ChunkMemory> chunks);

}  // namespace primus::projection
