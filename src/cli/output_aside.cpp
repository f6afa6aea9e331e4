#include "cli/output_aside.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>

namespace primus::cli {

OutputAside::OutputAside() {
  std::fflush(stdout);
  stdout_before_ = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);
  dup2(STDERR_FILENO, STDOUT_FILENO);
}

OutputAside::~OutputAside() {
  std::fflush(stdout);
  if (stdout_before_ < 0) return;
  dup2(stdout_before_, STDOUT_FILENO);
  close(stdout_before_);
}

}  // namespace primus::cli
