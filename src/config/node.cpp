#include "config/node.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "config/parse.hpp"

namespace primus::config {

const Node* Node::find(std::string_view key) const {
  for (const Entry& entry : entries) {
    if (entry.key == key) return &entry.value;
  }
  return nullptr;
}

bool Node::is_null() const {
  return kind == Kind::kScalar && style == Style::kPlain && is_null_text(text);
}

bool Node::is_broken() const {
  return style == Style::kBroken ||
         std::any_of(items.begin(), items.end(), [](const Node& item) { return item.is_broken(); }) ||
         std::any_of(entries.begin(), entries.end(), [](const Entry& entry) { return entry.value.is_broken(); });
}

Value untyped_value(const Node& node) {
  switch (node.kind) {
    case Node::Kind::kScalar:
      return node.style == Node::Style::kQuoted ? Value{node.text} : parse_scalar(node.text);
    case Node::Kind::kList: {
      Value::List values;
      for (const Node& item : node.items) values.push_back(untyped_value(item));
      return {values};
    }
    case Node::Kind::kMap: {
      Value::Map values;
      for (const Node::Entry& entry : node.entries) values[entry.key] = untyped_value(entry.value);
      return {values};
    }
  }
  return {};
}

std::string found_text(const Node& node) {
  constexpr std::size_t kLongest = 60;
  if (node.kind == Node::Kind::kList) return node.items.empty() ? "an empty list" : "a list";
  if (node.kind == Node::Kind::kMap) return "a map";
  std::size_t end = std::min(node.text.size(), kLongest);
  // Not within a character of several bytes.
  while (end > 0 && end < node.text.size() && (static_cast<unsigned char>(node.text[end]) & 0xC0U) == 0x80U) --end;
  const std::string shown = node.text.substr(0, end) + (end < node.text.size() ? "…" : "");
  const Value value = untyped_value(node);
  if (value.is_null()) return "null";
  if (std::holds_alternative<std::string>(value.data)) return fmt::format("text '{}'", shown);
  return shown;
}

Node merged(Node base, Node over) {
  if (base.kind != Node::Kind::kMap || over.kind != Node::Kind::kMap) return over;
  base.origin = over.origin;
  for (Node::Entry& entry : over.entries) {
    const auto same = std::find_if(base.entries.begin(), base.entries.end(),
                                   [&](const Node::Entry& candidate) { return candidate.key == entry.key; });
    if (same == base.entries.end()) {
      base.entries.push_back(std::move(entry));
    } else {
      same->line = entry.line;
      same->value = merged(std::move(same->value), std::move(entry.value));
    }
  }
  return base;
}

}  // namespace primus::config
