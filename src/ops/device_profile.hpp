#pragma once
// A GPU as the system and its tools see it: its place, what profilers of others learn of its work (nsys, ncu, rocprof),
// and libtorch's own record of its memory. Ranges nest, on the thread that opens them.
#include <string>

#include "ops/dtype.hpp"

namespace primus::ops {

/// Where the device is plugged in, as /sys/bus/pci/devices names it: 0000:19:00.0.
std::string pci_address(at::Device device);

/// Tools that were told to wait for it (nsys --capture-range=cudaProfilerApi, ncu --profile-from-start off) begin or
/// stop to collect.
enum class Capture { kStarted, kStopped };
void set_capture(at::Device device, Capture capture);

/// Named ranges of the host's time, with the kernels that are launched in them (NVTX).
void push_range(const std::string& name);
void pop_range();

/// From now on each allocation on a device is written down, with the note that it was made under.
void record_allocations(at::Device device);
void note_allocations(at::Device device, const std::string& note);

/// What was written down and what is held now, as PyTorch's memory viewer reads it (a pickle of plain lists).
std::string allocations_snapshot(at::Device device);

}  // namespace primus::ops
