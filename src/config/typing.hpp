#pragma once
// Typing a node by its row of the key table.
#include <optional>
#include <string>
#include <variant>

#include "config/key_table.hpp"
#include "config/node.hpp"

namespace primus::config {

/// Why a node does not fit its key.
struct TypeFault {
  std::string message;
  std::string expected;
  std::string found;
  std::string nearest;
};

/// The value that a node means for a key, or why it means none: type, allowed values, range.
std::variant<Value, TypeFault> typed_value(const Node& node, const Key& key);

}  // namespace primus::config
