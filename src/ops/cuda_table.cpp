// Entry point of libprimus_cuda.so.
#include "ops/cuda_table.hpp"

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>

#include "ops/cuda_plugin.hpp"
#include "ops/gpu/device.hpp"
#include "ops/gpu/host_memory.hpp"
#include "ops/gpu/profile.hpp"
#include "ops/gpu/recorder.hpp"
#include "ops/gpu/runtime.hpp"

namespace primus::ops::cuda {
namespace {

CudaOps all_ops() {
  CudaOps ops;
  for (const auto add : {register_rms_norm, register_swiglu, register_permute, register_router, register_router_noise,
                         register_gemm, register_grouped_gemm, register_attention, register_rope,
                         register_cross_entropy, register_embedding, register_adamw, register_update}) {
    add(ops);
  }
  return ops;
}

DeviceMemory memory() {
  constexpr auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(c10::cuda::current_device());
  return {stats.allocated_bytes[kAll].peak, stats.reserved_bytes[kAll].peak};
}

void synchronize() {
  PRIMUS_CUDA_CHECK(cudaDeviceSynchronize());
}

void set_host_waits(HostWaits waits) {
  const bool is_refused = waits == HostWaits::kRefused;
  c10::cuda::warning_state().set_sync_debug_mode(is_refused ? c10::cuda::SyncDebugMode::L_ERROR
                                                            : c10::cuda::SyncDebugMode::L_DISABLED);
}

std::string device_problem() {
  int devices = 0;
  const cudaError_t error = cudaGetDeviceCount(&devices);
  if (error == cudaErrorNoDevice) return "the driver finds no NVIDIA device (is it visible: CUDA_VISIBLE_DEVICES?)";
  if (error == cudaErrorInsufficientDriver) {
    return fmt::format("no NVIDIA driver, or one older than CUDA {}.{} needs", CUDART_VERSION / 1000,
                       CUDART_VERSION % 1000 / 10);
  }
  if (error != cudaSuccess) return fmt::format("the NVIDIA driver says: {}", cudaGetErrorString(error));
  return devices > 0 ? "" : "the driver finds no NVIDIA device";
}

}  // namespace
}  // namespace primus::ops::cuda

extern "C" __attribute__((visibility("default"))) const primus::ops::CudaPlugin* primus_cuda_plugin() {
  static const primus::ops::CudaPlugin plugin = {.build = primus::ops::kCudaPluginBuild,
                                                 .bytes = sizeof(primus::ops::CudaPlugin),
                                                 .ops = primus::ops::cuda::all_ops(),
                                                 .memory = primus::ops::cuda::memory,
                                                 .synchronize = primus::ops::cuda::synchronize,
                                                 .set_determinism = primus::gpu::set_determinism,
                                                 .set_kernel_families = primus::gpu::set_kernel_families,
                                                 .set_host_waits = primus::ops::cuda::set_host_waits,
                                                 .make_recorder = primus::gpu::make_recorder,
                                                 .host_zeros = primus::gpu::host_zeros,
                                                 .pci_address = primus::gpu::pci_address,
                                                 .set_capture = primus::gpu::set_capture,
                                                 .record_allocations = primus::gpu::record_allocations,
                                                 .note_allocations = primus::gpu::note_allocations,
                                                 .allocations_snapshot = primus::gpu::allocations_snapshot,
                                                 .device_problem = primus::ops::cuda::device_problem};
  return &plugin;
}
