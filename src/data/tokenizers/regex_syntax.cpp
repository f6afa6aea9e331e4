#include "data/tokenizers/regex_syntax.hpp"

#include <fmt/format.h>

#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "data/tokenizers/utf8.hpp"

namespace primus::data {
namespace {

// Members of a bracketed class.
constexpr std::string_view kSpace =
    "\\x09-\\x0D\\x20\\x85\\xA0\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}\\x{205F}\\x{3000}";
// Latin-1's superscripts and fractions are word characters to Oniguruma, other numbers of their category are not.
constexpr std::string_view kWord = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\xB2\\xB3\\xB9\\xBC-\\xBE";
constexpr std::string_view kDigit = "\\p{Nd}";
constexpr std::string_view kHexDigit = "0-9A-Fa-f";

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
bool is_hex_digit(char c) {
  return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}
bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

enum class Sign { kPositive, kNegative };

/// A class that a letter stands for: \s, \w, \d, \h and their negations.
struct Shorthand {
  std::string_view members;
  Sign sign = Sign::kPositive;
};

std::optional<Shorthand> shorthand(char letter) {
  switch (letter) {
    case 's':
      return Shorthand{kSpace, Sign::kPositive};
    case 'S':
      return Shorthand{kSpace, Sign::kNegative};
    case 'w':
      return Shorthand{kWord, Sign::kPositive};
    case 'W':
      return Shorthand{kWord, Sign::kNegative};
    case 'd':
      return Shorthand{kDigit, Sign::kPositive};
    case 'D':
      return Shorthand{kDigit, Sign::kNegative};
    case 'h':
      return Shorthand{kHexDigit, Sign::kPositive};
    case 'H':
      return Shorthand{kHexDigit, Sign::kNegative};
    default:
      return std::nullopt;
  }
}

class Translator {
 public:
  explicit Translator(std::string_view pattern) : pattern_(pattern) {}

  std::string run() {
    while (at_ < pattern_.size()) element();
    if (!group_begins_.empty()) fail("a group that does not end");
    return std::move(out_);
  }

 private:
  [[noreturn]] void fail(std::string_view what) const { throw UnknownSyntax(fmt::format("{} at byte {}", what, at_)); }

  char peek(std::size_t ahead = 0) const { return at_ + ahead < pattern_.size() ? pattern_[at_ + ahead] : '\0'; }
  bool starts_with(std::string_view text) const { return pattern_.substr(at_).starts_with(text); }

  /// One atom, quantifier, bracket or alternation.
  void element() {
    switch (peek()) {
      case '\\':
        begin_atom();
        return escape();
      case '[':
        begin_atom();
        return bracketed_class();
      case '(':
        return open_group();
      case ')':
        return close_group();
      case '|':
        atom_begin_.reset();
        out_ += pattern_[at_++];
        return;
      case '*':
      case '+':
      case '?':
        return simple_quantifier();
      case '{':
        return interval();
      default:
        begin_atom();
        return literal();
    }
  }

  void begin_atom() { atom_begin_ = out_.size(); }

  void literal() {
    const std::size_t num_bytes = sequence_bytes(pattern_[at_]);
    if (peek() == '}' || peek() == ']') out_ += '\\';
    out_.append(pattern_, at_, num_bytes);
    at_ += num_bytes;
  }

  // --- groups ---

  void open_group() {
    const std::size_t begin = out_.size();
    if (!starts_with("(?")) {
      out_ += '(';
      ++at_;
    } else {
      constexpr std::array<std::string_view, 6> kKinds = {"(?:", "(?=", "(?!", "(?>", "(?<=", "(?<!"};
      bool is_known = false;
      for (const std::string_view kind : kKinds) {
        if (!starts_with(kind)) continue;
        out_ += kind;
        at_ += kind.size();
        is_known = true;
        break;
      }
      if (!is_known && options() == Options::kForTheRest) return;
    }
    group_begins_.push_back(begin);
    atom_begin_.reset();
  }

  enum class Options { kForAGroup, kForTheRest };

  /// (?i:…) or (?i); Ruby's m is PCRE2's s.
  Options options() {
    std::size_t end = at_ + 2;
    std::string letters;
    while (end < pattern_.size() && (pattern_[end] == 'i' || pattern_[end] == 'm' || pattern_[end] == '-')) {
      letters += pattern_[end] == 'm' ? 's' : pattern_[end];
      ++end;
    }
    if (end >= pattern_.size() || letters.empty() || (pattern_[end] != ':' && pattern_[end] != ')')) {
      fail(fmt::format("the group '{}'", pattern_.substr(at_, 3)));
    }
    out_ += "(?" + letters + pattern_[end];
    const Options kind = pattern_[end] == ':' ? Options::kForAGroup : Options::kForTheRest;
    at_ = end + 1;
    return kind;
  }

