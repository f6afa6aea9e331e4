#include "base/error.hpp"

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

}  // namespace

std::string to_text(const Problem& problem) {
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
  return text;
}

ConfigError::ConfigError(std::vector<Problem> problems)
    : UserError(joined_text(problems), ExitCode::kWrongInput), problems_(std::move(problems)) {}

namespace detail {
void throw_internal(const char* file, int line, const char* condition, const std::string& message) {
  throw InternalError(fmt::format("internal error at {}:{}: {} does not hold{}{}", file, line, condition,
                                  message.empty() ? "" : ": ", message));
}
}  // namespace detail

}  // namespace primus
