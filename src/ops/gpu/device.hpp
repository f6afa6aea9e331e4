#pragma once
// What the choice of a kernel asks: about the current device, and about the run.
#include "ops/device.hpp"
#include "ops/kernel_families.hpp"

namespace primus::gpu {

struct DeviceInfo {
  int compute_major;
  int multiprocessors;
};

/// Of the current device; read from the driver once.
const DeviceInfo& device_info();

/// What the run asked for; any order until it does.
ops::Determinism determinism();
void set_determinism(ops::Determinism determinism);
ops::KernelFamilies kernel_families();
void set_kernel_families(ops::KernelFamilies families);

}  // namespace primus::gpu
