#pragma once
// What an op takes for itself while it runs. It is counted apart from the layers' tensors: model/op_scratch.hpp
// declares it.
#include "ops/allocator.hpp"
#include "ops/aten.hpp"

namespace primus::ops {

/// Uninitialised; the op must let go of it before it returns.
inline Tensor scratch(at::IntArrayRef shape, at::TensorOptions options) {
  const MemoryScope scope(MemoryTag::kOpScratch);
  return at::empty(shape, options);
}

inline Tensor zeroed_scratch(at::IntArrayRef shape, at::TensorOptions options) {
  return scratch(shape, options).zero_();
}

}  // namespace primus::ops
