#pragma once
// Characters that are newer than the Unicode of the regular-expression library.
#include <string>
#include <string_view>

namespace primus::data {

/// `text` itself, or `storage`, where each character of Unicode 15 and 16 has become an old one of the same category
/// and the same number of bytes. A pattern then finds in it what `tokenizers` (Unicode 16) finds in the text, whatever
/// Unicode the installed PCRE2 has. The text must be well-formed.
std::string_view with_older_characters(std::string_view text, std::string& storage);

/// The old character that stands for `character`; itself if it is old.
char32_t older_character(char32_t character);

}  // namespace primus::data
