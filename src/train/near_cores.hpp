#pragma once
// Cores near a GPU (ENABLE_NUMA_BINDING): where the process runs there, what it gives the device lies in the memory
// beside it, and does not cross between the machine's sockets.
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "ops/dtype.hpp"

namespace primus::train {

/// The cores of a list as Linux writes it, such as 0-15,32-47. Throws UserError for what is none.
std::vector<int> cores_of(std::string_view list);

/// Lets all threads of this process, and those to come, run on the cores near the device at `pci_address` only, as far
/// as they may run there at all. Tells what was done, or why nothing was.
std::string bind_near(const std::string& pci_address, const std::filesystem::path& devices = "/sys/bus/pci/devices");

/// Does what ENABLE_NUMA_BINDING asks for; a message for people, empty where nothing is asked for.
std::string bind_if_asked(at::Device device);

}  // namespace primus::train
