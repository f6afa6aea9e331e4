#include "ops/gpu/device.hpp"

#include <atomic>
#include <map>
#include <mutex>

#include "ops/gpu/runtime.hpp"

namespace primus::gpu {
namespace {

int attribute(cudaDeviceAttr name, int device) {
  int value = 0;
  PRIMUS_CUDA_CHECK(cudaDeviceGetAttribute(&value, name, device));
  return value;
}

std::atomic<ops::Determinism> run_determinism{ops::Determinism::kAnyOrder};
std::atomic<ops::KernelFamilies> run_families{ops::KernelFamilies{}};

}  // namespace

ops::Determinism determinism() {
  return run_determinism;
}

void set_determinism(ops::Determinism determinism) {
  run_determinism = determinism;
}

ops::KernelFamilies kernel_families() {
  return run_families;
}

void set_kernel_families(ops::KernelFamilies families) {
  run_families = families;
}

const DeviceInfo& device_info() {
  static std::mutex mutex;
  static std::map<int, DeviceInfo> known;
  int device = 0;
  PRIMUS_CUDA_CHECK(cudaGetDevice(&device));
  const std::lock_guard lock(mutex);
  const auto found = known.find(device);
  if (found != known.end()) return found->second;
  return known[device] = {attribute(cudaDevAttrComputeCapabilityMajor, device),
                          attribute(cudaDevAttrMultiProcessorCount, device)};
}

}  // namespace primus::gpu
