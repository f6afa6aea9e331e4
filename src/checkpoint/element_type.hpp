#pragma once
// Element types as safetensors files spell them.
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/dtype.hpp"

namespace primus::checkpoint {

/// A row of the table of types; compared by address.
struct ElementType {
  std::string_view name;       // "BF16"
  std::int64_t num_bits = 0;   // F4 and the like: less than a byte
  std::optional<DType> dtype;  // none: we can carry such bytes, not read them
};

/// nullptr if safetensors has no type of that name.
const ElementType* find_element_type(std::string_view name);

const ElementType& element_type(DType dtype);

/// "BF16, F16, …": every name, for messages.
std::string element_type_names();

bool is_floating(DType dtype);

}  // namespace primus::checkpoint
