#pragma once
// Regular expressions as tokenizer files write them (Oniguruma's Ruby-like syntax), in PCRE2's syntax.
#include <stdexcept>
#include <string>
#include <string_view>

namespace primus::data {

/// A part of an expression that has no translation; `what()` names it.
class UnknownSyntax : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The same expression for PCRE2 with PCRE2_UTF, PCRE2_UCP and PCRE2_MULTILINE. What the two read differently is
/// written out: \s, \w, \d, \h, \v, \b, scripts, sets with &&, intervals followed by a plus. Throws UnknownSyntax.
std::string to_pcre2(std::string_view pattern);

}  // namespace primus::data
