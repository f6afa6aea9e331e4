#pragma once
// Element types: ours to libtorch's, storage to accumulator, and the dispatch that every CPU op uses.
#include "base/dtype.hpp"
#include "base/error.hpp"
#include "ops/aten.hpp"
#include "ops/write.hpp"

namespace primus::ops {

using at::Tensor;

/// libtorch's name of an element type.
at::ScalarType to_aten(DType dtype);

/// Type in which an op computes and accumulates for a storage type: fp32 for bf16, fp16 and fp32, fp64 for fp64.
template <typename T>
struct Accumulator {
  using type = float;
};
template <>
struct Accumulator<double> {
  using type = double;
};
template <typename T>
using acc_t = typename Accumulator<T>::type;

/// The element type that statistics (rstd, log-sum-exp, router values) have beside activations of `storage`.
inline at::ScalarType accumulator_type(at::ScalarType storage) {
  return storage == at::kDouble ? at::kDouble : at::kFloat;
}

namespace detail {
template <typename T>
struct TypeTag {
  using type = T;
};
}  // namespace detail

/// Call `body(TypeTag<T>{})` with the C++ type of a floating tensor: double, float, bfloat16 or half.
template <typename Body>
void dispatch_floating(at::ScalarType dtype, const char* op, Body&& body) {
  switch (dtype) {
    case at::kDouble:
      return body(detail::TypeTag<double>{});
    case at::kFloat:
      return body(detail::TypeTag<float>{});
    case at::kBFloat16:
      return body(detail::TypeTag<at::BFloat16>{});
    case at::kHalf:
      return body(detail::TypeTag<at::Half>{});
    default:
      PRIMUS_CHECK(false, "{}: element type {} is not supported", op, c10::toString(dtype));
  }
}

}  // namespace primus::ops
