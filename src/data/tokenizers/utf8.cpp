#include "data/tokenizers/utf8.hpp"

#include <cstring>

namespace primus::data {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

bool is_continuation(char c) {
  return (static_cast<unsigned char>(c) & 0xC0) == 0x80;
}

struct Sequence {
  std::size_t num_bytes = 0;  // of the sequence, or of its longest well-formed beginning (at least one byte)
  enum class Form { kWell, kIll } form = Form::kIll;
};

/// What stands at `at`, which is no ASCII (Unicode 16, table 3-7).
Sequence examine(std::string_view text, std::size_t at) {
  const auto lead = static_cast<unsigned char>(text[at]);
  if (lead < 0xC2 || lead > 0xF4) return {1, Sequence::Form::kIll};
  const std::size_t num_bytes = sequence_bytes(text[at]);
  const unsigned char low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const unsigned char high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  for (std::size_t i = 1; i < num_bytes; ++i) {
    if (at + i >= text.size()) return {i, Sequence::Form::kIll};
    const auto byte = static_cast<unsigned char>(text[at + i]);
    if (i == 1 ? byte < low || byte > high : !is_continuation(text[at + i])) return {i, Sequence::Form::kIll};
  }
  return {num_bytes, Sequence::Form::kWell};
}

void append_origins(std::vector<TextRange>* origins, std::size_t num_bytes, std::size_t begin, std::size_t end) {
  if (origins == nullptr) return;
  origins->insert(origins->end(), num_bytes, {static_cast<std::int64_t>(begin), static_cast<std::int64_t>(end)});
}

}  // namespace

std::size_t skip_ascii(std::string_view text, std::size_t from) {
  constexpr std::uint64_t kHighBits = 0x8080808080808080;
  while (from + 8 <= text.size()) {
    std::uint64_t word = 0;
    std::memcpy(&word, text.data() + from, 8);
    if ((word & kHighBits) != 0) break;
    from += 8;
  }
  while (from < text.size() && static_cast<unsigned char>(text[from]) < 0x80) ++from;
  return from;
}

char32_t next_character(std::string_view text, std::size_t& at) {
  const auto byte = [&](std::size_t i) { return static_cast<char32_t>(static_cast<unsigned char>(text[at + i])); };
  const char32_t lead = byte(0);
  const std::size_t num_bytes = sequence_bytes(text[at]);
  char32_t character = lead;
  if (num_bytes > 1) {
    character = lead & (0x7FU >> num_bytes);
    for (std::size_t i = 1; i < num_bytes; ++i) character = character << 6 | (byte(i) & 0x3F);
  }
  at += num_bytes;
  return character;
}

char32_t last_character(std::string_view text) {
  std::size_t at = text.size() - 1;
  while (at > 0 && is_continuation(text[at])) --at;
  return next_character(text, at);
}

void append_character(char32_t character, std::string& text) {
  const auto put = [&text](char32_t byte) { text += static_cast<char>(static_cast<unsigned char>(byte)); };
  if (character < 0x80) {
    put(character);
  } else if (character < 0x800) {
    put(0xC0 | character >> 6);
    put(0x80 | (character & 0x3F));
  } else if (character < 0x10000) {
    put(0xE0 | character >> 12);
    put(0x80 | (character >> 6 & 0x3F));
    put(0x80 | (character & 0x3F));
  } else {
    put(0xF0 | character >> 18);
    put(0x80 | (character >> 12 & 0x3F));
    put(0x80 | (character >> 6 & 0x3F));
    put(0x80 | (character & 0x3F));
  }
}

bool is_white_space(char32_t character) {
  return (character >= 0x09 && character <= 0x0D) || character == 0x20 || character == 0x85 || character == 0xA0 ||
         character == 0x1680 || (character >= 0x2000 && character <= 0x200A) || character == 0x2028 ||
         character == 0x2029 || character == 0x202F || character == 0x205F || character == 0x3000;
}

std::string_view well_formed(std::string_view text, std::string& storage, std::vector<TextRange>* origins) {
  enum class Copy { kNone, kBegun } copy = Copy::kNone;
  if (origins != nullptr) origins->clear();
  std::size_t at = 0;
  while (at < text.size()) {
    const std::size_t ascii_end = skip_ascii(text, at);
    if (copy == Copy::kBegun) storage.append(text, at, ascii_end - at);
    for (; origins != nullptr && at < ascii_end; ++at) append_origins(origins, 1, at, at + 1);
    at = ascii_end;
    if (at == text.size()) break;
    const Sequence sequence = examine(text, at);
    if (sequence.form == Sequence::Form::kWell) {
      if (copy == Copy::kBegun) storage.append(text, at, sequence.num_bytes);
      append_origins(origins, sequence.num_bytes, at, at + sequence.num_bytes);
    } else {
      if (copy == Copy::kNone) storage.assign(text, 0, at);
      copy = Copy::kBegun;
      storage += kReplacement;
      append_origins(origins, kReplacement.size(), at, at + sequence.num_bytes);
    }
    at += sequence.num_bytes;
  }
  return copy == Copy::kBegun ? std::string_view(storage) : text;
}

}  // namespace primus::data
