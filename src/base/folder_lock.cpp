#include "base/folder_lock.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.hpp"

namespace primus {

FolderLock::FolderLock(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / "run.lock";
  descriptor_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (descriptor_ < 0) throw UserError(fmt::format("{}: cannot be written: {}", path.string(), std::strerror(errno)));
  if (::flock(descriptor_, LOCK_EX | LOCK_NB) == 0) return;
  ::close(descriptor_);
  throw UserError(fmt::format("{}: another run writes to this folder now; wait for it, or choose another exp_name",
                              folder.string()));
}

FolderLock::~FolderLock() {
  ::close(descriptor_);
}

}  // namespace primus
