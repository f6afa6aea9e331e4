#include "train/interrupt.hpp"

#include <unistd.h>

#include <csignal>

namespace primus::train {
namespace {

volatile std::sig_atomic_t pending_signal = 0;

void on_signal(int signal) {
  pending_signal = signal;
  static constexpr char kText[] = "\nfinishing the step; a second signal ends the run at once\n";
  // Only write() is allowed here; whether the text arrives does not matter.
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, kText, sizeof(kText) - 1);
  // The next one of either kind finds the default action: it ends the process.
  std::signal(SIGINT, SIG_DFL);
  std::signal(SIGTERM, SIG_DFL);
}

}  // namespace

void catch_interrupts() {
  std::signal(SIGINT, on_signal);
  std::signal(SIGTERM, on_signal);
}

int pending_interrupt() {
  return pending_signal;
}
void clear_interrupt() {
  pending_signal = 0;
}

}  // namespace primus::train
