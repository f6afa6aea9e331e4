#pragma once
// The GPU half's side of ops/host_memory.hpp.
#include "ops/gpu/tensor.hpp"
#include "ops/host_memory.hpp"

namespace primus::gpu {

Tensor host_zeros(at::IntArrayRef shape, at::ScalarType type);

/// As data(), of a tensor that may be in host memory within reach.
template <typename T>
T* reachable_data(const Tensor& x) {
  if (!x.defined()) return nullptr;
  PRIMUS_CHECK(ops::is_in_reach(x, at::kCUDA), "a tensor is on {}, out of the GPU's reach", x.device().str());
  return static_cast<T*>(x.data_ptr());
}

}  // namespace primus::gpu
