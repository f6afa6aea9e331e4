#pragma once
// The key table: every key that an experiment may set, in one row each. It alone drives parsing, typing, validation and
// help, so a new key is a new row in keys_<area>.cpp and nothing else.
#include <span>
#include <string>
#include <string_view>

#include "config/value.hpp"

namespace primus::config {

/// What values a key takes. kLayers: an integer, or a pattern such as ([0]*1+[1]*26) (see layer_pattern.hpp).
enum class KeyType { kBool, kInt, kReal, kText, kTextList, kIntList, kRealList, kLayers, kMap };

/// What a key does in this release (decision 1).
enum class KeyState { kWorks, kPlanned, kNoEffect };

/// What changes when a planned key is left out: the numbers that training computes, or only how they are computed.
enum class Impact { kMathematics, kExecution };

/// Is the key read whatever the others say, or only beside a switch (see read_beside.hpp)?
enum class Reading { kAlways, kBesideASwitch };

/// One row of the table.
struct Key {
  std::string_view name;
  KeyType type = KeyType::kText;
  std::string_view default_text;  // as YAML would write it
  std::string_view allowed;       // "" anything; "a|b" these; ">=1", ">0", "0..1", "0..<1" a range
  KeyState state = KeyState::kWorks;
  std::string_view working;  // values that run today, "a|b"; "" all (works) or the default (planned)
  Impact impact = Impact::kMathematics;
  std::string_view meaning;  // one line
  std::string_view note;     // what it does here, or why it has no effect
  Reading reading = Reading::kAlways;
  std::string_view unbuilt = "";  // what its values that do not run ask for, as a name; "": what `meaning` says
};

/// Rows of one area, in the order in which help shows them.
struct KeySection {
  std::string_view area;
  std::span<const Key> keys;
};

/// All sections.
std::span<const KeySection> key_sections();

/// Row of a key or of an alias of it; nullptr if there is none.
const Key* find_key(std::string_view name);

/// The section that holds a row.
std::string_view area_of(const Key& key);

/// A key that was taken out, with the one to write instead; empty if `name` is not one of them. One that has a row
/// may stand at its default, as existing files have it.
std::string_view successor_of_removed_key(std::string_view name);

/// "; did you mean 'x'?" without the semicolon, or empty.
std::string nearest_key_hint(std::string_view name);

/// The default as a value.
Value default_value(const Key& key);

/// "integer >= 1", "true or false", "one of a, b", for messages and help.
std::string expected_text(const Key& key);

/// "works", "planned", "no effect".
std::string_view state_text(KeyState state);

/// Does this value run today? Planned keys do at their neutral values, works keys at the values the row names.
bool is_working_value(const Key& key, const Value& value);

/// What is planned of a key, as the reason of a refusal: "fp8 training".
std::string unbuilt_text(const Key& key);

/// May the key be null?
bool allows_null(const Key& key);

}  // namespace primus::config
