#include "base/error.hpp"

#include <algorithm>

#include "base/text.hpp"
#include "base/visible.hpp"

namespace primus {
namespace {

std::string joined_text(const std::vector<Problem>& problems) {
  std::string text;
  for (const Problem& problem : problems) {
    if (!text.empty()) text += '\n';
    text += to_text(problem);
  }
  return text;
}

// Texts come from files and command lines: what a terminal would act on, and what is not UTF-8, stands as '?'.
void make_printable(std::string& text) {
  const bool has_characters = is_utf8(text);
  for (char& c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const bool is_control = (byte < 0x20 && c != '\n') || byte == 0x7f;
    if (is_control || (byte >= 0x80 && !has_characters)) c = '?';
  }
}

std::vector<Problem> printable(std::vector<Problem> problems) {
  for (Problem& problem : problems) {
    for (std::string Problem::*field : {&Problem::file, &Problem::key, &Problem::message, &Problem::expected,
                                        &Problem::found, &Problem::nearest, &Problem::excerpt}) {
      make_printable(problem.*field);
    }
  }
  return problems;
}

}  // namespace

std::string to_text(const Problem& raw) {
  Problem problem = raw;
  for (std::string* part :
       {&problem.file, &problem.key, &problem.message, &problem.expected, &problem.found, &problem.nearest}) {
    *part = visible(*part);
  }
  std::string text;
  if (!problem.file.empty()) {
    text += problem.file;
    if (problem.line > 0) text += fmt::format(":{}", problem.line);
    if (problem.line > 0 && problem.column > 0) text += fmt::format(":{}", problem.column);
    text += ": ";
  }
  if (!problem.key.empty()) text += problem.key + ": ";
  text += problem.message;
  if (!problem.expected.empty() && !problem.found.empty()) {
    text += fmt::format(" (expected {}, found {})", problem.expected, problem.found);
  } else if (!problem.expected.empty()) {
    text += fmt::format(" (expected {})", problem.expected);
  } else if (!problem.found.empty()) {
    text += fmt::format(" (found {})", problem.found);
  }
  if (!problem.nearest.empty()) text += fmt::format("; {}", problem.nearest);
  for (std::size_t begin = 0; begin < problem.excerpt.size();) {
    const std::size_t end = std::min(problem.excerpt.find('\n', begin), problem.excerpt.size());
    text += "\n      " + problem.excerpt.substr(begin, end - begin);
    begin = end + 1;
  }
  return text;
}

ConfigError::ConfigError(std::vector<Problem> problems) : ConfigError(printable(std::move(problems)), Checked::kYes) {}

ConfigError::ConfigError(std::vector<Problem> problems, Checked)
    : UserError(joined_text(problems), ExitCode::kWrongInput), problems_(std::move(problems)) {}

namespace detail {
void throw_internal(const char* file, int line, const char* condition, const std::string& message) {
  throw InternalError(fmt::format("internal error at {}:{}: {} does not hold{}{}", file, line, condition,
                                  message.empty() ? "" : ": ", message));
}
}  // namespace detail

}  // namespace primus
