#pragma once
// What a key switches on: the rules themselves are asked, with the key at each of its values in a small model.
#include <string>
#include <vector>

#include "config/key_table.hpp"

namespace primus::config {

/// With the key at `value`, rules change another key.
struct Effect {
  std::string value;
  std::string key;
  std::string change;  // "false -> true"
};

/// The effects of every value of a switch, of a choice or of a small range; none for other keys.
std::vector<Effect> effects_of(const Key& key);

}  // namespace primus::config
