#pragma once
// Keys that are read only beside a switch: while it is off they have no effect, here as in Megatron.
#include <string>
#include <string_view>
#include <vector>

#include "config/experiment.hpp"
#include "config/key_table.hpp"

namespace primus::config {

/// A key and the values of it beside which another key is read.
struct Condition {
  std::string_view key;
  enum class Holds {
    kOn,      // at every value but null, false, 0 and the default
    kOneOf,   // at one of `values`
    kNoneOf,  // at every other value
  } holds = Holds::kOn;
  std::vector<std::string> values = {};
};

/// Conditions that hold together.
using Switch = std::vector<Condition>;

/// The switches of a key, of which one is enough; none: the key is read by itself.
const std::vector<Switch>& switches_of(const Key& key);

/// The keys that are read only beside this one.
std::vector<std::string_view> details_of(const Key& key);

/// Does anything read the key in this experiment? A switch that is itself read only beside another counts as off while
/// that one is.
bool is_read(const Key& key, const Experiment& experiment);

/// Is one of the key's switches at a value that is not built yet? Then the switch is told, and says enough.
bool has_planned_switch(const Key& key, const Experiment& experiment);

/// "fp8, or optimizer muon or dist_muon": the key's switches, for messages and help.
std::string switches_text(const Key& key);

/// What is said of a key while its switches are off: "read only beside fp8".
std::string unread_text(const Key& key);

}  // namespace primus::config
