#pragma once
// Folders that appear under their name when they are whole.
#include <filesystem>

namespace primus::checkpoint {

/// Removed again unless commit() or replace() is reached. Written beside its place as NAME.tmpPID.
class NewFolder {
 public:
  explicit NewFolder(std::filesystem::path final_path);
  NewFolder(const NewFolder&) = delete;
  NewFolder& operator=(const NewFolder&) = delete;
  ~NewFolder();
  const std::filesystem::path& path() const { return path_; }

  /// Bring all of it to the disk and give it its name, which nothing but an empty folder may have.
  void commit();
  /// The same in the place of a folder of that name, in one step where the file system can; the old one is removed.
  void replace();

 private:
  void put_in_place();

  std::filesystem::path final_path_;
  std::filesystem::path path_;
};

/// Throws ConfigError if there is something under this name already.
void check_target(const std::filesystem::path& path);

/// Remove a folder so that half of it is never seen under its name. Throws UserError.
void remove_folder(const std::filesystem::path& path);

/// Is it the name of a folder that a process of ours left half-written or half-removed?
bool is_left_over(const std::filesystem::path& path);

}  // namespace primus::checkpoint
