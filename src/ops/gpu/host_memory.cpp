#include "ops/gpu/host_memory.hpp"

#include <cstring>

#include "ops/gpu/runtime.hpp"

namespace primus::gpu {

Tensor host_zeros(at::IntArrayRef shape, at::ScalarType type) {
  const auto size = static_cast<std::size_t>(c10::multiply_integers(shape)) * c10::elementSize(type);
  if (size == 0) return at::zeros(shape, type);
  void* data = nullptr;
  // libtorch's own allocator of such memory rounds up to powers of two.
  const cudaError_t error = cudaHostAlloc(&data, size, cudaHostAllocDefault);
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // or the next kernel would be blamed for it
    throw UserError(fmt::format(
        "optimizer_cpu_offload: the host has no {:.1f} GiB more that can be locked for the optimizer's state",
        static_cast<double>(size) / static_cast<double>(std::size_t{1} << 30U)));
  }
  PRIMUS_CUDA_CHECK(error);
  std::memset(data, 0, size);
  return at::from_blob(
      data, shape, [](void* own) { cudaFreeHost(own); }, at::TensorOptions(type));
}

}  // namespace primus::gpu
