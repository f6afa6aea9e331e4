#pragma once
// Two families of errors: what a user can mend (UserError, ConfigError) and what only a programmer can (InternalError).
#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace primus {

/// Process exit codes (decision 6); a process ended by signal n gives 128 + n.
enum class ExitCode : int { kDone = 0, kFailedWhileRunning = 1, kWrongInput = 2 };

/// Something the user asked for cannot be done; the message says what to change. Programs end with `exit_code()`.
class UserError : public std::runtime_error {
 public:
  explicit UserError(const std::string& message, ExitCode code = ExitCode::kFailedWhileRunning)
      : std::runtime_error(message), code_(code) {}
  ExitCode exit_code() const { return code_; }

 private:
  ExitCode code_;
};

/// The computation met NaN or infinity; a training step that did is stopped or left out, as the experiment says.
class NonFiniteError : public UserError {
 public:
  using UserError::UserError;
};

/// One fault in an experiment, a preset or a command line. Empty fields are left out of the text.
struct Problem {
  std::string file;      // path, or "command line"
  int line = 0;          // 1-based; 0: unknown
  int column = 0;        // 1-based; 0: unknown
  std::string key;       // full name, for instance modules.pre_trainer.overrides.lr
  std::string message;   // what is wrong, in one sentence
  std::string expected;  // for instance "integer >= 1"
  std::string found;     // the text that was given
  std::string nearest;   // nearest valid name, or the change that would make it legal
  std::string excerpt;   // the text around the fault and a caret below it, in lines of their own
};

/// Text of a problem: "file:line: key: message (expected …, found …); did you mean '…'?", and the excerpt below it.
std::string to_text(const Problem& problem);

/// Wrong arguments or configuration: every problem found in one run. Exit code 2.
class ConfigError : public UserError {
 public:
  explicit ConfigError(std::vector<Problem> problems);
  const std::vector<Problem>& problems() const { return problems_; }

 private:
  enum class Checked { kYes };  // every field can be shown on a terminal
  ConfigError(std::vector<Problem> problems, Checked);

  std::vector<Problem> problems_;
};

/// A broken invariant of ours; carries the condition and its place.
class InternalError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

namespace detail {
[[noreturn]] void throw_internal(const char* file, int line, const char* condition, const std::string& message);
}  // namespace detail

}  // namespace primus

/// Internal check that stays in every build: PRIMUS_CHECK(condition, "format {}", value).
#define PRIMUS_CHECK(condition, ...)                                                                   \
  do {                                                                                                 \
    if (!(condition)) [[unlikely]]                                                                     \
      ::primus::detail::throw_internal(__FILE__, __LINE__, #condition, ::fmt::format("" __VA_ARGS__)); \
  } while (false)

/// Internal check on a hot path: kept in relassert, asan and ci builds only.
#ifdef PRIMUS_INTERNAL_CHECKS
#define PRIMUS_DCHECK(condition, ...) PRIMUS_CHECK(condition, __VA_ARGS__)
#else
#define PRIMUS_DCHECK(condition, ...) \
  do {                                \
  } while (false)
#endif
