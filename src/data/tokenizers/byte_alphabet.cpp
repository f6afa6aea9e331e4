#include "data/tokenizers/byte_alphabet.hpp"

#include <cstdint>
#include <vector>

#include "data/tokenizers/utf8.hpp"

namespace primus::data {
namespace {

constexpr std::size_t kNumBytes = 256;
// Bytes that are no printable Latin-1 characters are shown by the characters from here on, in their order.
constexpr char32_t kFirstStandIn = 0x100;

struct Tables {
  std::array<std::string, kNumBytes> characters;
  std::vector<std::int16_t> bytes;  // by character; -1: shows none
};

bool shows_itself(std::size_t byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

const Tables& tables() {
  static const Tables result = [] {
    Tables made;
    char32_t stand_in = kFirstStandIn;
    for (std::size_t byte = 0; byte < kNumBytes; ++byte) {
      const char32_t character = shows_itself(byte) ? static_cast<char32_t>(byte) : stand_in++;
      append_character(character, made.characters[byte]);
      if (made.bytes.size() <= character) made.bytes.resize(character + 1, -1);
      made.bytes[character] = static_cast<std::int16_t>(byte);
    }
    return made;
  }();
  return result;
}

}  // namespace

const std::string& byte_character(unsigned char byte) {
  return tables().characters[byte];
}

std::optional<std::string> shown_bytes(std::string_view text) {
  const std::vector<std::int16_t>& bytes = tables().bytes;
  std::string result;
  result.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const char32_t character = next_character(text, at);
    if (character >= bytes.size() || bytes[character] < 0) return std::nullopt;
    result += static_cast<char>(static_cast<unsigned char>(bytes[character]));
  }
  return result;
}

}  // namespace primus::data
