#include "config/overrides.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <optional>
#include <utility>

#include "base/text.hpp"
#include "config/flag_names.hpp"
#include "config/key_table.hpp"
#include "config/map_entries.hpp"
#include "config/parse.hpp"
#include "config/yaml_reader.hpp"

namespace primus::config {
namespace {

constexpr std::string_view kPlace = "command line";
constexpr std::string_view kStrayDashes = "leave it out: it stands between a mode and its command only";
constexpr std::size_t kMaxNesting = 8;

Problem fault(std::string key, std::string message, std::string nearest = "") {
  return {
      .file = std::string(kPlace), .key = std::move(key), .message = std::move(message), .nearest = std::move(nearest)};
}

bool is_key_text(std::string_view text) {
  if (text.empty() || !(std::isalpha(static_cast<unsigned char>(text.front())) || text.front() == '_')) return false;
  return std::all_of(text.begin(), text.end(),
                     [](unsigned char c) { return std::isalnum(c) || c == '_' || c == '-' || c == '.'; });
}

// "lr=3e-4" but not "([0]*1+[1]*26)" nor "path/with=sign".
bool is_assignment(std::string_view word) {
  const std::size_t equals = word.find('=');
  return equals != std::string_view::npos && is_key_text(word.substr(0, equals));
}

std::string snake(std::string_view text) {
  std::string result(text);
  std::replace(result.begin(), result.end(), '-', '_');
  return result;
}

// Does the bracket that opens the text close at its very end? "[0]*1+[1]*26" is a pattern, not a list.
bool is_bracketed(std::string_view text, std::string_view openings) {
  if (text.size() < 2 || openings.find(text.front()) == std::string_view::npos) return false;
  int depth = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '[' || text[i] == '{' || text[i] == '(') ++depth;
    if (text[i] == ']' || text[i] == '}' || text[i] == ')') --depth;
    if (depth == 0) return i + 1 == text.size();
  }
  return false;
}

// Is the key's value a list, so that Python's (0, 1) can only mean one?
bool is_list(const Key* row) {
  return row && (row->type == KeyType::kIntList || row->type == KeyType::kRealList || row->type == KeyType::kTextList);
}

void stamp(Node& node) {
  node.origin = {Layer::kCommandLine, std::string(kPlace), 0};
  for (Node& item : node.items) stamp(item);
  for (Node::Entry& entry : node.entries) stamp(entry.value);
}

Node value_node(std::string_view text, const Key* row = nullptr) {
  Node node;
  const bool is_tuple = is_list(row) && is_bracketed(text, "(");
  if (is_tuple || is_bracketed(text, "[{")) {
    std::vector<Problem> problems;
    std::string list(text);
    if (is_tuple) {
      list.front() = '[';
      list.back() = ']';
    }
    Node parsed = read_yaml(list, std::string(kPlace), problems);
    if (problems.empty()) node = std::move(parsed);
  }
  if (node.kind == Node::Kind::kScalar) {
    const bool quoted =
        text.size() >= 2 && (text.front() == '"' || text.front() == '\'') && text.back() == text.front();
    node.style = quoted ? Node::Style::kQuoted : Node::Style::kPlain;
    node.text = quoted ? text.substr(1, text.size() - 2) : text;
  }
  stamp(node);
  return node;
}

const Key* row_of(std::string_view dotted) {
  return find_key(dotted.substr(0, dotted.find('.')));
}

class OverrideParser {
 public:
  OverrideParser(std::span<const std::string> words, std::vector<Problem>& problems)
      : words_(words), problems_(problems) {}

  std::vector<Override> run() {
    while (position_ < words_.size()) {
      const std::string& word = words_[position_++];
      if (word.empty()) continue;
      if (word == "--") {
        problems_.push_back(fault("", "unexpected '--'", std::string(kStrayDashes)));
      } else if (word.starts_with("--")) {
        option(word);
      } else if (is_assignment(word)) {
        assignment(word, word);
      } else if (list_) {
        unbracketed_list(word);
      } else {
        stray_words(word);
      }
    }
    return std::move(overrides_);
  }

