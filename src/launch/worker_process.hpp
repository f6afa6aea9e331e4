#pragma once
// Starting workers and watching them: their own process group, the launcher's terminal, signals passed on.
#include <cstddef>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace primus::launch {

/// One process to start; `environment` is added to the launcher's own.
struct WorkerCommand {
  std::string program;
  std::vector<std::string> arguments;
  std::map<std::string, std::string> environment;
};

/// How the run ended.
struct WorkerOutcome {
  int exit_code = 0;       // of the first worker that failed; 128 + n if signal n ended it
  int signal = 0;          // that n, else 0
  std::size_t worker = 0;  // which worker that was
};

/// The worker program: PRIMUS_WORKER, else `primus-worker` beside the running program. Throws UserError if it is not
/// there or cannot be executed.
std::filesystem::path find_worker();

/// The command as a shell would take it; values of keys and tokens are hidden.
std::string shell_text(const WorkerCommand& command);

/// Start all workers in one new process group, pass SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGTSTP and SIGCONT on to them
/// and wait until the last has ended. When one fails, the others are asked to end, then made to.
/// Call it from a program without other threads. Throws UserError if a worker cannot be started.
WorkerOutcome run_workers(std::span<const WorkerCommand> workers);

}  // namespace primus::launch
