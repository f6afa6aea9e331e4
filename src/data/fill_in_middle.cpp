#include "data/fill_in_middle.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.hpp"
#include "base/philox.hpp"

namespace primus::data {
namespace {

std::int64_t id_of(const Tokenizer& tokenizer, const std::string& text) {
  std::vector<std::int64_t> ids;
  tokenizer.encode(text, ids);
  if (ids.size() == 1) return ids.front();
  throw ConfigError({{.file = "command line",
                      .key = "--fim-tokens",
                      .message = fmt::format("is no token of {}", tokenizer.name()),
                      .expected = "one of its special tokens, or one given by --special-tokens",
                      .found = fmt::format("'{}', {} tokens", text, ids.size())}});
}

bool is_beginning(char c) {
  return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U;
}

/// Number of characters; a byte that continues none counts to the one before.
std::size_t num_characters(std::string_view text) {
  return static_cast<std::size_t>(std::ranges::count_if(text, is_beginning));
}

/// The byte at which a character begins.
std::size_t byte_of(std::string_view text, std::size_t character) {
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (is_beginning(text[i]) && character-- == 0) return i;
  }
  return text.size();
}

double uniform(std::uint32_t word) {
  return static_cast<double>(word) * 0x1p-32;
}

}  // namespace

HoleCutter::HoleCutter(HoleOptions options, const Tokenizer& tokenizer)
    : options_(std::move(options)),
      tokenizer_(tokenizer),
      before_(id_of(tokenizer, options_.tokens.at(0))),
      hole_(id_of(tokenizer, options_.tokens.at(1))),
      after_(id_of(tokenizer, options_.tokens.at(2))) {}

void HoleCutter::encode(std::string_view text, std::vector<std::int64_t>& ids) const {
  const Philox random(options_.seed, text);
  const auto [chance, order, first, second] = random.words(0);
  if (text.empty() || uniform(chance) >= options_.rate) return tokenizer_.encode(text, ids);
  const auto places = static_cast<double>(num_characters(text) + 1);
  std::size_t begin = byte_of(text, static_cast<std::size_t>(uniform(first) * places));
  std::size_t end = byte_of(text, static_cast<std::size_t>(uniform(second) * places));
  if (begin > end) std::swap(begin, end);
  const std::string_view before = text.substr(0, begin);
  const std::string_view hole = text.substr(begin, end - begin);
  const std::string_view after = text.substr(end);
  ids.push_back(before_);
  if (uniform(order) < options_.end_first_rate) {
    ids.push_back(after_);
    tokenizer_.encode(after, ids);
    ids.push_back(hole_);
    tokenizer_.encode(before, ids);
  } else {
    tokenizer_.encode(before, ids);
    ids.push_back(after_);
    tokenizer_.encode(after, ids);
    ids.push_back(hole_);
  }
  tokenizer_.encode(hole, ids);
}

}  // namespace primus::data
