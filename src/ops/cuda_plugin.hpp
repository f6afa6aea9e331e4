#pragma once
// Loads the GPU half on request, and what the two sides of that border agree on.
#include <torch/version.h>

#include <string>

#include "ops/cuda_ops.hpp"
#include "ops/device.hpp"
#include "ops/device_profile.hpp"
#include "ops/kernel_families.hpp"
#include "ops/recorder.hpp"

namespace primus::ops {

/// What libprimus_cuda.so hands out. The first two members tell whether the rest can be read at all.
struct CudaPlugin {
  const char* build;  // equal to the program's own kCudaPluginBuild
  std::size_t bytes;  // sizeof(CudaPlugin)
  CudaOps ops;
  DeviceMemory (*memory)();
  void (*synchronize)();
  void (*set_determinism)(Determinism);
  void (*set_kernel_families)(KernelFamilies);
  void (*set_host_waits)(HostWaits);
  std::unique_ptr<Recorder> (*make_recorder)();
  Tensor (*host_zeros)(at::IntArrayRef, at::ScalarType);
  std::string (*pci_address)();
  void (*set_capture)(Capture);
  void (*record_allocations)();
  void (*note_allocations)(const std::string&);
  std::string (*allocations_snapshot)();
  /// Why no device can be used (no driver, no device); empty when one can.
  std::string (*device_problem)();
};

/// Contract changes that keep the size raise the number in front.
inline constexpr const char* kCudaPluginBuild = "5, primus " PRIMUS_VERSION ", torch " TORCH_VERSION;
inline constexpr const char* kCudaPluginEntry = "primus_cuda_plugin";
using CudaPluginEntry = const CudaPlugin* (*)();

/// Makes CUDA tensors and their ops usable in this process. A UserError says what is missing: the library, a library
/// that it needs, the driver, a device. Loading takes seconds, so only a run on a GPU calls it; again: no effect.
void load_cuda_plugin();

/// What load_cuda_plugin() loaded; InternalError before.
const CudaPlugin& cuda_plugin();

}  // namespace primus::ops
