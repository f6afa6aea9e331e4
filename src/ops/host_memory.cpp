#include "ops/host_memory.hpp"

#include "ops/cuda_plugin.hpp"

namespace primus::ops {

Tensor host_zeros(at::IntArrayRef shape, at::ScalarType type, at::Device device) {
  return device.is_cuda() ? cuda_plugin().host_zeros(shape, type) : at::zeros(shape, type);
}

}  // namespace primus::ops
