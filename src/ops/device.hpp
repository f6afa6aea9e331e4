#pragma once
// Which device a run computes on, and how full it is.
#include <string_view>

#include "ops/dtype.hpp"

namespace primus::ops {

/// kAuto: a GPU if this build has its half and the machine has a device, else the CPU.
enum class DeviceChoice { kAuto, kCpu, kCuda };

/// "auto", "cpu", "cuda"; nothing for another word.
std::optional<DeviceChoice> device_choice(std::string_view word);

/// The device of this process; loads the GPU half when it is a GPU. With kCuda a UserError says what is missing; with
/// kAuto `why_cpu` does, where a device is there that cannot be used.
at::Device select_device(DeviceChoice choice, std::string& why_cpu);

/// Must a run repeat itself bit by bit? On the CPU it always does.
enum class Determinism { kAnyOrder, kSameBits };

/// For all that this process computes on a device from now on.
void set_determinism(at::Device device, Determinism determinism);

struct DeviceMemory {
  std::int64_t peak_bytes = 0;      // of what tensors hold
  std::int64_t reserved_bytes = 0;  // with what the allocator keeps for later
};

/// Of this process on a device.
DeviceMemory device_memory(at::Device device);

/// May the host wait for a device in the middle of its work? kRefused: libtorch throws where it would. For tests.
enum class HostWaits { kAllowed, kRefused };
void set_host_waits(at::Device device, HostWaits waits);

/// Waits until the device has done all that it was given; on the CPU nothing waits.
void synchronize(at::Device device);

}  // namespace primus::ops
