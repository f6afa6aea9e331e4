#pragma once
// Tokens that are cut out of the text before the model sees it.
#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizers/json_part.hpp"
#include "data/tokenizers/piece.hpp"

namespace primus::data {

/// One entry of a tokenizer.json's `added_tokens`.
struct AddedToken {
  std::int64_t id = 0;
  std::string content;
  bool is_single_word = false;  // not within a longer word
  bool strips_left = false;     // takes the white space before it
  bool strips_right = false;
  bool is_normalized = false;  // looked for in the normalised text
  bool is_special = false;
};

/// The entries of a file. Throws ConfigError.
std::vector<AddedToken> read_added_tokens(const JsonPart& part);

/// Finds added tokens: from left to right, at each place the longest. Safe to use from several threads.
class AddedTokenFinder {
 public:
  /// `texts`: what to look for, one a token.
  AddedTokenFinder(std::vector<AddedToken> tokens, const std::vector<std::string>& texts);

  bool is_empty() const { return tokens_.empty(); }

  /// Calls visit(part, token) for each part of the piece in order; token is nullptr for text between tokens, of which
  /// none is empty.
  using Visit = std::function<void(const Piece&, const AddedToken*)>;
  void split(const Piece& piece, const Visit& visit) const;

 private:
  struct Found {
    const AddedToken* token = nullptr;
    std::size_t num_bytes = 0;
  };
  Found longest_at(std::string_view text, std::size_t at) const;

  // The texts as a tree of bytes; a node's children are a run of `edges_`, sorted by byte.
  struct Node {
    std::int32_t first_edge = 0;
    std::int32_t num_edges = 0;
    std::int32_t token = -1;
  };
  struct Edge {
    unsigned char byte;
    std::int32_t node;
  };

  std::vector<AddedToken> tokens_;
  std::array<bool, 256> may_begin_{};
  std::vector<Node> nodes_;
  std::vector<Edge> edges_;
};

}  // namespace primus::data
