#pragma once
// What a pass holds for a moment, beside what it keeps: the layers' own tensors and what ops take for themselves, from
// model/pass_peaks.hpp, and buffers of messages. The latter are estimates from the layers' sizes.
#include <span>

#include "projection/activations.hpp"

namespace primus::projection {

struct WorkingSet {
  std::int64_t dispatch = 0;  // rows gathered, sent and returned, where these and `compute` are most
  std::int64_t communication =
      0;                     // between stages, gathered sequences and parameters, keys and values of context ranks
  std::int64_t compute = 0;  // everything else
};

/// The largest of one pass over these chunks of a rank.
WorkingSet working_set(const MemoryInputs& inputs, std::span<const ChunkMemory> chunks);

/// What the driver, the libraries and their communicators take on a device before the first tensor. Measured, see
/// docs/projection.md: one H200, driver 580, CUDA 13.0, NCCL 2.28.9, two ranks over NVLink.
struct FrameworkBytes {
  static constexpr std::int64_t kMiB = std::int64_t{1} << 20;
  static constexpr std::int64_t kContext = 701 * kMiB;            // with cuBLAS and cuDNN in use
  static constexpr std::int64_t kFirstCommunicator = 842 * kMiB;  // NCCL itself and one communicator
  static constexpr std::int64_t kNextCommunicator = 485 * kMiB;
  static constexpr std::int64_t kExchange = 415 * kMiB;  // what an all-to-all adds to its communicator

  std::int64_t context = kContext;
  std::int64_t communicators = 0;
  int num_communicators = 0;

  std::int64_t total() const { return context + communicators; }
};

/// Of a rank: every group with several ranks has a communicator.
FrameworkBytes framework_bytes(const layout::RankGrid& grid);

}  // namespace primus::projection
