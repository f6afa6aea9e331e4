#include "ops/device.hpp"

#include <filesystem>

#include "ops/allocator.hpp"
#include "ops/cuda_plugin.hpp"

namespace primus::ops {
namespace {

/// The driver's control node: without it no device can be opened, and loading the GPU half would only cost seconds.
bool machine_has_gpu() {
  std::error_code error;
  return std::filesystem::exists("/dev/nvidiactl", error) || std::filesystem::exists("/dev/nvidia0", error);
}

}  // namespace

std::optional<DeviceChoice> device_choice(std::string_view word) {
  if (word == "auto") return DeviceChoice::kAuto;
  if (word == "cpu") return DeviceChoice::kCpu;
  if (word == "cuda") return DeviceChoice::kCuda;
  return std::nullopt;
}

at::Device select_device(DeviceChoice choice, std::string& why_cpu) {
  why_cpu.clear();
  if (choice == DeviceChoice::kCpu || (choice == DeviceChoice::kAuto && !machine_has_gpu())) return at::kCPU;
  try {
    load_cuda_plugin();
  } catch (const UserError& error) {
    if (choice == DeviceChoice::kCuda) throw UserError(error.what(), ExitCode::kWrongInput);
    why_cpu = error.what();
    return at::kCPU;
  }
  return {at::kCUDA, 0};
}

void set_determinism(at::Device device, Determinism determinism) {
  if (device.is_cuda()) cuda_plugin().set_determinism(determinism);
}

void set_kernel_families(at::Device device, KernelFamilies families) {
  if (device.is_cuda()) cuda_plugin().set_kernel_families(families);
}

DeviceMemory device_memory(at::Device device) {
  if (device.is_cuda()) return cuda_plugin().memory();
  const MemoryReport report = memory_report();
  return {report.peak_bytes, report.reserved_bytes};
}

void set_host_waits(at::Device device, HostWaits waits) {
  if (device.is_cuda()) cuda_plugin().set_host_waits(waits);
}

std::unique_ptr<Recorder> make_recorder() {
  return cuda_plugin().make_recorder();
}

void synchronize(at::Device device) {
  if (device.is_cuda()) cuda_plugin().synchronize();
}

}  // namespace primus::ops
