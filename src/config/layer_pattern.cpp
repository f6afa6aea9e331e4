#include "config/layer_pattern.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "base/error.hpp"

namespace primus::config {
namespace {

// No model has a hundred thousand layers; a pattern that multiplies beyond it is a slip or an attack.
constexpr std::size_t kMaxItems = 100'000;
constexpr int kMaxDepth = 32;

class ListParser {
 public:
  explicit ListParser(std::string_view text) : text_(text) {}

  ListExpression run() {
    std::vector<std::int64_t> items = sum(0);
    skip_spaces();
    if (error_.empty() && position_ != text_.size()) fail("expected '+', '*' or the end");
    if (!error_.empty()) return {{}, error_};
    return {std::move(items), ""};
  }

 private:
  std::vector<std::int64_t> sum(int depth) {
    std::vector<std::int64_t> items = product(depth);
    while (error_.empty() && accept('+')) {
      const std::vector<std::int64_t> more = product(depth);
      items.insert(items.end(), more.begin(), more.end());
      if (items.size() > kMaxItems) fail("the list is too long");
    }
    return items;
  }

  std::vector<std::int64_t> product(int depth) {
    std::vector<std::int64_t> once = list(depth);
    if (!error_.empty() || !accept('*')) return once;
    const std::int64_t times = integer();
    if (!error_.empty()) return {};
    if (times < 0 || static_cast<std::size_t>(times) > kMaxItems / std::max<std::size_t>(once.size(), 1)) {
      fail("the list is repeated too often");
      return {};
    }
    std::vector<std::int64_t> items;
    for (std::int64_t i = 0; i < times; ++i) items.insert(items.end(), once.begin(), once.end());
    return items;
  }

  std::vector<std::int64_t> list(int depth) {
    if (depth > kMaxDepth) {
      fail("parentheses are nested too deep");
      return {};
    }
    if (accept('(')) {
      std::vector<std::int64_t> items = sum(depth + 1);
      if (error_.empty() && !accept(')')) fail("expected ')'");
      return items;
    }
    if (!accept('[')) {
      fail("expected '[' or '('");
      return {};
    }
    std::vector<std::int64_t> items;
    if (accept(']')) return items;
    do {
      items.push_back(integer());
    } while (error_.empty() && accept(','));
    if (error_.empty() && !accept(']')) fail("expected ',' or ']'");
    return items;
  }

  std::int64_t integer() {
    skip_spaces();
    std::int64_t value = 0;
    const auto [end, code] = std::from_chars(text_.data() + position_, text_.data() + text_.size(), value);
    if (code != std::errc{}) {
      fail("expected an integer");
      return 0;
    }
    position_ = static_cast<std::size_t>(end - text_.data());
    return value;
  }

  bool accept(char wanted) {
    skip_spaces();
    if (position_ >= text_.size() || text_[position_] != wanted) return false;
    ++position_;
    return true;
  }

  void skip_spaces() {
    while (position_ < text_.size() && text_[position_] == ' ') ++position_;
  }

  void fail(std::string_view reason) {
    if (error_.empty()) error_ = fmt::format("{} at character {}", reason, position_ + 1);
  }

  std::string_view text_;
  std::size_t position_ = 0;
  std::string error_;
};

ListExpression items_of(const Value::List& values) {
  ListExpression result;
  for (const Value& value : values) {
    const auto* integer = std::get_if<std::int64_t>(&value.data);
    if (!integer) return {{}, "the list holds something else than integers"};
    result.items.push_back(*integer);
  }
  return result;
}

}  // namespace

ListExpression parse_list_expression(std::string_view text) {
  return ListParser(text).run();
}

std::vector<std::int64_t> pattern_items(const Value& pattern) {
  if (const auto* text = std::get_if<std::string>(&pattern.data)) return parse_list_expression(*text).items;
  if (const auto* list = std::get_if<Value::List>(&pattern.data)) return items_of(*list).items;
  return {};
}

std::string pattern_text(const std::vector<std::int64_t>& items) {
  std::string text = "(";
  for (std::size_t begin = 0; begin < items.size();) {
    std::size_t end = begin;
    while (end < items.size() && items[end] == items[begin]) ++end;
    text += fmt::format("{}[{}]*{}", begin == 0 ? "" : "+", items[begin], end - begin);
    begin = end;
  }
  return text + ")";
}

std::vector<std::int64_t> expand_layer_pattern(const Value& frequency, std::int64_t num_layers, std::string_view key) {
  if (const auto* every = std::get_if<std::int64_t>(&frequency.data)) {
    if (*every < 1) throw UserError(fmt::format("{}: expected an integer >= 1, found {}", key, *every));
    std::vector<std::int64_t> pattern(static_cast<std::size_t>(num_layers), 0);
    for (std::int64_t layer = 0; layer < num_layers; layer += *every) pattern[static_cast<std::size_t>(layer)] = 1;
    return pattern;
  }
  ListExpression list;
  if (const auto* text = std::get_if<std::string>(&frequency.data)) {
    list = parse_list_expression(*text);
  } else if (const auto* values = std::get_if<Value::List>(&frequency.data)) {
    list = items_of(*values);
  } else {
    list.error = "it is neither an integer nor a list";
  }
  if (!list.error.empty()) throw UserError(fmt::format("{}: {}", key, list.error));
  if (static_cast<std::int64_t>(list.items.size()) != num_layers) {
    throw UserError(
        fmt::format("{}: the pattern is for {} layers, the model has {}", key, list.items.size(), num_layers));
  }
  for (const std::int64_t item : list.items) {
    if (item != 0 && item != 1) throw UserError(fmt::format("{}: expected 0 or 1, found {}", key, item));
  }
  return list.items;
}

}  // namespace primus::config
