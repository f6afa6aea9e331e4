// primus-cli: everything that needs no tensors.
#include <fcntl.h>

#include <cstdio>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "cli/run.hpp"

namespace {

// A stream that the caller closed is a number that the next opened file would get, and with it what is printed. Writing
// to a closed standard output still fails, as it should.
void keep_streams_apart() {
  constexpr int kNothing[] = {O_RDONLY, O_RDONLY, O_WRONLY};
  for (int stream = 0; stream < 3; ++stream) {
    if (fcntl(stream, F_GETFD) == -1 && open("/dev/null", kNothing[stream]) != stream) return;
  }
}

}  // namespace

int main(int argc, char** argv) {
  keep_streams_apart();
  const std::vector<std::string> words(argv + (argc > 0 ? 1 : 0), argv + argc);
  const int code = primus::cli::run(words);
  // What was printed may still wait in the buffer; a full disk is a failure like any other.
  const bool is_written = std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
  if (code != 0 || is_written) return code;
  std::fputs("error: standard output cannot be written\n", stderr);
  return static_cast<int>(primus::ExitCode::kFailedWhileRunning);
}
