#pragma once
// Between ATen and kernels: pointers, the current stream, dispatch over the element types that kernels have. For the
// *_cuda.cpp files only.
#include <c10/cuda/CUDAStream.h>

#include "ops/dtype.hpp"
#include "ops/gpu/runtime.hpp"
#include "ops/gpu/types.hpp"

namespace primus::gpu {

using at::Tensor;

inline Stream current_stream() {
  return c10::cuda::getCurrentCUDAStream().stream();
}

template <typename T>
struct AtenType {
  using type = T;
};
template <>
struct AtenType<Bf16> {
  using type = at::BFloat16;
};

/// The data of a tensor on the device; for an undefined tensor nullptr. Its element type and device must be right.
template <typename T>
T* data(const Tensor& x) {
  if (!x.defined()) return nullptr;
  PRIMUS_CHECK(x.is_cuda(), "a tensor is on {}, its op's first one on the GPU", x.device().str());
  return reinterpret_cast<T*>(x.data_ptr<typename AtenType<T>::type>());
}

/// Call `body(TypeTag<T>{})` with the kernels' type of a tensor: float or Bf16.
template <typename Body>
void dispatch(at::ScalarType dtype, const char* op, Body&& body) {
  switch (dtype) {
    case at::kFloat:
      return body(ops::detail::TypeTag<float>{});
    case at::kBFloat16:
      return body(ops::detail::TypeTag<Bf16>{});
    default:
      PRIMUS_CHECK(false, "{}: element type {} is not supported on a GPU", op, c10::toString(dtype));
  }
}

}  // namespace primus::gpu
