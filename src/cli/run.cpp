#include "cli/run.hpp"

#include <exception>

#include "base/error.hpp"
#include "cli/front.hpp"
#include "cli/messages.hpp"

namespace primus::cli {

int run(std::span<const std::string> words) {
  // Ends after the last message, so that a log file holds it too.
  launch::OutputCopy output;
  const Format format = error_format(words);
  try {
    return run_front(words, output);
  } catch (const ConfigError& error) {
    print_failure(error.problems(), error.exit_code(), format);
    return static_cast<int>(error.exit_code());
  } catch (const UserError& error) {
    print_failure(error.what(), error.exit_code(), format);
    return static_cast<int>(error.exit_code());
  } catch (const std::exception& error) {
    print_failure(error.what(), ExitCode::kFailedWhileRunning, format);
    return static_cast<int>(ExitCode::kFailedWhileRunning);
  }
}

}  // namespace primus::cli
