#include "ops/device_profile.hpp"

#include <torch/csrc/profiler/stubs/base.h>

#include "ops/cuda_plugin.hpp"

namespace primus::ops {

std::string pci_address(at::Device device) {
  PRIMUS_CHECK(device.is_cuda(), "the CPU is not plugged in");
  return cuda_plugin().pci_address();
}

void set_capture(at::Device device, Capture capture) {
  if (device.is_cuda()) cuda_plugin().set_capture(capture);
}

void push_range(const std::string& name) {
  torch::profiler::impl::cudaStubs()->rangePush(name.c_str());
}

void pop_range() {
  torch::profiler::impl::cudaStubs()->rangePop();
}

void record_allocations(at::Device device) {
  if (device.is_cuda()) cuda_plugin().record_allocations();
}

void note_allocations(at::Device device, const std::string& note) {
  if (device.is_cuda()) cuda_plugin().note_allocations(note);
}

std::string allocations_snapshot(at::Device device) {
  PRIMUS_CHECK(device.is_cuda(), "allocations on the CPU are not recorded");
  return cuda_plugin().allocations_snapshot();
}

}  // namespace primus::ops
