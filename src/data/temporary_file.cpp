#include "data/temporary_file.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "base/error.hpp"

namespace primus::data {
namespace {

constexpr std::size_t kBufferBytes = std::size_t{1} << 18;

}  // namespace

TemporaryFile::TemporaryFile(std::string final_path)
    : final_path_(std::move(final_path)), path_(fmt::format("{}.tmp{}", final_path_, ::getpid())) {
  file_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (file_ < 0) fail("cannot be written");
  buffer_.reserve(kBufferBytes);
}

TemporaryFile::TemporaryFile(std::string final_path, std::int64_t num_bytes)
    : final_path_(std::move(final_path)), path_(final_path_ + ".partial"), num_bytes_(num_bytes) {
  file_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (file_ < 0) fail("cannot be written");
  struct stat status {};
  const char* fault = nullptr;
  if (::flock(file_, LOCK_EX | LOCK_NB) != 0) {
    fault = "is being written by another process";
  } else if (::fstat(file_, &status) != 0 || status.st_size < num_bytes) {
    errno = EIO;
    fault = "lost what was written of it before";
  } else if (::ftruncate(file_, num_bytes) != 0) {
    fault = "cannot be written";
  }
  if (fault != nullptr) {
    const int reason = errno;
    ::close(file_);
    file_ = -1;
    errno = reason;
    fail(fault);
  }
  buffer_.reserve(kBufferBytes);
}

TemporaryFile::~TemporaryFile() {
  if (fate_ == Fate::kKept && file_ >= 0) {
    ::close(file_);
    return;
  }
  discard();
}

void TemporaryFile::discard() {
  if (file_ < 0) return;
  ::close(file_);
  file_ = -1;
  ::unlink(path_.c_str());
}

void TemporaryFile::fail(const char* what) const {
  throw UserError(fmt::format("{}: {}: {}", final_path_, what, std::strerror(errno)));
}

void TemporaryFile::append(std::span<const std::byte> bytes) {
  if (buffer_.size() + bytes.size() > kBufferBytes) flush();
  if (bytes.size() >= kBufferBytes) {
    overwrite(num_bytes_, bytes);
  } else {
    buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
  }
  num_bytes_ += static_cast<std::int64_t>(bytes.size());
}

void TemporaryFile::flush() {
  std::vector<std::byte> pending;
  pending.swap(buffer_);
  overwrite(num_bytes_ - static_cast<std::int64_t>(pending.size()), pending);
  pending.clear();
  buffer_.swap(pending);
}

void TemporaryFile::overwrite(std::int64_t offset, std::span<const std::byte> bytes) {
  if (!buffer_.empty()) flush();
  while (!bytes.empty()) {
    const ssize_t written = ::pwrite(file_, bytes.data(), bytes.size(), offset);
    if (written < 0) {
      if (errno == EINTR) continue;
      fail("writing failed");
    }
    bytes = bytes.subspan(static_cast<std::size_t>(written));
    offset += written;
  }
}

void TemporaryFile::read(std::int64_t offset, std::span<std::byte> out) {
  if (!buffer_.empty()) flush();
  PRIMUS_CHECK(offset + static_cast<std::int64_t>(out.size()) <= num_bytes_, "{}", final_path_);
  while (!out.empty()) {
    const ssize_t got = ::pread(file_, out.data(), out.size(), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) fail("reading back failed");
    out = out.subspan(static_cast<std::size_t>(got));
    offset += got;
  }
}

void TemporaryFile::sync() {
  if (!buffer_.empty()) flush();
  int result = 0;
  while ((result = ::fsync(file_)) != 0 && errno == EINTR) {
  }
  if (result != 0) fail("cannot be brought to the disk");
}

void TemporaryFile::commit() {
  PRIMUS_CHECK(buffer_.empty(), "{}: commit before sync", final_path_);
  if (std::rename(path_.c_str(), final_path_.c_str()) != 0) fail("cannot be put in place");
  ::close(file_);
  file_ = -1;
}

void sync_folder_of(const std::string& path) {
  std::filesystem::path folder = std::filesystem::path(path).parent_path();
  if (folder.empty()) folder = ".";
  const int file = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (file < 0) return;  // a folder may be writable and searchable without being readable
  ::fsync(file);         // some file systems refuse; the files themselves are safe
  ::close(file);
}

}  // namespace primus::data
