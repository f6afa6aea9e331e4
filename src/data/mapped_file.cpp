#include "data/mapped_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.hpp"

namespace primus::data {

MappedFile::MappedFile(const std::string& path) {
  const auto fail = [&path](const char* what) {
    throw UserError(fmt::format("{}: {}: {}", path, what, std::strerror(errno)), ExitCode::kWrongInput);
  };
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) fail("cannot be opened");
  struct stat status {};
  void* address = nullptr;
  const char* failed = nullptr;
  if (::fstat(file, &status) != 0) {
    failed = "cannot be examined";
  } else if (!S_ISREG(status.st_mode)) {
    errno = S_ISDIR(status.st_mode) ? EISDIR : EINVAL;
    failed = "is not a file";
  } else if (status.st_size > 0) {  // the system refuses to map nothing
    size_ = static_cast<std::size_t>(status.st_size);
    address = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, file, 0);
    if (address == MAP_FAILED) failed = "cannot be mapped";
  }
  const int reason = errno;
  ::close(file);
  errno = reason;
  if (failed != nullptr) fail(failed);
  data_ = static_cast<const std::byte*>(address);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

}  // namespace primus::data
