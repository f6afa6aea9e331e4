#pragma once
// Regular expressions over UTF-8, compiled to machine code by PCRE2.
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace primus::data {

/// A match's bytes.
struct Match {
  std::size_t begin = 0;
  std::size_t end = 0;
};

/// What one thread needs to match; not for several at once.
class RegexWorkspace {
 public:
  RegexWorkspace();
  ~RegexWorkspace();
  RegexWorkspace(const RegexWorkspace&) = delete;
  RegexWorkspace& operator=(const RegexWorkspace&) = delete;

 private:
  friend class Regex;
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

/// An expression in the syntax of tokenizer files. Safe to use from several threads, each with its own workspace.
class Regex {
 public:
  /// Throws UnknownSyntax naming the part that is not understood.
  explicit Regex(std::string_view pattern);
  ~Regex();
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;

  /// The first match at or behind `from`. Throws UserError when the expression needs too much time or memory.
  std::optional<Match> find(std::string_view text, std::size_t from, RegexWorkspace& workspace) const;

 private:
  struct Code;
  std::unique_ptr<Code> code_;
};

/// Calls visit(Match) for each match from left to right as Oniguruma's iterator does: behind an empty match the search
/// goes on one character later, and an empty match at the end of the last one is passed over.
template <typename Visit>
void for_each_match(const Regex& regex, std::string_view text, RegexWorkspace& workspace, Visit visit) {
  std::size_t from = 0;
  std::optional<std::size_t> last_end;
  while (from <= text.size()) {
    const auto match = regex.find(text, from, workspace);
    if (!match) return;
    if (match->begin == match->end) {
      from = match->end + 1;
      while (from < text.size() && (static_cast<unsigned char>(text[from]) & 0xC0) == 0x80) ++from;
      if (last_end == match->end) continue;
    } else {
      from = match->end;
    }
    last_end = match->end;
    visit(*match);
  }
}

}  // namespace primus::data
