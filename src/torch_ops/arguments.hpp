#pragma once
// Checks of what a caller from outside hands to an op. Messages name the op, the argument, what it wants and what it
// got.
#include "ops/dtype.hpp"

namespace primus::torch_ops {

using at::Tensor;

enum class Kind { kFloating, kStatistics, kInt32, kInt64 };

struct Expected {
  const char* op;
  const char* name;
  Kind kind = Kind::kFloating;           // kStatistics: fp32 or fp64
  std::vector<std::int64_t> shape = {};  // −1: any size
};

/// The tensor, contiguous. Throws UserError unless type and shape are the expected ones.
Tensor checked(const Tensor& tensor, const Expected& expected);

/// Throws UserError unless both lie on one device.
void require_same_device(const char* op, const Tensor& a, const Tensor& b);

/// Makes the ops usable on the tensor's device; loads the GPU half when the first CUDA tensor comes. Throws UserError.
void require_device(const Tensor& tensor);

}  // namespace primus::torch_ops
