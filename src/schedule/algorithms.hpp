#pragma once
// The schedules by name: which shapes they take, what they promise, and their tables.
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "schedule/messages.hpp"
#include "schedule/schedule.hpp"
#include "schedule/timing.hpp"

namespace primus::schedule {

enum class Algorithm : std::uint8_t {
  k1F1B,
  kInterleaved,
  kOverlapped,  // interleaved, with pairs: 1F1B with token exchange beneath arithmetic
  kZb1p,
  kZbv,
  kVHalf,
  kVMin,
  kDualPipeV,
  kSearched,   // 1F1B's stages, weight gradients apart, an order found by trying
  kSearchedV,  // the same on a V, weight gradients not apart
};

/// How many chunks a schedule puts on a rank. kMany: as many as one likes, from two on.
enum class ChunkRule : std::uint8_t { kOne, kTwo, kMany };

struct AlgorithmInfo {
  Algorithm algorithm = Algorithm::k1F1B;
  std::string_view name;     // in commands and files
  std::string_view meaning;  // one line
  ChunkRule chunks = ChunkRule::kOne;
  Placement placement = Placement::kLoop;
};

std::span<const AlgorithmInfo> algorithms();
const AlgorithmInfo& info(Algorithm algorithm);
const AlgorithmInfo* find_algorithm(std::string_view name);

struct Request {
  Algorithm algorithm = Algorithm::k1F1B;
  int num_ranks = 1;
  int num_micro_batches = 1;
  int num_chunks = 1;                              // of kInterleaved and kOverlapped; the others know theirs
  int group = 0;                                   // micro-batches in a row of an interleaved schedule; 0: num_ranks
  WeightGrad weight_grad = WeightGrad::kIncluded;  // of kOverlapped: kLate with delayed weight gradients
  ParameterGather gather = ParameterGather::kAbsent;
  int max_in_flight = 0;                              // of kSearched: activations that a rank may hold; 0: num_ranks
  std::optional<Durations> durations = std::nullopt;  // of kSearched: what it is the shortest for; nothing: all alike
};

/// The shape that a request stands for.
Shape shape_of(const Request& request);

/// Why a schedule cannot take a shape, and what it could take.
struct ShapeFault {
  enum class About : std::uint8_t { kRanks, kMicroBatches, kChunks, kGroup, kSize, kMemory } about = About::kSize;
  std::string message;
  std::string expected;
  std::string found;
  std::string nearest;
};

/// Nothing if build() can build it.
std::optional<ShapeFault> fault_of(const Request& request);

/// What each rank computes, in order, without messages: enough to count what is in flight. Throws InternalError if
/// fault_of() finds a fault.
Order compute_order(const Request& request);

/// The verified table. Throws InternalError if fault_of() finds a fault.
Schedule build(const Request& request);

/// A shorter table within the same memory, if one is found: all actions as long as each other. Verified, too.
std::optional<Schedule> build_better(const Request& request);

}  // namespace primus::schedule
