#pragma once
// One writer a folder.
#include <filesystem>

namespace primus {

/// Exclusive use of a folder by one process, by a lock on FOLDER/run.lock. The system frees it when the process ends,
/// however it ends. Throws UserError if the file cannot be made, or if another process holds the lock.
class FolderLock {
 public:
  explicit FolderLock(const std::filesystem::path& folder);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  int descriptor_ = -1;
};

}  // namespace primus
