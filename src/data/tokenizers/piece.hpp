#pragma once
// Stretches of text on their way through a tokenizer.
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizers/regex.hpp"
#include "data/tokenizers/utf8.hpp"

namespace primus::data {

/// Well-formed text, and where each of its bytes comes from if somebody asked for offsets.
struct Piece {
  std::string_view text;
  const TextRange* origins = nullptr;                         // one a byte; nullptr: not asked for
  enum class Place { kFirst, kLater } place = Place::kLater;  // kFirst: begins where the whole text begins

  Piece part(std::size_t begin, std::size_t end) const {
    return {text.substr(begin, end - begin), origins == nullptr ? nullptr : origins + begin,
            place == Place::kFirst && begin == 0 ? Place::kFirst : Place::kLater};
  }
};

/// Text that a step made, kept until the whole text is encoded. One thread's.
struct TextWorkspace {
  RegexWorkspace regex;
  std::string older;  // for with_older_characters
  std::deque<std::string> texts;
  std::deque<std::vector<TextRange>> origins;

  void clear() {
    texts.clear();
    origins.clear();
  }
};

}  // namespace primus::data
