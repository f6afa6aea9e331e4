#include "config/typing.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <utility>

#include "base/text.hpp"
#include "config/layer_pattern.hpp"
#include "config/map_entries.hpp"
#include "config/parse.hpp"

namespace primus::config {
namespace {

using Typed = std::optional<Value>;

// PyYAML reads these words as truth values, and Python takes 0 and 1 for them, so existing files use all of these.
std::optional<bool> truth_word(const Node& node) {
  if (node.kind != Node::Kind::kScalar) return std::nullopt;
  if (const auto truth = parse_bool(node.text)) return truth;
  if (node.text == "1") return true;
  if (node.text == "0") return false;
  if (node.style == Node::Style::kQuoted || node.text.size() > 3) return std::nullopt;
  const std::string word = lower(node.text);
  if (word == "yes" || word == "on") return true;
  if (word == "no" || word == "off") return false;
  return std::nullopt;
}

Typed as_int(const Node& node) {
  if (node.kind != Node::Kind::kScalar) return std::nullopt;
  if (const auto integer = parse_int(node.text)) return Value{*integer};
  // 1e3 and 5.0 are integers to whoever wrote them; 2^53 bounds what a double holds exactly.
  constexpr double kLargestExact = 9007199254740992.0;
  const auto real = parse_real(node.text);
  if (!real || std::abs(*real) > kLargestExact || *real != std::trunc(*real)) return std::nullopt;
  return Value{static_cast<std::int64_t>(*real)};
}

Typed as_real(const Node& node) {
  if (node.kind != Node::Kind::kScalar) return std::nullopt;
  if (const auto real = parse_real(node.text)) return Value{*real};
  return std::nullopt;
}

Typed as_text(const Node& node) {
  if (node.kind != Node::Kind::kScalar || !is_utf8(node.text)) return std::nullopt;
  return Value{node.text};
}

// A number beyond what its type holds, such as 1e400, is a number all the same.
bool is_number_beyond(const Node& node, KeyType type) {
  if (node.kind != Node::Kind::kScalar) return false;
  std::string text = node.text;
  std::erase(text, '_');
  const bool is_written_as_number =
      !text.empty() && text.find_first_not_of("+-.0123456789eE") == std::string::npos &&
      text.find_first_of("0123456789") == 0U + (text.front() == '-' || text.front() == '+' ? 1U : 0U);
  if (!is_written_as_number) return false;
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (*end != 0) return false;
  return std::isinf(value) || (type == KeyType::kInt && value == std::trunc(value));
}

bool is_space(char c) {
  return std::string_view(" \t\r\n").find(c) != std::string_view::npos;
}

std::string in_one_line(std::string text) {
  std::replace_if(text.begin(), text.end(), is_space, ' ');
  return text;
}

// Commas and spaces separate items when a list is written as one text.
Typed as_list(const Node& node, Typed (*item_of)(const Node&), std::string_view separators) {
  Value::List values;
  std::vector<Node> items = node.items;
  if (node.kind == Node::Kind::kMap) return std::nullopt;
  if (node.kind == Node::Kind::kScalar) {
    std::string text = node.text;
    for (char& c : text) c = separators.find(c) == std::string_view::npos && !is_space(c) ? c : ' ';
    for (const std::string& word : split(text, ' ')) {
      if (word.empty()) continue;
      Node item = node;
      item.text = word;
      items.push_back(item);
    }
  }
  for (const Node& item : items) {
    Typed value = item_of(item);
    if (!value) return std::nullopt;
    values.push_back(*std::move(value));
  }
  return Value{values};
}

Typed as_layers(const Node& node, std::string& reason) {
  if (node.kind == Node::Kind::kList) return as_list(node, as_int, "");
  if (node.kind != Node::Kind::kScalar) return std::nullopt;
  if (const Typed integer = as_int(node)) {
    if (std::get<std::int64_t>(integer->data) >= 1) return integer;
    return std::nullopt;
  }
  const ListExpression list = parse_list_expression(trim(node.text));
  reason = list.error;
  if (!list.error.empty()) return std::nullopt;
  return Value{in_one_line(node.text)};
}

// A name of a kind of layer as Megatron's list form spells it, or the letters themselves.
std::string layout_letters(const std::string& word) {
  constexpr std::pair<std::string_view, std::string_view> kNames[] = {
      {"embedding", "E"}, {"decoder", "t"}, {"mtp", "m"}, {"loss", "L"}};
  for (const auto& [name, letter] : kNames) {
    if (word == name) return std::string(letter);
  }
  return word;
}

// One item a stage: a text of letters, or a list of names. The text form is what everybody reads.
Typed layout_text(const Node& node) {
  std::string text;
  for (const Node& stage : node.items) {
    if (&stage != &node.items.front()) text += '|';
    const std::vector<Node> words = stage.kind == Node::Kind::kList ? stage.items : std::vector<Node>{stage};
    for (const Node& word : words) {
      if (word.kind != Node::Kind::kScalar || !is_utf8(word.text)) return std::nullopt;
      if (word.is_null()) continue;
      if (&word != &words.front()) text += ',';
      text += layout_letters(word.text);
    }
  }
  return Value{text};
}

// Lists of layers may be written as YAML lists; they are kept as the text of their items.
Typed list_as_text(const Node& node, const Key& key) {
  if (key.name == "pipeline_model_parallel_layout") return layout_text(node);
  const Typed items = as_list(node, as_text, "");
  if (!items) return std::nullopt;
  std::string joined;
  for (const Value& item : std::get<Value::List>(items->data)) {
    joined += (joined.empty() ? "" : ",") + std::get<std::string>(item.data);
  }
  return Value{joined};
}

// A key whose default is one value takes one as it is: only several make a list.
bool stays_single(const Node& node, const Key& key) {
  const bool is_usually_list = key.default_text == "null" || key.default_text.starts_with('[');
  return node.kind == Node::Kind::kScalar && !is_usually_list && node.text.find_first_of(", ") == std::string::npos;
}

// Entries that do not fit their rows keep what they spell: who merges maps has told them.
Value typed_map(const Node& node, const Key& key) {
  Value::Map values;
  for (const Node::Entry& entry : node.entries) {
    const Key* row = find_map_entry(fmt::format("{}.{}", key.name, entry.key));
    const std::variant<Value, TypeFault> typed = row ? typed_value(entry.value, *row) : untyped_value(entry.value);
    const Value* value = std::get_if<Value>(&typed);
    values[entry.key] = value ? *value : untyped_value(entry.value);
  }
  return {values};
}

Typed converted(const Node& node, const Key& key, std::string& reason) {
  switch (key.type) {
    case KeyType::kBool: {
      const auto truth = truth_word(node);
      return truth ? Typed(Value{*truth}) : std::nullopt;
    }
    case KeyType::kInt:
      return as_int(node);
    case KeyType::kReal:
      return as_real(node);
    case KeyType::kText:
      if (node.kind == Node::Kind::kList) return list_as_text(node, key);
      return as_text(node);
    case KeyType::kTextList:
      return stays_single(node, key) ? as_text(node) : as_list(node, as_text, "");
    case KeyType::kIntList:
      return as_list(node, as_int, ",");
    case KeyType::kRealList:
      return stays_single(node, key) ? as_real(node) : as_list(node, as_real, ",");
    case KeyType::kLayers:
      return as_layers(node, reason);
    case KeyType::kMap:
      return node.kind == Node::Kind::kMap ? Typed(typed_map(node, key)) : std::nullopt;
  }
  return std::nullopt;
}

// Does a number lie in ">=1", ">0", "0..1" or "0..<1"?
bool in_range(double value, std::string_view range) {
  if (range.starts_with(">=")) return value >= *parse_real(range.substr(2));
  if (range.starts_with('>')) return value > *parse_real(range.substr(1));
  const std::size_t dots = range.find("..");
  const std::string_view high = range.substr(dots + 2);
  if (value < *parse_real(range.substr(0, dots))) return false;
  return high.starts_with('<') ? value < *parse_real(high.substr(1)) : value <= *parse_real(high);
}

bool is_range(std::string_view allowed) {
  return allowed.starts_with('>') || allowed.find("..") != std::string_view::npos;
}

// The first item of a list that is not of the list's type.
std::string wrong_item_text(const Node& node, const Key& key) {
  const bool is_integers = key.type == KeyType::kIntList || key.type == KeyType::kLayers;
  for (std::size_t i = 0; i < node.items.size(); ++i) {
    const Node& item = node.items[i];
    const bool fits = is_integers ? as_int(item).has_value()
                                  : (key.type == KeyType::kRealList ? as_real(item) : as_text(item)).has_value();
    if (!fits) return fmt::format("{} as item {} of the list", found_text(item), i + 1);
  }
  return found_text(node);
}

// A stage of the list form is a list of names, or a text of letters. What is neither is told by its place: the text
// that the list stands for is nothing that the user wrote.
std::optional<TypeFault> layout_item_fault(const Node& node, const Key& key) {
  if (key.name != "pipeline_model_parallel_layout" || node.kind != Node::Kind::kList) return std::nullopt;
  constexpr std::string_view kWords[] = {"embedding", "decoder", "mtp", "loss"};
  constexpr std::string_view kExpected = "names embedding, decoder, mtp and loss, or letters as in Et*3";
  for (std::size_t stage = 0; stage < node.items.size(); ++stage) {
    const Node& entry = node.items[stage];
    const std::vector<Node> words = entry.kind == Node::Kind::kList ? entry.items : std::vector<Node>{entry};
    for (std::size_t i = 0; i < words.size(); ++i) {
      const Node& word = words[i];
      const std::string place = entry.kind == Node::Kind::kList ? fmt::format("stage {}, entry {}", stage + 1, i + 1)
                                                                : fmt::format("stage {}", stage + 1);
      if (word.kind != Node::Kind::kScalar)
        return TypeFault{fmt::format("{}: wrong type", place), std::string(kExpected), found_text(word), ""};
      const std::string_view text = word.text;
      const bool is_name = std::find(std::begin(kWords), std::end(kWords), text) != std::end(kWords);
      const bool is_letters = text.find_first_not_of("EtmL()*|,0123456789") == std::string_view::npos &&
                              text.find_first_of("EtmL") != std::string_view::npos;
      if (word.is_null() || is_name || is_letters || !is_utf8(word.text)) continue;
      const std::string_view name = text.substr(0, text.find('*'));
      const auto nearest = nearest_name(name, kWords);
      std::string hint = nearest ? fmt::format("did you mean '{}'?", *nearest) : "";
      if (const std::string letter = layout_letters(std::string(name)); letter != name && name != text)
        hint = fmt::format("names take no number: write {}{}", letter, text.substr(name.size()));
      return TypeFault{fmt::format("{} is not a kind of layer", place), std::string(kExpected),
                       fmt::format("'{}'", text), hint};
    }
  }
  return std::nullopt;
}

// Words of other programs and papers for values here.
constexpr std::pair<std::string_view, std::string_view> kCommonWords[] = {
    {"float32", "fp32"},         {"float", "fp32"},      {"float64", "fp64"}, {"double", "fp64"}, {"bfloat16", "bf16"},
    {"float16", "fp16"},         {"half", "fp16"},       {"float8", "fp8"},   {"rotary", "rope"}, {"adamw", "adam"},
    {"layer_norm", "LayerNorm"}, {"rms_norm", "RMSNorm"}};

std::string nearest_word(const std::string& text, const std::vector<std::string>& words) {
  for (const auto& [common, word] : kCommonWords) {
    if (lower(text) == common && std::find(words.begin(), words.end(), word) != words.end())
      return fmt::format("did you mean '{}'?", word);
  }
  const std::vector<std::string_view> views(words.begin(), words.end());
  const auto nearest = nearest_name(text, views);
  return nearest ? fmt::format("did you mean '{}'?", *nearest) : "";
}

// `$NAME` is a shell's way; files here have ${NAME}.
std::string variable_hint(const Node& node) {
  if (node.kind != Node::Kind::kScalar || node.style != Node::Style::kPlain || !node.text.starts_with('$')) return "";
  const std::string name = node.text.substr(1);
  const bool is_name =
      !name.empty() && !std::isdigit(static_cast<unsigned char>(name.front())) &&
      std::all_of(name.begin(), name.end(), [](unsigned char c) { return std::isalnum(c) || c == '_'; });
  return is_name ? fmt::format("an environment variable is written ${{{}}}", name) : "";
}

std::optional<TypeFault> outside_allowed(const Value& value, const Node& node, const Key& key) {
  if (key.allowed.empty()) return std::nullopt;
  std::vector<Value> candidates{value};
  if (const auto* list = std::get_if<Value::List>(&value.data)) candidates = *list;
  if (is_range(key.allowed)) {
    for (const Value& candidate : candidates) {
      const auto* integer = std::get_if<std::int64_t>(&candidate.data);
      const double number = integer ? static_cast<double>(*integer) : std::get<double>(candidate.data);
      if (!in_range(number, key.allowed)) return TypeFault{"out of range", expected_text(key), found_text(node), ""};
    }
    return std::nullopt;
  }
  const std::vector<std::string> words = split(key.allowed, '|');
  for (const Value& candidate : candidates) {
    const std::string& text = std::get<std::string>(candidate.data);
    if (std::find(words.begin(), words.end(), text) != words.end()) continue;
    if (key.type == KeyType::kTextList && text.find(',') != std::string::npos) {
      return TypeFault{"not an allowed value", expected_text(key), fmt::format("'{}'", text),
                       fmt::format("a list stands in brackets: [{}]", text)};
    }
    return TypeFault{"not an allowed value", expected_text(key), fmt::format("'{}'", text), nearest_word(text, words)};
  }
  return std::nullopt;
}

// Digits behind a zero: 15 to those who read them as octal (Python's YAML), 17 to others.
const Node* octal_look(const Node& node) {
  if (node.kind == Node::Kind::kScalar) {
    std::string_view digits = node.text;
    if (digits.starts_with('-') || digits.starts_with('+')) digits.remove_prefix(1);
    const bool is_number =
        digits.size() > 1 && digits.front() == '0' && digits.find_first_not_of("0123456789_") == std::string_view::npos;
    return is_number ? &node : nullptr;
  }
  for (const Node& item : node.items) {
    if (const Node* found = octal_look(item)) return found;
  }
  for (const Node::Entry& entry : node.entries) {
    if (const Node* found = entry.value.style == Node::Style::kPlain ? octal_look(entry.value) : nullptr) return found;
  }
  return nullptr;
}

bool holds_texts(const Key& key) {
  return key.type == KeyType::kText || key.type == KeyType::kTextList;
}

std::optional<TypeFault> octal_fault(const Node& node, const Key& key) {
  const Node* number = holds_texts(key) ? nullptr : octal_look(node);
  if (!number) return std::nullopt;
  const auto decimal = parse_int(number->text);
  return TypeFault{"a number with a leading zero: octal to some, decimal to others", expected_text(key),
                   fmt::format("'{}'", number->text),
                   decimal ? fmt::format("write {} if you mean the decimal number", *decimal) : ""};
}

}  // namespace

std::variant<Value, TypeFault> typed_value(const Node& node, const Key& key) {
  // "none" is a word of some keys; Python's None, null and ~ are not.
  if (node.is_null()) {
    const bool empty_text_allowed = key.type == KeyType::kText && key.default_text.empty() && node.text.empty();
    if (empty_text_allowed) return Value{std::string()};
    if (allows_null(key)) return Value{};
    return TypeFault{"needs a value", expected_text(key), "null", ""};
  }
  if (auto fault = octal_fault(node, key)) return *std::move(fault);
  if (auto fault = layout_item_fault(node, key)) return *std::move(fault);
  std::string reason;
  const Typed value = converted(node, key, reason);
  if (!value && node.kind == Node::Kind::kScalar && !is_utf8(node.text)) {
    return TypeFault{"not valid UTF-8", expected_text(key),
                     fmt::format("{} byte{} that {} not", node.text.size(), node.text.size() == 1 ? "" : "s",
                                 node.text.size() == 1 ? "is" : "are"),
                     ""};
  }
  if (!value) {
    const bool is_number =
        (key.type == KeyType::kLayers && as_int(node)) ||
        ((key.type == KeyType::kInt || key.type == KeyType::kReal) && is_number_beyond(node, key.type));
    const std::string message = !reason.empty() ? fmt::format("malformed pattern: {}", reason)
                                : is_number     ? "out of range"
                                                : "wrong type";
    const bool is_list = node.kind == Node::Kind::kList;
    return TypeFault{message, expected_text(key), is_list ? wrong_item_text(node, key) : found_text(node),
                     variable_hint(node)};
  }
  if (auto fault = outside_allowed(*value, node, key)) return *std::move(fault);
  return *value;
}

}  // namespace primus::config
