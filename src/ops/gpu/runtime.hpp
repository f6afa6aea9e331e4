#pragma once
// The runtime's names, for CUDA and (compiled with -x hip) HIP: what a portable kernel may use beside plain C++.
// No kernel may take 32 for the wavefront's size: kWaveLanes, or reductions over kLanes <= 32 neighbours.
#if defined(__HIP__)
#include <hip/hip_runtime.h>
#else
#include <cuda_runtime.h>
#endif

#include <cstddef>
#include <cstdint>

namespace primus::gpu {

#if defined(__HIP__)
using Stream = hipStream_t;
using Error = hipError_t;
using LaneMask = std::uint64_t;  // one bit a lane of a wavefront
inline constexpr Error kSuccess = hipSuccess;
inline constexpr int kWaveLanes = 64;

inline Error last_error() {
  return hipGetLastError();
}
inline const char* text_of(Error error) {
  return hipGetErrorString(error);
}
inline Error fill_bytes(void* target, int byte, std::size_t count, Stream stream) {
  return hipMemsetAsync(target, byte, count, stream);
}
template <typename Kernel>
Error allow_shared(Kernel* kernel, std::size_t bytes) {
  const auto size = static_cast<int>(bytes);
  return hipFuncSetAttribute(reinterpret_cast<const void*>(kernel), hipFuncAttributeMaxDynamicSharedMemorySize, size);
}
/// Shared memory that a block may have on the current device.
inline Error largest_shared(int& bytes) {
  int device = 0;
  const Error error = hipGetDevice(&device);
  if (error != kSuccess) return error;
  return hipDeviceGetAttribute(&bytes, hipDeviceAttributeMaxSharedMemoryPerBlock, device);
}
#else
using Stream = cudaStream_t;
using Error = cudaError_t;
using LaneMask = std::uint32_t;
inline constexpr Error kSuccess = cudaSuccess;
inline constexpr int kWaveLanes = 32;

inline Error last_error() {
  return cudaGetLastError();
}
inline const char* text_of(Error error) {
  return cudaGetErrorString(error);
}
inline Error fill_bytes(void* target, int byte, std::size_t count, Stream stream) {
  return cudaMemsetAsync(target, byte, count, stream);
}
/// Lets a kernel have this much dynamic shared memory. Up to 48 KiB need no leave, and asking costs the host
/// microseconds.
template <typename Kernel>
Error allow_shared(Kernel* kernel, std::size_t bytes) {
  if (bytes <= 48 * 1024) return kSuccess;
  return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
}
/// Shared memory that a block may have on the current device, with leave.
inline Error largest_shared(int& bytes) {
  int device = 0;
  const Error error = cudaGetDevice(&device);
  if (error != kSuccess) return error;
  return cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
}
#endif

/// Throws InternalError; defined where fmt and the error types are (gpu/errors.cpp).
[[noreturn]] void throw_error(const char* file, int line, const char* call, const char* reason);

}  // namespace primus::gpu

/// PRIMUS_CUDA_CHECK(call): the call must give success. After a launch: PRIMUS_CUDA_CHECK(gpu::last_error()).
#define PRIMUS_CUDA_CHECK(call)                                                                    \
  do {                                                                                             \
    const ::primus::gpu::Error primus_error = (call);                                              \
    if (primus_error != ::primus::gpu::kSuccess)                                                   \
      ::primus::gpu::throw_error(__FILE__, __LINE__, #call, ::primus::gpu::text_of(primus_error)); \
  } while (false)