  void close_group() {
    if (group_begins_.empty()) fail("a ')' without a '('");
    atom_begin_ = group_begins_.back();
    group_begins_.pop_back();
    out_ += ')';
    ++at_;
  }

  // --- quantifiers ---

  void simple_quantifier() {
    if (!atom_begin_) fail("a quantifier without something before it");
    out_ += pattern_[at_++];
    if (peek() == '+' || peek() == '?') out_ += pattern_[at_++];  // possessive or lazy in both
    end_quantifier();
  }

  void interval() {
    std::size_t end = at_ + 1;
    while (end < pattern_.size() && is_digit(pattern_[end])) ++end;
    const std::string_view least = pattern_.substr(at_ + 1, end - at_ - 1);
    bool has_comma = false;
    std::string_view most;
    if (end < pattern_.size() && pattern_[end] == ',') {
      has_comma = true;
      const std::size_t begin = ++end;
      while (end < pattern_.size() && is_digit(pattern_[end])) ++end;
      most = pattern_.substr(begin, end - begin);
    }
    if (end >= pattern_.size() || pattern_[end] != '}' || (least.empty() && most.empty())) {
      begin_atom();
      out_ += "\\{";
      ++at_;
      return;
    }
    if (!atom_begin_) fail("a quantifier without something before it");
    out_ += fmt::format("{{{}{}{}}}", least.empty() ? "0" : least, has_comma ? "," : "", most);
    at_ = end + 1;
    if (peek() == '+') {
      // Not possessive, as it would be in PCRE2, but a second quantifier.
      out_.insert(*atom_begin_, "(?:");
      out_ += ")+";
      ++at_;
    } else if (peek() == '?') {
      if (!has_comma) fail("'?' behind {n}");
      out_ += pattern_[at_++];
    }
    end_quantifier();
  }

  void end_quantifier() {
    atom_begin_.reset();
    if (peek() == '*' || peek() == '+' || peek() == '?') fail("a second quantifier");
  }

  // --- escapes ---

  void escape() {
    const char letter = peek(1);
    if (letter == '\0') fail("a '\\' at the end");
    if (const auto known = shorthand(letter)) {
      out_ += fmt::format("[{}{}]", known->sign == Sign::kNegative ? "^" : "", known->members);
      at_ += 2;
      return;
    }
    switch (letter) {
      case 'A':
      case 'z':
      case 'Z':
        out_.append(pattern_, at_, 2);
        at_ += 2;
        return;
      case 'b':
      case 'B':
        word_boundary(letter == 'b' ? Sign::kPositive : Sign::kNegative);
        return;
      default:
        return character_escape();
    }
  }

  void word_boundary(Sign sign) {
    const std::string is_word = fmt::format("[{}]", kWord);
    const char* const other = sign == Sign::kPositive ? "!" : "=";
    const char* const same = sign == Sign::kPositive ? "=" : "!";
    out_ += fmt::format("(?:(?<={0})(?{1}{0})|(?<!{0})(?{2}{0}))", is_word, other, same);
    at_ += 2;
  }

  /// An escape that stands for one character or a property, inside or outside of brackets.
  void character_escape() {
    const char letter = peek(1);
    if (letter == 'p' || letter == 'P') return property();
    if (letter == 'x' || letter == 'u') return code_point();
    if (letter == 'n' || letter == 'r' || letter == 't' || letter == 'f' || letter == 'a' || letter == 'e') {
      out_.append(pattern_, at_, 2);
      at_ += 2;
    } else if (letter == 'v') {
      out_ += "\\x0B";
      at_ += 2;
    } else if (is_letter(letter) || is_digit(letter)) {
      fail(fmt::format("'\\{}'", letter));
    } else {
      const std::size_t num_bytes = sequence_bytes(letter);
      if (num_bytes == 1) out_ += '\\';
      out_.append(pattern_, at_ + 1, num_bytes);
      at_ += 1 + num_bytes;
    }
  }

  void code_point() {
    const char letter = peek(1);
    std::size_t begin = at_ + 2;
    std::size_t end = begin;
    const bool is_braced = letter == 'x' && peek(2) == '{';
    if (is_braced) end = ++begin;
    const std::size_t most = is_braced ? 8 : letter == 'u' ? 4 : 2;
    while (end < pattern_.size() && end - begin < most && is_hex_digit(pattern_[end])) ++end;
    const std::string digits(pattern_.substr(begin, end - begin));
    if (digits.empty() || (letter == 'u' && digits.size() != 4)) fail(fmt::format("'\\{}'", letter));
    if (is_braced) {
      if (end >= pattern_.size() || pattern_[end] != '}') fail("'\\x{' without a '}'");
      ++end;
    } else if (letter == 'x' && std::stoul(digits, nullptr, 16) >= 0x80) {
      fail("'\\x' of a byte that is no character");
    }
    out_ += fmt::format("\\x{{{}}}", digits);
    at_ = end;
  }

