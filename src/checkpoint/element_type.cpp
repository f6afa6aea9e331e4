#include "checkpoint/element_type.hpp"

#include <array>

#include "base/error.hpp"

namespace primus::checkpoint {
namespace {

constexpr std::array<ElementType, 22> kTypes = {{
    {"F64", 64, DType::kFloat64},     {"F32", 32, DType::kFloat32},   {"F16", 16, DType::kFloat16},
    {"BF16", 16, DType::kBFloat16},   {"I64", 64, DType::kInt64},     {"I32", 32, DType::kInt32},
    {"U8", 8, DType::kUInt8},         {"BOOL", 8, std::nullopt},      {"I8", 8, std::nullopt},
    {"I16", 16, std::nullopt},        {"U16", 16, std::nullopt},      {"U32", 32, std::nullopt},
    {"U64", 64, std::nullopt},        {"F8_E4M3", 8, DType::kFloat8}, {"F8_E5M2", 8, std::nullopt},
    {"F8_E8M0", 8, std::nullopt},     {"C64", 64, std::nullopt},      {"F4", 4, std::nullopt},
    {"F6_E2M3", 6, std::nullopt},     {"F6_E3M2", 6, std::nullopt},   {"F8_E4M3FNUZ", 8, std::nullopt},
    {"F8_E5M2FNUZ", 8, std::nullopt},
}};

}  // namespace

const ElementType* find_element_type(std::string_view name) {
  for (const ElementType& type : kTypes) {
    if (type.name == name) return &type;
  }
  return nullptr;
}

const ElementType& element_type(DType dtype) {
  for (const ElementType& type : kTypes) {
    if (type.dtype == dtype) return type;
  }
  PRIMUS_CHECK(false, "no stored type for {}", primus::name(dtype));
}

std::string element_type_names() {
  std::string names;
  for (const ElementType& type : kTypes) names += (names.empty() ? "" : ", ") + std::string(type.name);
  return names;
}

bool is_floating(DType dtype) {
  return dtype == DType::kFloat64 || dtype == DType::kFloat32 || dtype == DType::kFloat16 || dtype == DType::kBFloat16;
}

}  // namespace primus::checkpoint