 private:
  // A word that is no override, with those behind it that were meant to be its value.
  void stray_words(const std::string& first) {
    const std::string rest = skip_values();
    const std::string text = first + rest;
    const std::string_view without_dash = std::string_view(first).substr(first.front() == '-' ? 1 : 0);
    const bool has_one_dash = first.size() > 1 && first.front() == '-';
    std::string hint = "overrides are --key value, --key=value or key=value";
    if (has_one_dash && (is_key_text(without_dash) || is_assignment(without_dash))) {
      hint = fmt::format("keys begin with two dashes: -{}", text);
    } else if (is_key_text(first) && row_of(snake(first))) {
      const std::string value(trim(rest));
      hint = value.starts_with('=') ? fmt::format("no space stands around '=': {}={}", first, trim(value.substr(1)))
                                    : fmt::format("write --{}", text);
    } else if (is_key_text(first) && key_turned_off_by(snake(first))) {
      hint = fmt::format("write --{}", first);
    }
    problems_.push_back(fault("", fmt::format("unexpected '{}'", text), hint));
  }

  // "--lr = 3", "lr= 3": the value would be '=' or nothing, and 3 a stray word.
  void spaced_assignment(const std::string& written) {
    const std::string name = written.substr(0, written.find('='));
    const std::string rest = skip_values();
    std::string_view value = trim(rest);
    if (value.starts_with('=')) value = trim(value.substr(1));
    problems_.push_back(fault(
        "", fmt::format("unexpected '{}{}'", written, rest),
        fmt::format("no space stands around '=': {}={}", name, value.empty() ? std::string_view("VALUE") : value)));
  }

  /// The words up to the next override, each behind a space.
  std::string skip_values() {
    std::string text;
    while (is_value(position_)) text += " " + words_[position_++];
    return text;
  }

  // Megatron's options take several words; here a list is one.
  void unbracketed_list(const std::string& first) {
    std::string items = list_->first + ", " + first;
    const std::string rest = skip_values();
    for (const std::string& word : split(trim(rest), ' ')) items += word.empty() ? "" : ", " + word;
    Problem problem = fault(list_->written, "a list of several words stands in brackets",
                            fmt::format("write {} '[{}]'", list_->written, items));
    problem.expected = "one word";
    problem.found = fmt::format("'{} {}{}'", list_->first, first, rest);
    problems_.push_back(std::move(problem));
    list_.reset();
  }

  bool is_value(std::size_t at) const {
    return at < words_.size() && !words_[at].empty() && !words_[at].starts_with("--") && !is_assignment(words_[at]);
  }

  void assignment(std::string_view text, const std::string& written) {
    const std::size_t equals = text.find('=');
    const std::string key = snake(text.substr(0, equals));
    if (const Key* negated = row_of(key) ? nullptr : key_turned_off_by(key)) {
      problems_.push_back(fault("--" + key, "takes no value",
                                fmt::format("write --{0} alone, or --{1}=true or --{1}=false", key, negated->name)));
      return;
    }
    if (equals + 1 == text.size() && is_value(position_)) return spaced_assignment(written);
    add(key, written, value_node(text.substr(equals + 1), row_of(key)));
  }

  void option(const std::string& word) {
    const std::string_view text = std::string_view(word).substr(2);
    if (is_assignment(text)) return assignment(text, word);
    if (!is_key_text(text)) {
      const std::size_t space = text.find(' ');
      std::string hint;
      if (space != std::string_view::npos && is_key_text(text.substr(0, space))) {
        hint = "key and value are two arguments here: leave out the quotes around both";
      } else if (const auto begin = text.find_first_not_of('-'); begin != 0 && begin != std::string_view::npos) {
        hint = fmt::format("keys begin with two dashes: --{}", text.substr(begin));
      }
      skip_values();
      problems_.push_back(fault("", fmt::format("'{}' is not a key", word), hint));
      return;
    }
    const std::string key = snake(text);
    const Key* row = row_of(key);
    if (const Key* negated = row ? nullptr : key_turned_off_by(key))
      return add(std::string(negated->name), word, value_node("false"));
    if (const Key* no_switch = row ? nullptr : key_of_negation(key)) {
      skip_values();
      problems_.push_back(fault(word, fmt::format("only switches can be turned off, and {} is none", no_switch->name),
                                fmt::format("write --{} VALUE", no_switch->name)));
      return;
    }
    if (position_ < words_.size() && words_[position_].starts_with('=')) return spaced_assignment(word);
    if (takes_next_word(row)) return add(key, word, value_node(words_[position_++], row));
    if (needs_value(key)) {
      Problem problem = fault(word, "needs a value", fmt::format("write {} VALUE", word));
      if (const Key* entry = entry_or_row(key)) problem.expected = expected_text(*entry);
      problems_.push_back(std::move(problem));
      return;
    }
    add(key, word, value_node("true"));
  }

