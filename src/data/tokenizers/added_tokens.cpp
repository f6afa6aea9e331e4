#include "data/tokenizers/added_tokens.hpp"

#include <unicode/uchar.h>

#include <algorithm>
#include <map>

#include "base/error.hpp"
#include "data/tokenizers/newer_characters.hpp"

namespace primus::data {
namespace {

/// `\w` of Rust's regular expressions: letters, marks, decimal digits, connecting punctuation and joiners.
bool is_word_character(char32_t character) {
  const auto point = static_cast<UChar32>(older_character(character));
  constexpr std::uint32_t kOthers = U_GC_M_MASK | U_GC_ND_MASK | U_GC_PC_MASK;
  return u_hasBinaryProperty(point, UCHAR_ALPHABETIC) != 0 || (U_GET_GC_MASK(point) & kOthers) != 0 ||
         u_hasBinaryProperty(point, UCHAR_JOIN_CONTROL) != 0;
}

bool stands_alone(std::string_view text, std::size_t begin, std::size_t end) {
  if (begin > 0 && is_word_character(last_character(text.substr(0, begin)))) return false;
  if (end == text.size()) return true;
  return !is_word_character(next_character(text, end));
}

std::size_t white_space_before(std::string_view text, std::size_t end) {
  while (end > 0) {
    const char32_t character = last_character(text.substr(0, end));
    if (!is_white_space(character)) break;
    do {
      --end;
    } while ((static_cast<unsigned char>(text[end]) & 0xC0) == 0x80);
  }
  return end;
}

std::size_t white_space_behind(std::string_view text, std::size_t begin) {
  while (begin < text.size()) {
    std::size_t next = begin;
    if (!is_white_space(next_character(text, next))) break;
    begin = next;
  }
  return begin;
}

}  // namespace

std::vector<AddedToken> read_added_tokens(const JsonPart& part) {
  std::vector<AddedToken> tokens;
  if (part.is_null()) return tokens;
  for (const JsonPart& item : part.items()) {
    item.has_only({"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
    AddedToken token;
    token.id = item.at("id").integer();
    if (token.id < 0 || token.id >= std::int64_t{1} << 31) item.at("id").fail("is no id", "0 to 2147483647");
    token.content = item.at("content").text();
    token.is_single_word = item.boolean_or("single_word", false);
    token.strips_left = item.boolean_or("lstrip", false);
    token.strips_right = item.boolean_or("rstrip", false);
    token.is_special = item.boolean_or("special", false);
    token.is_normalized = item.boolean_or("normalized", !token.is_special);
    if (!token.content.empty()) tokens.push_back(std::move(token));
  }
  return tokens;
}

AddedTokenFinder::AddedTokenFinder(std::vector<AddedToken> tokens, const std::vector<std::string>& texts)
    : tokens_(std::move(tokens)) {
  std::vector<std::map<unsigned char, std::int32_t>> children(1);
  nodes_.emplace_back();
  for (std::size_t i = 0; i < texts.size(); ++i) {
    if (texts[i].empty()) continue;
    may_begin_[static_cast<unsigned char>(texts[i].front())] = true;
    std::int32_t node = 0;
    for (const char c : texts[i]) {
      const auto byte = static_cast<unsigned char>(c);
      const auto next = static_cast<std::int32_t>(nodes_.size());
      const auto [child, is_new] = children[static_cast<std::size_t>(node)].emplace(byte, next);
      const std::int32_t reached = child->second;
      if (is_new) {
        nodes_.emplace_back();
        children.emplace_back();
      }
      node = reached;
    }
    Node& end = nodes_[static_cast<std::size_t>(node)];
    if (end.token < 0) end.token = static_cast<std::int32_t>(i);
  }
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    nodes_[i].first_edge = static_cast<std::int32_t>(edges_.size());
    nodes_[i].num_edges = static_cast<std::int32_t>(children[i].size());
    for (const auto& [byte, node] : children[i]) edges_.push_back({byte, node});
  }
}

AddedTokenFinder::Found AddedTokenFinder::longest_at(std::string_view text, std::size_t at) const {
  Found found;
  const Node* node = nodes_.data();
  for (std::size_t i = at; i < text.size(); ++i) {
    const Edge* const begin = edges_.data() + node->first_edge;
    const Edge* const end = begin + node->num_edges;
    const auto byte = static_cast<unsigned char>(text[i]);
    const Edge* const edge =
        std::lower_bound(begin, end, byte, [](const Edge& e, unsigned char wanted) { return e.byte < wanted; });
    if (edge == end || edge->byte != byte) break;
    node = nodes_.data() + edge->node;
    if (node->token >= 0) found = {&tokens_[static_cast<std::size_t>(node->token)], i + 1 - at};
  }
  return found;
}

void AddedTokenFinder::split(const Piece& piece, const Visit& visit) const {
  const std::string_view text = piece.text;
  std::size_t done = 0;  // everything before it has been given away
  std::size_t at = 0;
  while (at < text.size()) {
    if (!may_begin_[static_cast<unsigned char>(text[at])]) {
      ++at;
      continue;
    }
    const Found found = longest_at(text, at);
    if (found.token == nullptr) {
      ++at;
      continue;
    }
    std::size_t begin = at;
    std::size_t end = at + found.num_bytes;
    at = end;
    if (found.token->is_single_word && !stands_alone(text, begin, end)) continue;
    // Neighbours that strip may both claim the space between them: the left one has it.
    if (found.token->strips_left) begin = std::max(white_space_before(text, begin), done);
    if (found.token->strips_right) end = white_space_behind(text, end);
    if (done < begin) visit(piece.part(done, begin), nullptr);
    visit(piece.part(begin, end), found.token);
    done = end;
  }
  if (done < text.size()) visit(piece.part(done, text.size()), nullptr);
}

}  // namespace primus::data
