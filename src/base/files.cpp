#include "base/files.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

#include "base/error.hpp"

namespace primus {

std::string read_file(const std::filesystem::path& path) {
  if (std::filesystem::is_directory(path)) throw UserError(fmt::format("{}: is a folder, not a file", path.string()));
  std::ifstream in(path, std::ios::binary);
  if (!in) throw UserError(fmt::format("{}: cannot be read: {}", path.string(), std::strerror(errno)));
  std::ostringstream content;
  content << in.rdbuf();
  if (in.bad()) throw UserError(fmt::format("{}: reading failed: {}", path.string(), std::strerror(errno)));
  return std::move(content).str();
}

namespace {

/// Closes its file.
class OpenFile {
 public:
  explicit OpenFile(const std::filesystem::path& path)
      : number_(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC)) {}
  ~OpenFile() {
    if (number_ >= 0) ::close(number_);
  }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  int number() const { return number_; }

 private:
  int number_;
};

std::string kind_fault(int file) {
  struct stat status {};
  if (::fstat(file, &status) != 0) return fmt::format("cannot be read: {}", std::strerror(errno));
  if (S_ISDIR(status.st_mode)) return "is a folder";
  if (S_ISREG(status.st_mode) || S_ISFIFO(status.st_mode)) return "";
  return "is a device, not a file";
}

}  // namespace

Beginning read_beginning(const std::filesystem::path& path, std::size_t max_bytes) {
  constexpr int kPatienceMs = 2'000;
  const OpenFile file(path);
  if (file.number() < 0) return {"", fmt::format("cannot be read: {}", std::strerror(errno))};
  if (std::string fault = kind_fault(file.number()); !fault.empty()) return {"", std::move(fault)};
  std::string content;
  std::array<char, 65536> piece;
  while (content.size() < max_bytes) {
    pollfd ready{file.number(), POLLIN, 0};
    if (::poll(&ready, 1, kPatienceMs) == 0) return {"", "is a pipe that nobody writes into"};
    const ssize_t size = ::read(file.number(), piece.data(), std::min(piece.size(), max_bytes - content.size()));
    if (size < 0 && errno != EAGAIN && errno != EINTR)
      return {"", fmt::format("cannot be read: {}", std::strerror(errno))};
    if (size == 0) break;
    if (size > 0) content.append(piece.data(), static_cast<std::size_t>(size));
  }
  return {std::move(content), ""};
}

namespace {

void write_stream(std::ofstream& out, const std::filesystem::path& path, std::string_view content) {
  if (!out) throw UserError(fmt::format("{}: cannot be written: {}", path.string(), std::strerror(errno)));
  out.write(content.data(), static_cast<std::streamsize>(content.size()));
  out.flush();
  if (!out) throw UserError(fmt::format("{}: writing failed: {}", path.string(), std::strerror(errno)));
}

}  // namespace

void write_file(const std::filesystem::path& path, std::string_view content) {
  std::error_code ignored;
  const std::filesystem::file_status target = std::filesystem::status(path, ignored);
  if (std::filesystem::exists(target) && !std::filesystem::is_regular_file(target) &&
      !std::filesystem::is_directory(target)) {
    // A device or a pipe takes the text; a file put in its place would take the device away from everybody.
    std::ofstream out(path, std::ios::binary);
    return write_stream(out, path, content);
  }
  const std::filesystem::path temporary = path.string() + fmt::format(".tmp{}", ::getpid());
  {
    std::ofstream out(temporary, std::ios::binary | std::ios::trunc);
    write_stream(out, path, content);
  }
  std::error_code error;
  std::filesystem::rename(temporary, path, error);
  if (error) throw UserError(fmt::format("{}: cannot be replaced: {}", path.string(), error.message()));
}

void make_folder(const std::filesystem::path& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) throw UserError(fmt::format("{}: cannot be created: {}", path.string(), error.message()));
}

}  // namespace primus
