#include "train/interrupt.hpp"

#include <unistd.h>

#include <csignal>

namespace primus::train {
namespace {

// USR1 is what batch systems send some time before they end a job.
constexpr int kCaught[] = {SIGINT, SIGTERM, SIGUSR1, SIGUSR2};

volatile std::sig_atomic_t pending_signal = 0;

void on_signal(int signal) {
  pending_signal = signal;
  static constexpr char kText[] = "\nfinishing the step; a second signal ends the run at once\n";
  // Only write() is allowed here; whether the text arrives does not matter.
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, kText, sizeof(kText) - 1);
  // The next one of either kind finds the default action: it ends the process.
  for (const int caught : kCaught) std::signal(caught, SIG_DFL);
}

}  // namespace

void catch_interrupts() {
  for (const int caught : kCaught) std::signal(caught, on_signal);
}

int pending_interrupt() {
  return pending_signal;
}
void clear_interrupt() {
  pending_signal = 0;
}

}  // namespace primus::train
