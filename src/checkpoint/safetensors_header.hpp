#pragma once
// The JSON header of a safetensors file, checked in full: what it says about the file is then true.
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/element_type.hpp"

namespace primus::checkpoint {

/// One tensor of a file.
struct StoredTensor {
  std::string name;
  const ElementType* type = nullptr;
  std::vector<std::int64_t> shape;
  std::int64_t begin = 0;  // byte of the file's data part
  std::int64_t num_bytes = 0;
};

struct SafetensorsHeader {
  std::vector<StoredTensor> tensors;            // in the order of their bytes
  std::map<std::string, std::string> metadata;  // __metadata__
};

/// Longest header that is read; the format's own bound.
inline constexpr std::int64_t kMostHeaderBytes = 100'000'000;

/// Read the JSON text. Throws ConfigError, which names `file`, for anything but: known fields and types, sizes that
/// fit, each name once, and tensors that cover the `num_data_bytes` bytes behind the header without gap or overlap.
SafetensorsHeader parse_safetensors_header(std::string_view json, std::int64_t num_data_bytes, const std::string& file);

/// The header of tensors that follow each other in this order, padded to a multiple of 8 bytes; their `begin` is not
/// read.
std::string safetensors_header_text(const std::vector<StoredTensor>& tensors,
                                    const std::map<std::string, std::string>& metadata);

/// Bytes of this many elements; -1 where a 64-bit number does not hold them, or where they fill no whole bytes.
std::int64_t tensor_bytes(const ElementType& type, const std::vector<std::int64_t>& shape);

/// "[128, 64]".
std::string shape_text(const std::vector<std::int64_t>& shape);

}  // namespace primus::checkpoint
