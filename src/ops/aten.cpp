// Owner of the precompiled ATen header, and the map between our element types and libtorch's.
#include "ops/dtype.hpp"

namespace primus::ops {

at::ScalarType to_aten(DType dtype) {
  switch (dtype) {
    case DType::kFloat64:
      return at::kDouble;
    case DType::kFloat32:
      return at::kFloat;
    case DType::kBFloat16:
      return at::kBFloat16;
    case DType::kFloat16:
      return at::kHalf;
    case DType::kInt64:
      return at::kLong;
    case DType::kInt32:
      return at::kInt;
    case DType::kUInt8:
    case DType::kFloat8:  // codes; ops/state reads them
      return at::kByte;
  }
  PRIMUS_CHECK(false, "unknown element type");
}

}  // namespace primus::ops
