#include "launch/worker_process.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/error.hpp"
#include "launch/environment.hpp"

namespace primus::launch {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr int kForwarded[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGTSTP, SIGCONT};
// Time for a worker to finish its step after another one has failed.
constexpr std::chrono::seconds kGrace{20};

// Blocks the signals that the watch loop waits for; workers get the mask from before.
class SignalMask {
 public:
  SignalMask() {
    sigemptyset(&waited_);
    sigaddset(&waited_, SIGCHLD);
    for (const int signal : kForwarded) sigaddset(&waited_, signal);
    sigprocmask(SIG_BLOCK, &waited_, &before_);
  }
  ~SignalMask() { sigprocmask(SIG_SETMASK, &before_, nullptr); }
  SignalMask(const SignalMask&) = delete;
  SignalMask& operator=(const SignalMask&) = delete;

  const sigset_t& waited() const { return waited_; }
  const sigset_t& before() const { return before_; }

 private:
  sigset_t waited_;
  sigset_t before_;
};

// In the child, between fork and exec: nothing but system calls and what fork has copied.
[[noreturn]] void become_worker(const WorkerCommand& command, pid_t group, pid_t launcher, const sigset_t& mask,
                                int report) {
  setpgid(0, group);
  // A launcher that is killed takes its workers along; the check closes the gap before the request took effect.
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != launcher) _exit(128 + SIGTERM);
  sigprocmask(SIG_SETMASK, &mask, nullptr);
  for (const auto& [name, value] : command.environment) setenv(name.c_str(), value.c_str(), 1);
  std::vector<char*> arguments;
  arguments.push_back(const_cast<char*>(command.program.c_str()));
  for (const std::string& argument : command.arguments) arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  execv(command.program.c_str(), arguments.data());
  const int reason = errno;
  [[maybe_unused]] const ssize_t written = write(report, &reason, sizeof(reason));
  _exit(127);
}

// Starts a worker; `group` 0 makes it the leader of a new process group.
pid_t start(const WorkerCommand& command, pid_t group, const SignalMask& mask) {
  int report[2];
  if (pipe2(report, O_CLOEXEC) != 0) throw UserError(fmt::format("no pipe to a worker: {}", std::strerror(errno)));
  const pid_t launcher = getpid();
  const pid_t child = fork();
  if (child == 0) become_worker(command, group, launcher, mask.before(), report[1]);
  const int fork_reason = errno;
  close(report[1]);
  int reason = 0;
  const bool failed = child > 0 && read(report[0], &reason, sizeof(reason)) == sizeof(reason);
  close(report[0]);
  if (child < 0) throw UserError(fmt::format("{} cannot be started: {}", command.program, std::strerror(fork_reason)));
  // Both sides set the group, so that it exists whoever comes first.
  setpgid(child, group == 0 ? child : group);
  if (failed) {
    waitpid(child, nullptr, 0);
    throw UserError(fmt::format("{} cannot be started: {}", command.program, std::strerror(reason)));
  }
  return child;
}

class WorkerGroup {
 public:
  explicit WorkerGroup(const SignalMask& mask) : mask_(mask) {}

  void start_all(std::span<const WorkerCommand> commands) {
    try {
      for (const WorkerCommand& command : commands) {
        const pid_t child = start(command, group_, mask_);
        if (group_ == 0) group_ = child;
        running_.push_back(child);
        workers_.push_back(child);
      }
    } catch (const UserError&) {
      if (!running_.empty()) {
        kill(-group_, SIGKILL);
        while (waitpid(-group_, nullptr, 0) > 0) continue;
      }
      throw;
    }
  }

  WorkerOutcome watch() {
    while (!running_.empty()) {
      const int signal = next_signal();
      if (signal == SIGCHLD) {
        reap();
      } else if (signal > 0) {
        forward(signal);
      } else if (has_deadline() && Clock::now() >= deadline_) {
        kill(-group_, SIGKILL);
        deadline_ = Clock::time_point::max();
      }
    }
    return outcome_;
  }

 private:
  bool has_deadline() const { return deadline_ != Clock::time_point::max(); }

  int next_signal() const {
    if (!has_deadline()) return sigwaitinfo(&mask_.waited(), nullptr);
    const auto left = std::max(deadline_ - Clock::now(), Clock::duration::zero());
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(left);
    timespec timeout{};
    timeout.tv_sec = seconds.count();
    timeout.tv_nsec = std::chrono::duration_cast<std::chrono::nanoseconds>(left - seconds).count();
    return sigtimedwait(&mask_.waited(), nullptr, &timeout);
  }

  void forward(int signal) const {
    kill(-group_, signal);
    // The terminal's stop key stops the launcher as well; SIGCONT wakes it and is passed on in its turn.
    if (signal == SIGTSTP) raise(SIGSTOP);
  }

  void reap() {
    int status = 0;
    pid_t ended = 0;
    while ((ended = waitpid(-group_, &status, WNOHANG)) > 0) {
      std::erase(running_, ended);
      if (outcome_.exit_code != 0 || status == 0) continue;
      outcome_.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
      outcome_.exit_code = outcome_.signal ? 128 + outcome_.signal : WEXITSTATUS(status);
      outcome_.worker = static_cast<std::size_t>(std::find(workers_.begin(), workers_.end(), ended) - workers_.begin());
      if (running_.empty()) return;
      kill(-group_, SIGTERM);
      deadline_ = Clock::now() + kGrace;
    }
  }

  const SignalMask& mask_;
  pid_t group_ = 0;
  std::vector<pid_t> workers_;
  std::vector<pid_t> running_;
  Clock::time_point deadline_ = Clock::time_point::max();  // max: nobody was asked to end
  WorkerOutcome outcome_;
};

}  // namespace

fs::path find_worker() {
  fs::path program;
  std::string hint;
  if (const char* named = std::getenv("PRIMUS_WORKER"); named && *named) {
    program = named;
    hint = "PRIMUS_WORKER names it";
  } else {
    std::error_code error;
    program = fs::read_symlink("/proc/self/exe", error).parent_path() / "primus-worker";
    hint = "run `make build`, or set PRIMUS_WORKER";
  }
  const bool may_be_run = access(program.c_str(), X_OK) == 0;
  const std::string reason = may_be_run ? "it is a folder" : std::strerror(errno);
  std::error_code error;
  if (may_be_run && !fs::is_directory(program, error)) return program;
  throw UserError(fmt::format("worker program {} cannot be executed: {} ({})", program.string(), reason, hint),
                  ExitCode::kWrongInput);
}

std::string shell_text(const WorkerCommand& command) {
  const auto quoted = [](const std::string& word) {
    constexpr std::string_view kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./=:,+@%";
    if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) return word;
    std::string result = "'";
    for (const char c : word) result += c == '\'' ? std::string("'\\''") : std::string(1, c);
    return result + "'";
  };
  std::string text;
  for (const auto& [name, value] : command.environment)
    text += fmt::format("{}={} ", name, is_secret(name) ? "(hidden)" : quoted(value));
  text += quoted(command.program);
  for (const std::string& argument : command.arguments) text += fmt::format(" {}", quoted(argument));
  return text;
}

WorkerOutcome run_workers(std::span<const WorkerCommand> workers) {
  const SignalMask mask;
  WorkerGroup group(mask);
  group.start_all(workers);
  return group.watch();
}

}  // namespace primus::launch
