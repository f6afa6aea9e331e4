#pragma once
// Element types that both halves speak of; the training half maps them to libtorch's. fp8 is e4m3: one sign bit, four
// of exponent, three of fraction.
#include <cstdint>
#include <string_view>

namespace primus {

enum class DType { kFloat64, kFloat32, kBFloat16, kFloat16, kInt64, kInt32, kUInt8, kFloat8 };

constexpr std::int64_t size_bytes(DType dtype) {
  switch (dtype) {
    case DType::kFloat64:
    case DType::kInt64:
      return 8;
    case DType::kFloat32:
    case DType::kInt32:
      return 4;
    case DType::kBFloat16:
    case DType::kFloat16:
      return 2;
    case DType::kUInt8:
    case DType::kFloat8:
      return 1;
  }
  return 0;
}

constexpr std::string_view name(DType dtype) {
  switch (dtype) {
    case DType::kFloat64:
      return "fp64";
    case DType::kFloat32:
      return "fp32";
    case DType::kBFloat16:
      return "bf16";
    case DType::kFloat16:
      return "fp16";
    case DType::kInt64:
      return "int64";
    case DType::kInt32:
      return "int32";
    case DType::kUInt8:
      return "uint8";
    case DType::kFloat8:
      return "fp8";
  }
  return "?";
}

}  // namespace primus
