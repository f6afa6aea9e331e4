// primus-worker: trains what a resolved experiment describes, one process a device. primus-cli writes the experiment
// and starts it; it can also be started by hand.
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "base/error.hpp"
#include "train/interrupt.hpp"
#include "train/run.hpp"

namespace {

constexpr const char* kUsage =
    "usage: primus-worker --experiment FILE [--device auto|cpu|cuda]\n"
    "  FILE: the resolved experiment (experiment.json) in a run's folder; `primus-cli train pretrain` writes it.\n";

/// End as the shell shows a process that the signal ended (decision 6): 128 + signal.
int exit_code_of(primus::train::EndOfRun end) {
  if (end == primus::train::EndOfRun::kInterrupted) return 128 + primus::train::pending_interrupt();
  return static_cast<int>(primus::ExitCode::kDone);
}

/// A closed standard stream's number would go to the first file that is opened, which would then take its text.
void open_standard_streams() {
  int descriptor = 0;
  do {
    descriptor = ::open("/dev/null", O_RDWR);
  } while (descriptor >= 0 && descriptor <= STDERR_FILENO);
  if (descriptor > STDERR_FILENO) ::close(descriptor);
}

}  // namespace

int main(int argc, char** argv) {
  open_standard_streams();
  if (argc == 2 && std::strcmp(argv[1], "--help") == 0) {
    std::fputs(kUsage, stdout);
    return static_cast<int>(primus::ExitCode::kDone);
  }
  const bool names_device = argc == 5 && std::strcmp(argv[3], "--device") == 0;
  const auto device = primus::ops::device_choice(names_device ? argv[4] : "auto");
  if ((argc != 3 && !names_device) || std::strcmp(argv[1], "--experiment") != 0 || !device) {
    std::fputs(kUsage, stderr);
    return static_cast<int>(primus::ExitCode::kWrongInput);
  }
  try {
    primus::train::catch_interrupts();
    return exit_code_of(primus::train::run_experiment(argv[2], *device).end);
  } catch (const primus::UserError& error) {
    std::fprintf(stderr, "primus-worker: %s\n", error.what());
    return static_cast<int>(error.exit_code());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "primus-worker: %s\n", error.what());
    return static_cast<int>(primus::ExitCode::kFailedWhileRunning);
  }
}
