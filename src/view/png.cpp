#include "view/png.hpp"

#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <system_error>

#include "base/error.hpp"
#include "base/files.hpp"

extern char** environ;

namespace primus::view {
namespace {

/// A file that is gone when the work is done.
class Passing {
 public:
  explicit Passing(std::filesystem::path path) : path_(std::move(path)) {}
  ~Passing() {
    std::error_code error;
    std::filesystem::remove(path_, error);
  }
  Passing(const Passing&) = delete;
  Passing& operator=(const Passing&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

/// Exit status of a program that was waited for; -1: it ended otherwise.
int status_of(pid_t child) {
  int status = 0;
  while (waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) return -1;
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

}  // namespace

void write_png(std::string_view svg, const std::filesystem::path& file, double scale) {
  // The beginnings of both names are the target's, so that both lie on its disk.
  const Passing source(file.string() + ".tmp.svg");
  const Passing target(file.string() + ".tmp.png");
  write_file(source.path(), svg);
  const std::string zoom = fmt::format("--zoom={}", scale);
  const std::string output = "--output=" + target.path().string();
  std::array<std::string, 5> words = {"rsvg-convert", "--unlimited", zoom, output, source.path().string()};
  std::array<char*, 6> arguments{};
  for (std::size_t i = 0; i < words.size(); ++i) arguments[i] = words[i].data();
  pid_t child = 0;
  const int failure = posix_spawnp(&child, "rsvg-convert", nullptr, nullptr, arguments.data(), environ);
  const int status = failure == 0 ? status_of(child) : -1;
  if (failure == ENOENT || status == 127) {
    throw UserError(
        fmt::format("{}: PNG needs the program rsvg-convert, which is not there (Debian: librsvg2-bin); "
                    "FILE.svg needs nothing",
                    file.string()));
  }
  if (status != 0) throw UserError(fmt::format("{}: rsvg-convert failed", file.string()));
  std::filesystem::rename(target.path(), file);
}

}  // namespace primus::view
