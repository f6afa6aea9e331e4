#include "data/tokenizers/regex.hpp"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>

#include "base/error.hpp"
#include "data/tokenizers/regex_syntax.hpp"

namespace primus::data {
namespace {

// An expression that repeats a group needs stack for each repetition; this is enough for lines of some megabytes.
constexpr std::size_t kFirstStackBytes = std::size_t{32} << 10;
constexpr std::size_t kLargestStackBytes = std::size_t{64} << 20;
// Backtracking steps: a pattern of a tokenizer needs a few a character.
constexpr std::uint32_t kMostSteps = 200'000'000;

std::string text_of(int code) {
  std::array<PCRE2_UCHAR, 256> buffer{};
  pcre2_get_error_message(code, buffer.data(), buffer.size());
  return reinterpret_cast<const char*>(buffer.data());
}

}  // namespace

struct RegexWorkspace::Parts {
  pcre2_match_data* match = pcre2_match_data_create(1, nullptr);
  pcre2_match_context* context = pcre2_match_context_create(nullptr);
  pcre2_jit_stack* stack = pcre2_jit_stack_create(kFirstStackBytes, kLargestStackBytes, nullptr);

  Parts() {
    PRIMUS_CHECK(match != nullptr && context != nullptr, "no memory for matching");
    pcre2_set_match_limit(context, kMostSteps);
    if (stack != nullptr) pcre2_jit_stack_assign(context, nullptr, stack);
  }
  Parts(const Parts&) = delete;
  Parts& operator=(const Parts&) = delete;
  ~Parts() {
    pcre2_match_data_free(match);
    pcre2_match_context_free(context);
    pcre2_jit_stack_free(stack);
  }
};

RegexWorkspace::RegexWorkspace() : parts_(std::make_unique<Parts>()) {}
RegexWorkspace::~RegexWorkspace() = default;

struct Regex::Code {
  pcre2_code* code = nullptr;
  enum class Jit { kYes, kNo } jit = Jit::kNo;
  std::string pattern;  // as written, for messages

  Code() = default;
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;
  ~Code() { pcre2_code_free(code); }
};

Regex::Regex(std::string_view pattern) : code_(std::make_unique<Code>()) {
  code_->pattern = pattern;
  const std::string translated = to_pcre2(pattern);
  pcre2_compile_context* const context = pcre2_compile_context_create(nullptr);
  PRIMUS_CHECK(context != nullptr, "no memory for a pattern");
  pcre2_set_newline(context, PCRE2_NEWLINE_LF);
  int error = 0;
  std::size_t place = 0;
  constexpr std::uint32_t kOptions = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NO_UTF_CHECK;
  code_->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(), kOptions, &error,
                              &place, context);
  pcre2_compile_context_free(context);
  if (code_->code == nullptr) throw UnknownSyntax(text_of(error));
  if (pcre2_jit_compile(code_->code, PCRE2_JIT_COMPLETE) == 0) code_->jit = Code::Jit::kYes;
}

Regex::~Regex() = default;
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;

std::optional<Match> Regex::find(std::string_view text, std::size_t from, RegexWorkspace& workspace) const {
  RegexWorkspace::Parts& parts = *workspace.parts_;
  const auto* const subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  const int result =
      code_->jit == Code::Jit::kYes
          ? pcre2_jit_match(code_->code, subject, text.size(), from, 0, parts.match, parts.context)
          : pcre2_match(code_->code, subject, text.size(), from, PCRE2_NO_UTF_CHECK, parts.match, parts.context);
  if (result == PCRE2_ERROR_NOMATCH) return std::nullopt;
  if (result < 0) {
    throw UserError(fmt::format("the pattern '{}' cannot be matched on a text of {} bytes: {}", code_->pattern,
                                text.size(), text_of(result)));
  }
  const PCRE2_SIZE* const places = pcre2_get_ovector_pointer(parts.match);
  return Match{places[0], places[1]};
}

}  // namespace primus::data
