#pragma once
// Text to values: one typing rule for YAML scalars, `${VAR}` substitutions, overrides and the key table's defaults.
#include <cstdint>
#include <optional>
#include <string_view>

#include "config/value.hpp"

namespace primus::config {

/// May an environment variable have this name: letters, digits and '_', no digit first?
bool is_variable_name(std::string_view text);

/// Integer in decimal notation ("12", "-3", "+4", "1_000"); none if it is anything else or does not fit 64 bits.
std::optional<std::int64_t> parse_int(std::string_view text);

/// Finite real in any notation: "1e-5", "1.0E-5", ".5", "3"; none for inf and nan.
std::optional<double> parse_real(std::string_view text);

/// true and false in any case.
std::optional<bool> parse_bool(std::string_view text);

/// "null", "Null", "NULL", "None", "~" and the empty text.
bool is_null_text(std::string_view text);

/// Null, bool, integer, real or text, whichever the unquoted text spells.
Value parse_scalar(std::string_view text);

/// A scalar, or a flow list "[a, b]". For texts that we wrote ourselves (table defaults): a malformed list is text.
Value parse_value(std::string_view text);

}  // namespace primus::config
