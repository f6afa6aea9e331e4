#pragma once
// The GPU half's side of ops/device_profile.hpp.
#include "ops/device_profile.hpp"

namespace primus::gpu {

std::string pci_address();
void set_capture(ops::Capture capture);
void record_allocations();
void note_allocations(const std::string& note);
std::string allocations_snapshot();

}  // namespace primus::gpu
