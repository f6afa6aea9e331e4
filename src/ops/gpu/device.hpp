#pragma once
// What the choice of a kernel asks about the current device.
namespace primus::gpu {

struct DeviceInfo {
  int compute_major;
  int multiprocessors;
};

/// Of the current device; read from the driver once.
const DeviceInfo& device_info();

}  // namespace primus::gpu
