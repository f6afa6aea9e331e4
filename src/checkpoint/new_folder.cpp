#include "checkpoint/new_folder.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "base/files.hpp"
#include "checkpoint/refuse.hpp"
#include "data/temporary_file.hpp"

namespace primus::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kTemporary = ".tmp";

fs::path temporary_name(const fs::path& path) {
  return path.string() + fmt::format("{}{}", kTemporary, ::getpid());
}

/// Everything in the folder, so that the rename cannot come before what it names.
void bring_to_disk(const fs::path& folder) {
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    const int file = ::open(entry.path().c_str(), O_RDONLY | O_CLOEXEC);
    int result = -1;
    // A signal may interrupt it on some file systems.
    while (file >= 0 && (result = ::fsync(file)) != 0 && errno == EINTR) {
    }
    const int reason = errno;
    if (file >= 0) ::close(file);
    if (result == 0 || (file >= 0 && entry.is_directory())) continue;
    throw UserError(fmt::format("{}: cannot be brought to the disk: {}", entry.path().string(), std::strerror(reason)));
  }
  data::sync_folder_of((folder / "any").string());
}

}  // namespace

NewFolder::NewFolder(fs::path final_path) : final_path_(std::move(final_path)) {
  // "out/" and "out" are the same folder; a name beside it must not lie inside it.
  if (!final_path_.has_filename()) final_path_ = final_path_.parent_path();
  path_ = temporary_name(final_path_);
  std::error_code ignored;
  fs::remove_all(path_, ignored);
  make_folder(path_);
}

NewFolder::~NewFolder() {
  std::error_code ignored;
  if (!path_.empty()) fs::remove_all(path_, ignored);
}

void NewFolder::put_in_place() {
  std::error_code error;
  fs::remove(final_path_, error);  // an empty folder may stand there
  fs::rename(path_, final_path_, error);
  if (error) throw UserError(fmt::format("{}: cannot be put in place: {}", final_path_.string(), error.message()));
  path_.clear();
  data::sync_folder_of(final_path_.string());
}

void NewFolder::commit() {
  bring_to_disk(path_);
  put_in_place();
}

void NewFolder::replace() {
  bring_to_disk(path_);
  std::error_code error;
  if (!fs::exists(final_path_, error)) return put_in_place();
  if (::renameat2(AT_FDCWD, path_.c_str(), AT_FDCWD, final_path_.c_str(), RENAME_EXCHANGE) == 0) {
    data::sync_folder_of(final_path_.string());
    return;  // the old one has the temporary name now, and goes with it
  }
  remove_folder(final_path_);
  put_in_place();
}

void check_target(const fs::path& path) {
  std::error_code error;
  if (!fs::exists(path, error) || (fs::is_directory(path, error) && fs::is_empty(path, error))) return;
  refuse({.file = path.string(), .message = "exists already", .expected = "a new or an empty folder"});
}

void remove_folder(const fs::path& path) {
  const fs::path aside = temporary_name(path);
  std::error_code error;
  fs::remove_all(aside, error);
  fs::rename(path, aside, error);
  if (!error) fs::remove_all(aside, error);
  if (error) throw UserError(fmt::format("{}: cannot be removed: {}", path.string(), error.message()));
}

bool is_left_over(const fs::path& path) {
  const std::string name = path.filename().string();
  const std::size_t at = name.rfind(kTemporary);
  if (at == std::string::npos || at + kTemporary.size() == name.size()) return false;
  return std::all_of(name.begin() + static_cast<std::ptrdiff_t>(at + kTemporary.size()), name.end(),
                     [](char c) { return c >= '0' && c <= '9'; });
}

}  // namespace primus::checkpoint
