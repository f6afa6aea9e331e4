#include "base/visible.hpp"

#include <fmt/format.h>

namespace primus {

std::string visible(std::string_view text) {
  std::string result;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    // U+0080 to U+009F are controls too; in UTF-8 their second byte is their number.
    const auto next = i + 1 < text.size() ? static_cast<unsigned char>(text[i + 1]) : 0U;
    const bool is_of_two_bytes = byte == 0xC2 && next >= 0x80 && next <= 0x9F;
    if (is_of_two_bytes) {
      result += fmt::format("\\x{:02x}", next);
      ++i;
    } else if (byte < 0x20 || byte == 0x7F) {
      result += fmt::format("\\x{:02x}", byte);
    } else {
      result += text[i];
    }
  }
  return result;
}

}  // namespace primus
