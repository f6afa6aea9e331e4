#pragma once
// The host's memory that a GPU reaches over its bus: kernels read and write it like their own, at the bus's speed.
#include "ops/dtype.hpp"

namespace primus::ops {

/// Zeros in page-locked memory of exactly that size, for a GPU; for the CPU they are ordinary. Throws UserError when
/// there is not so much memory.
Tensor host_zeros(at::IntArrayRef shape, at::ScalarType type, at::Device device);

/// Can a kernel on `device` take this tensor: is it there, or in host memory within reach?
inline bool is_in_reach(const Tensor& tensor, at::Device device) {
  if (tensor.device().type() == device.type()) return true;
  return tensor.is_cpu() && device.is_cuda() && tensor.is_pinned();
}

}  // namespace primus::ops