  void property() {
    const char letter = peek(1);
    if (peek(2) != '{') fail(fmt::format("'\\{}' without a name in braces", letter));
    const std::size_t end = pattern_.find('}', at_);
    if (end == std::string_view::npos) fail("a property without a '}'");
    std::string_view name = pattern_.substr(at_ + 3, end - at_ - 3);
    Sign sign = letter == 'p' ? Sign::kPositive : Sign::kNegative;
    if (name.starts_with('^')) {
      name.remove_prefix(1);
      sign = sign == Sign::kPositive ? Sign::kNegative : Sign::kPositive;
    }
    if (name.empty()) fail("a property without a name");
    for (const char c : name) {
      if (!is_letter(c) && c != '_') fail(fmt::format("the property '{}'", name));
    }
    // A script by its own name would be its extensions too.
    constexpr std::array<std::string_view, 4> kNoScripts = {"Any", "Alphabetic", "Uppercase", "Lowercase"};
    bool is_script = name.size() > 2;
    for (const std::string_view other : kNoScripts) is_script = is_script && name != other;
    out_ += fmt::format("\\{}{{{}{}}}", sign == Sign::kPositive ? 'p' : 'P', is_script ? "sc:" : "", name);
    at_ = end + 1;
  }

  // --- bracketed classes ---

  void bracketed_class() {
    const std::size_t begin = out_.size();
    const Sign sign = class_items();
    if (!starts_with("&&")) {
      out_ += ']';
      ++at_;
      return;
    }
    // [A&&[^B]]: a character of A that is none of B.
    if (sign == Sign::kNegative) fail("'&&' in a negated class");
    const std::string left = out_.substr(begin) + "]";
    out_.resize(begin);
    at_ += 2;
    if (peek() != '[') fail("'&&' without a class behind it");
    class_items();
    if (peek() != ']' || peek(1) != ']') fail("'&&' with more than a class behind it");
    at_ += 2;
    const std::string right = out_.substr(begin) + "]";
    out_.resize(begin);
    out_ += fmt::format("(?:(?={}){})", right, left);
  }

  /// From '[' to the closing ']' or to '&&', neither of which is read.
  Sign class_items() {
    out_ += '[';
    ++at_;
    Sign sign = Sign::kPositive;
    if (peek() == '^') {
      sign = Sign::kNegative;
      out_ += '^';
      ++at_;
    }
    if (peek() == ']') {
      out_ += "\\]";
      ++at_;
    }
    while (at_ < pattern_.size() && peek() != ']' && !starts_with("&&")) class_item();
    if (at_ >= pattern_.size()) fail("a class without a ']'");
    return sign;
  }

  void class_item() {
    if (starts_with("[:")) return posix_class();
    if (peek() == '[') fail("a class within a class");
    if (peek() != '\\') {
      const std::size_t num_bytes = sequence_bytes(pattern_[at_]);
      out_.append(pattern_, at_, num_bytes);
      at_ += num_bytes;
      return;
    }
    const char letter = peek(1);
    if (letter == '\0') fail("a '\\' at the end");
    if (const auto known = shorthand(letter)) {
      if (known->sign == Sign::kPositive) {
        out_ += known->members;
      } else if (letter == 'S') {
        out_ += "\\P{White_Space}";
      } else if (letter == 'D') {
        out_ += "\\P{Nd}";
      } else {
        fail(fmt::format("'\\{}' in a class", letter));
      }
      at_ += 2;
      return;
    }
    if (letter == 'b') {
      out_ += "\\x08";
      at_ += 2;
      return;
    }
    character_escape();
  }

  void posix_class() {
    struct Posix {
      std::string_view name;
      std::string_view members;
    };
    constexpr std::array<Posix, 5> kKnown = {{{"[:alpha:]", "\\p{Alphabetic}"},
                                              {"[:digit:]", kDigit},
                                              {"[:alnum:]", "\\p{Alphabetic}\\p{Nd}"},
                                              {"[:space:]", kSpace},
                                              {"[:xdigit:]", kHexDigit}}};
    for (const Posix& posix : kKnown) {
      if (!starts_with(posix.name)) continue;
      out_ += posix.members;
      at_ += posix.name.size();
      return;
    }
    fail(fmt::format("the class '{}'", pattern_.substr(at_, pattern_.find(']', at_) - at_ + 1)));
  }

  std::string_view pattern_;
  std::size_t at_ = 0;
  std::string out_;
  std::optional<std::size_t> atom_begin_;  // in out_, of what a quantifier would apply to
  std::vector<std::size_t> group_begins_;
};

}  // namespace

std::string to_pcre2(std::string_view pattern) {
  return Translator(pattern).run();
}

}  // namespace primus::data
