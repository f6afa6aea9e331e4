#include "ops/gpu/profile.hpp"

#include <c10/cuda/CUDACachingAllocator.h>
#include <cuda_profiler_api.h>
#include <torch/csrc/cuda/memory_snapshot.h>

#include <algorithm>
#include <cctype>

#include "ops/gpu/runtime.hpp"

namespace primus::gpu {

std::string pci_address() {
  int device = 0;
  PRIMUS_CUDA_CHECK(cudaGetDevice(&device));
  constexpr int kLength = 32;
  char address[kLength] = {};
  PRIMUS_CUDA_CHECK(cudaDeviceGetPCIBusId(address, kLength, device));
  std::string lower = address;  // as the system's folders are named
  std::ranges::transform(lower, lower.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return lower;
}

void set_capture(ops::Capture capture) {
  PRIMUS_CUDA_CHECK(capture == ops::Capture::kStarted ? cudaProfilerStart() : cudaProfilerStop());
}

void record_allocations() {
  // Without call stacks: finding the names of C++ frames takes minutes. The notes say whose an allocation is.
  constexpr std::optional<std::string> kNoStacks;
  torch::cuda::_record_memory_history("all", kNoStacks, "python");
}

void note_allocations(const std::string& note) {
  c10::cuda::CUDACachingAllocator::setUserMetadata(note);
}

std::string allocations_snapshot() {
  return torch::cuda::_memory_snapshot_pickled();
}

}  // namespace primus::gpu
