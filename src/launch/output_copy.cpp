#include "launch/output_copy.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "base/error.hpp"
#include "base/files.hpp"

namespace primus::launch {
namespace {

// The copier waits for every process that can still print; one that stays behind must not hold the launcher.
constexpr int kMostWaits = 200;
constexpr useconds_t kWaitMicroseconds = 10'000;

struct Stream {
  int from = -1;
  int to = -1;  // -1: only to the file
};

/// 0, or the system's reason why not all of it could be written.
int write_all(int descriptor, const char* data, ssize_t size) {
  while (size > 0) {
    const ssize_t written = write(descriptor, data, static_cast<std::size_t>(size));
    if (written < 0 && errno != EINTR) return errno;
    if (written < 0) continue;
    data += written;
    size -= written;
  }
  return 0;
}

/// The log file of the copier, which says once that it cannot be written.
class LogWriter {
 public:
  LogWriter(int file, int complaints) : file_(file), complaints_(complaints) {}

  void write(const char* data, ssize_t size) {
    const int reason = write_all(file_, data, size);
    if (reason == 0 || has_complained_) return;
    has_complained_ = true;
    const std::string text = fmt::format("note: the log file cannot be written: {}\n", std::strerror(reason));
    write_all(complaints_, text.data(), static_cast<ssize_t>(text.size()));
  }

 private:
  int file_;
  int complaints_;
  bool has_complained_ = false;
};

/// The copier's whole life: until nobody can write any more.
[[noreturn]] void copy_streams(std::array<Stream, 2> streams, int file) {
  // Ctrl-C is for the workers, whose last words are copied as well.
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGTSTP}) std::signal(signal, SIG_IGN);
  LogWriter log(file, streams[1].to);
  std::array<char, 1 << 14> buffer;
  while (streams[0].from >= 0 || streams[1].from >= 0) {
    std::array<pollfd, 2> ready = {{{streams[0].from, POLLIN, 0}, {streams[1].from, POLLIN, 0}}};
    if (poll(ready.data(), ready.size(), -1) < 0 && errno != EINTR) _exit(1);
    for (std::size_t i = 0; i < streams.size(); ++i) {
      if (ready[i].revents == 0) continue;
      const ssize_t size = read(streams[i].from, buffer.data(), buffer.size());
      if (size < 0 && errno == EINTR) continue;
      if (size <= 0) {
        close(streams[i].from);
        streams[i].from = -1;
        continue;
      }
      if (streams[i].to >= 0) write_all(streams[i].to, buffer.data(), size);
      log.write(buffer.data(), size);
    }
  }
  _exit(0);
}

int open_file(const std::string& path) {
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  if (!folder.empty()) make_folder(folder);
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (file < 0) throw UserError(fmt::format("log file {} cannot be written: {}", path, std::strerror(errno)));
  return file;
}

}  // namespace

void OutputCopy::start(const std::string& file, Show show) {
  std::fflush(stdout);
  std::fflush(stderr);
  const int log = file.empty() ? -1 : open_file(file);
  stdout_before_ = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);
  stderr_before_ = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3);
  if (log < 0) {
    if (show == Show::kAll) return;
    const int nothing = open("/dev/null", O_WRONLY | O_CLOEXEC);
    dup2(nothing, STDOUT_FILENO);
    close(nothing);
    return;
  }
  int out[2];
  int err[2];
  if (pipe2(out, O_CLOEXEC) != 0 || pipe2(err, O_CLOEXEC) != 0)
    throw UserError(fmt::format("no pipe to the log file: {}", std::strerror(errno)));
  copier_ = fork();
  if (copier_ < 0) throw UserError(fmt::format("log file {}: no process to write it: {}", file, std::strerror(errno)));
  if (copier_ == 0) {
    close(out[1]);
    close(err[1]);
    const int shown = show == Show::kAll ? stdout_before_ : -1;
    copy_streams({{{out[0], shown}, {err[0], stderr_before_}}}, log);
  }
  dup2(out[1], STDOUT_FILENO);
  dup2(err[1], STDERR_FILENO);
  for (const int descriptor : {out[0], out[1], err[0], err[1], log}) close(descriptor);
}

OutputCopy::~OutputCopy() {
  if (stdout_before_ < 0) return;
  std::fflush(stdout);
  std::fflush(stderr);
  dup2(stdout_before_, STDOUT_FILENO);
  dup2(stderr_before_, STDERR_FILENO);
  close(stdout_before_);
  close(stderr_before_);
  if (copier_ < 0) return;
  for (int i = 0; i < kMostWaits && waitpid(copier_, nullptr, WNOHANG) == 0; ++i) usleep(kWaitMicroseconds);
}

}  // namespace primus::launch
