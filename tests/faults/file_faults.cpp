// Preloaded into a program under test: makes file operations on chosen paths fail, stop short, take long, or end the
// process. What happens is said by PRIMUS_FILE_FAULT, fields between semicolons:
//   path=TEXT     operations on paths that contain this count, numbered from 1 in the order of their calls
//   at=N          the operation that it happens to; without it: all of them
//   until=N       and all up to this one
//   op=NAME       only operations of this name (open, write, fsync, rename, mkdir, symlink, unlink) are counted
//   do=ACTION     kill (SIGKILL, before the operation), an error's name (ENOSPC, EIO, EROFS, EDQUOT, EACCES, EINTR),
//                 short (a write takes half of its bytes), slow (50 ms each), count (nothing)
//   report=FILE   the number of operations so far is written there
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

namespace {

struct Fault {
  std::string path;
  std::string op;
  std::string action;
  std::string report;
  long at = 0;
  long until = 0;
};

std::string field(const std::string& text, const std::string& name) {
  const std::size_t begin = (";" + text).find(";" + name + "=");
  if (begin == std::string::npos) return "";
  const std::size_t value = begin + name.size() + 1;
  return text.substr(value, text.find(';', value) - value);
}

/// nullptr where nothing was asked for. Made once, at the first operation.
const Fault* fault() {
  static const Fault* const kFault = []() -> const Fault* {
    const char* text = std::getenv("PRIMUS_FILE_FAULT");
    if (text == nullptr) return nullptr;
    auto* read = new Fault{field(text, "path"), field(text, "op"), field(text, "do"), field(text, "report")};
    read->at = read->until = std::atol(field(text, "at").c_str());
    if (const std::string until = field(text, "until"); !until.empty()) read->until = std::atol(until.c_str());
    return read;
  }();
  return kFault;
}

std::atomic<long> num_operations{0};

template <typename Function>
Function next(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

using OpenFunction = int (*)(const char*, int, ...);
using WriteFunction = ssize_t (*)(int, const void*, std::size_t);

void write_report(const std::string& path, long number) {
  if (path.empty()) return;
  const int file = next<OpenFunction>("open")(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  const std::string text = std::to_string(number) + "\n";
  if (file < 0 || next<WriteFunction>("write")(file, text.data(), text.size()) < 0) std::abort();
  ::close(file);
}

int error_number(std::string_view name) {
  struct Error {
    std::string_view name;
    int number;
  };
  constexpr std::array<Error, 6> kErrors = {
      {{"ENOSPC", ENOSPC}, {"EIO", EIO}, {"EROFS", EROFS}, {"EDQUOT", EDQUOT}, {"EACCES", EACCES}, {"EINTR", EINTR}}};
  for (const Error& error : kErrors) {
    if (error.name == name) return error.number;
  }
  return 0;
}

enum class Verdict { kGoOn, kFail, kShorten };

/// One operation on a path: counts it, and says what is to become of it. errno is set where it fails.
Verdict meet(const char* op, const char* path) {
  const Fault* asked = fault();
  if (asked == nullptr || path == nullptr || std::strstr(path, asked->path.c_str()) == nullptr) return Verdict::kGoOn;
  if (!asked->op.empty() && asked->op != op) return Verdict::kGoOn;
  const long number = ++num_operations;
  write_report(asked->report, number);
  if (asked->at != 0 && (number < asked->at || number > asked->until)) return Verdict::kGoOn;
  if (asked->action == "kill") ::raise(SIGKILL);
  if (asked->action == "slow") ::usleep(50 * 1000);
  if (asked->action == "short") return Verdict::kShorten;
  const int error = error_number(asked->action);
  if (error == 0) return Verdict::kGoOn;
  // A call that a signal interrupts comes through when it is made again.
  if (error == EINTR && number % 2 == 0) return Verdict::kGoOn;
  errno = error;
  return Verdict::kFail;
}

Verdict meet_file(const char* op, int file) {
  if (fault() == nullptr) return Verdict::kGoOn;
  std::array<char, 1024> path;
  const std::string link = "/proc/self/fd/" + std::to_string(file);
  const ssize_t length = ::readlink(link.c_str(), path.data(), path.size() - 1);
  if (length < 0) return Verdict::kGoOn;
  path[static_cast<std::size_t>(length)] = '\0';
  return meet(op, path.data());
}

std::size_t shortened(Verdict verdict, std::size_t size) {
  return verdict == Verdict::kShorten && size > 1 ? size / 2 : size;
}

}  // namespace

extern "C" {

int open(const char* path, int flags, ...) {
  va_list list;
  va_start(list, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(list, mode_t) : 0;
  va_end(list);
  if ((flags & O_CREAT) != 0 && meet("open", path) == Verdict::kFail) return -1;
  return next<OpenFunction>("open")(path, flags, mode);
}

ssize_t write(int file, const void* bytes, size_t size) {
  const Verdict verdict = meet_file("write", file);
  return verdict == Verdict::kFail ? -1 : next<WriteFunction>("write")(file, bytes, shortened(verdict, size));
}

ssize_t pwrite(int file, const void* bytes, size_t size, off_t offset) {
  using Function = ssize_t (*)(int, const void*, std::size_t, off_t);
  const Verdict verdict = meet_file("write", file);
  return verdict == Verdict::kFail ? -1 : next<Function>("pwrite")(file, bytes, shortened(verdict, size), offset);
}

ssize_t pwrite64(int file, const void* bytes, size_t size, off_t offset) {
  return pwrite(file, bytes, size, offset);
}

int fsync(int file) {
  return meet_file("fsync", file) == Verdict::kFail ? -1 : next<int (*)(int)>("fsync")(file);
}

int rename(const char* from, const char* to) noexcept {
  using Function = int (*)(const char*, const char*);
  return meet("rename", to) == Verdict::kFail ? -1 : next<Function>("rename")(from, to);
}

int renameat2(int from_folder, const char* from, int to_folder, const char* to, unsigned int flags) noexcept {
  using Function = int (*)(int, const char*, int, const char*, unsigned int);
  if (meet("rename", to) == Verdict::kFail) return -1;
  return next<Function>("renameat2")(from_folder, from, to_folder, to, flags);
}

int mkdir(const char* path, mode_t mode) noexcept {
  using Function = int (*)(const char*, mode_t);
  return meet("mkdir", path) == Verdict::kFail ? -1 : next<Function>("mkdir")(path, mode);
}

int symlink(const char* target, const char* path) noexcept {
  using Function = int (*)(const char*, const char*);
  return meet("symlink", path) == Verdict::kFail ? -1 : next<Function>("symlink")(target, path);
}

int unlink(const char* path) noexcept {
  return meet("unlink", path) == Verdict::kFail ? -1 : next<int (*)(const char*)>("unlink")(path);
}

int unlinkat(int folder, const char* path, int flags) noexcept {
  using Function = int (*)(int, const char*, int);
  return meet("unlink", path) == Verdict::kFail ? -1 : next<Function>("unlinkat")(folder, path, flags);
}

}  // extern "C"
