#pragma once
// The 256 printable characters by which byte-level vocabularies show bytes.
#include <array>
#include <optional>
#include <string>
#include <string_view>

namespace primus::data {

/// The character that shows a byte, as UTF-8.
const std::string& byte_character(unsigned char byte);

/// The bytes that a text of such characters shows; nothing if one of its characters shows none.
std::optional<std::string> shown_bytes(std::string_view text);

}  // namespace primus::data
