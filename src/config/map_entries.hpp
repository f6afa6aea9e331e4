#pragma once
// Entries of the keys that are maps: rows like those of the key table, so that names, types and values are checked.
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "config/key_table.hpp"

namespace primus::config {

/// Rows "lora.dim" of the map `lora`; none: its entries are free.
std::span<const Key> entries_of_map(std::string_view map);

/// Row of "lora.dim"; nullptr if there is none.
const Key* find_map_entry(std::string_view dotted);

/// "did you mean 'lora.dim'?", or empty.
std::string nearest_entry_hint(std::string_view map, std::string_view entry);

/// Entries that a map sets although its own switch, `enabled`, is off; empty for maps without one.
std::vector<std::string> unread_entries(const Key& map, const Value& value);

}  // namespace primus::config
