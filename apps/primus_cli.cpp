// primus-cli: everything that needs no tensors.
#include <cstdio>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "cli/run.hpp"

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + (argc > 0 ? 1 : 0), argv + argc);
  const int code = primus::cli::run(words);
  // What was printed may still wait in the buffer; a full disk is a failure like any other.
  const bool is_written = std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
  if (code != 0 || is_written) return code;
  std::fputs("error: standard output cannot be written\n", stderr);
  return static_cast<int>(primus::ExitCode::kFailedWhileRunning);
}
