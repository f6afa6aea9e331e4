#include "data/sentences.hpp"

#include <algorithm>
#include <array>

namespace primus::data {
namespace {

constexpr std::array<std::string_view, 4> kWideEnds = {"。", "！", "？", "…"};
constexpr std::array<std::string_view, 5> kClosers = {"\"", "'", ")", "”", "»"};

bool is_space(char c) {
  return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

template <std::size_t N>
std::size_t bytes_of_one(const std::array<std::string_view, N>& marks, std::string_view text) {
  for (const std::string_view mark : marks) {
    if (text.starts_with(mark)) return mark.size();
  }
  return 0;
}

/// Behind the marks that end a sentence at `at`; `at` itself if none do.
std::size_t behind_marks(std::string_view text, std::size_t at) {
  const std::size_t begin = at;
  enum class Script { kSpaced, kWide } script = Script::kSpaced;
  while (at < text.size()) {
    if (text[at] == '.' || text[at] == '!' || text[at] == '?') {
      ++at;
    } else if (const std::size_t wide = bytes_of_one(kWideEnds, text.substr(at)); wide > 0) {
      script = Script::kWide;
      at += wide;
    } else {
      break;
    }
  }
  if (at == begin) return begin;
  while (at < text.size()) {
    const std::size_t closer = bytes_of_one(kClosers, text.substr(at));
    if (closer == 0) break;
    at += closer;
  }
  // "3.5" and "e.g." within a word end nothing; scripts without spaces need none.
  if (script == Script::kSpaced && at < text.size() && !is_space(text[at])) return begin;
  return at;
}

/// A word that a small letter follows does not end its sentence: "cf. page 3".
bool goes_on(std::string_view text, std::size_t at) {
  return at < text.size() && text[at] >= 'a' && text[at] <= 'z';
}

}  // namespace

std::vector<std::string_view> sentences(std::string_view text) {
  std::vector<std::string_view> result;
  std::size_t begin = 0;
  std::size_t at = 0;
  while (at < text.size()) {
    const bool is_empty_line = text[at] == '\n' && at + 1 < text.size() && text[at + 1] == '\n';
    std::size_t end = is_empty_line ? at : behind_marks(text, at);
    if (end == at && !is_empty_line) {
      ++at;
      continue;
    }
    while (end < text.size() && is_space(text[end])) ++end;
    if (is_empty_line || !goes_on(text, end)) {
      result.push_back(text.substr(begin, end - begin));
      begin = end;
    }
    at = end;
  }
  if (begin < text.size()) result.push_back(text.substr(begin));
  return result;
}

}  // namespace primus::data
