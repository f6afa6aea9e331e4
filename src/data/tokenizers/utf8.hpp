#pragma once
// UTF-8, a character at a time.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer.hpp"

namespace primus::data {

/// The first byte of `text` at or behind `from` that is no ASCII; its size if there is none.
std::size_t skip_ascii(std::string_view text, std::size_t from);

/// Bytes of the well-formed sequence that begins with `lead`.
inline std::size_t sequence_bytes(char lead) {
  const auto byte = static_cast<unsigned char>(lead);
  return byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

/// The character at `at` of well-formed text; `at` moves behind it.
char32_t next_character(std::string_view text, std::size_t& at);

/// The character before `end` of well-formed, non-empty text.
char32_t last_character(std::string_view text);

void append_character(char32_t character, std::string& text);

/// Unicode's White_Space, the `\s` of Rust's and Oniguruma's regular expressions.
bool is_white_space(char32_t character);

/// `text` itself if it is well-formed; else `storage`, where every maximal ill-formed part has become U+FFFD (Unicode
/// 16, 3.9; what Python's `errors="replace"` does). With `origins`, a range of `text` for each byte of the result.
std::string_view well_formed(std::string_view text, std::string& storage, std::vector<TextRange>* origins);

}  // namespace primus::data
