#pragma once
// Which keys each rule reads or sets, for help.
#include <string>
#include <string_view>
#include <vector>

namespace primus::config {

/// The keys of a rule; none if the rule is not known.
std::vector<std::string> keys_of_rule(std::string_view rule);

/// Does the rule read or set the key?
bool is_rule_about(std::string_view rule, std::string_view key);

}  // namespace primus::config
