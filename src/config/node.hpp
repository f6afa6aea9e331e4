#pragma once
// Configuration text before it is typed: scalars as written, with their places. YAML files and overrides both become
// it.
#include <string>
#include <string_view>
#include <vector>

#include "config/value.hpp"

namespace primus::config {

/// A scalar, list or map as written.
struct Node {
  enum class Kind { kScalar, kList, kMap };
  /// Quoted scalars are texts whatever they spell.
  enum class Style { kPlain, kQuoted };
  struct Entry;

  Kind kind = Kind::kScalar;
  Style style = Style::kPlain;
  std::string text;
  std::vector<Node> items;
  std::vector<Entry> entries;
  Origin origin;
  std::vector<std::string> variables = {};  // of the environment, that the text was filled in from

  /// The entry's value; nullptr if this is no map or has no such key.
  const Node* find(std::string_view key) const;
  bool is_null() const;
};

struct Node::Entry {
  std::string key;
  int line = 0;
  Node value;
};

/// The value that a node spells without knowing its key: plain scalars by the one typing rule.
Value untyped_value(const Node& node);

/// What was found, for messages: "number 3", "text 'abc'", "a list", "null".
std::string found_text(const Node& node);

/// Laid over `base`: maps merge entry by entry, everything else is replaced.
Node merged(Node base, Node over);

}  // namespace primus::config