  // "no_lr": the key behind the word that turns switches off, where it is no switch.
  static const Key* key_of_negation(std::string_view key) {
    for (const std::string_view word : {"no_", "disable_"}) {
      if (key.starts_with(word)) return find_key(key.substr(word.size()));
    }
    return nullptr;
  }

  static const Key* entry_or_row(std::string_view key) {
    return key.find('.') == std::string_view::npos ? find_key(key) : find_map_entry(key);
  }

  // A flag alone is true; whatever is not true or false has lost its value.
  static bool needs_value(std::string_view key) {
    if (std::find(kRunNames.begin(), kRunNames.end(), key) != kRunNames.end()) return true;
    const Key* row = entry_or_row(key);
    return row && row->type != KeyType::kBool;
  }

  // A bare flag is followed by nothing, by another option, or (for a key that is true or false) by an assignment.
  bool takes_next_word(const Key* row) const {
    if (position_ >= words_.size() || words_[position_].starts_with("--")) return false;
    const bool is_flag = row && row->type == KeyType::kBool;
    return !(is_flag && is_assignment(words_[position_]));
  }

  void add(std::string key, const std::string& written, Node value) {
    std::vector<std::string> parts = split(key, '.');
    const bool has_gap = std::any_of(parts.begin(), parts.end(), [](const std::string& part) { return part.empty(); });
    if (has_gap || parts.size() > kMaxNesting) {
      problems_.push_back(fault(
          key, has_gap ? "a part of the key is empty" : fmt::format("nested deeper than {} levels", kMaxNesting)));
      return;
    }
    const std::string name = written.substr(0, written.find('='));
    if (parts.size() > 1 && refuse_nesting(parts, name)) return;
    for (std::size_t i = parts.size(); i-- > 1;) {
      Node map;
      map.kind = Node::Kind::kMap;
      map.entries.push_back({parts[i], 0, std::move(value)});
      stamp(map);
      value = std::move(map);
    }
    list_.reset();
    if (is_list(row_of(key)) && value.kind == Node::Kind::kScalar) list_ = UnbracketedList{name, value.text};
    overrides_.push_back({parts.front(), name, std::move(value)});
  }

  // Only maps have entries, and keys are named without the blocks of the file in which they stand.
  bool refuse_nesting(const std::vector<std::string>& parts, const std::string& written) {
    const Key* row = find_key(parts.front());
    const Key* last = find_key(parts.back());
    if (row && row->type != KeyType::kMap) {
      problems_.push_back(
          fault(written, fmt::format("{} has no entries", row->name), fmt::format("write --{} VALUE", row->name)));
      return true;
    }
    const bool is_block = parts.front() == "modules" || parts.front() == "overrides" ||
                          parts.front().find("trainer") != std::string::npos;
    if (row || !is_block || !last) return false;
    problems_.push_back(fault(written, "a key stands here without the blocks of the file",
                              fmt::format("write --{} VALUE", last->name)));
    return true;
  }

  std::span<const std::string> words_;
  std::vector<Problem>& problems_;
  std::size_t position_ = 0;
  struct UnbracketedList {
    std::string written;
    std::string first;
  };
  std::optional<UnbracketedList> list_;  // of the word before
  std::vector<Override> overrides_;
};

}  // namespace

std::vector<Override> parse_overrides(std::span<const std::string> words, std::vector<Problem>& problems) {
  return OverrideParser(words, problems).run();
}

}  // namespace primus::config
