#pragma once
// A file that appears under its name only when it is whole.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace primus::data {

/// Written beside its final place, in pieces, through a buffer; removed again unless commit() is reached.
/// Throws UserError with the final path and the system's reason.
class TemporaryFile {
 public:
  explicit TemporaryFile(std::string final_path);
  /// One that another process can go on with: FINAL_PATH.partial, cut to its first `num_bytes` bytes. Only one process
  /// may have it open.
  TemporaryFile(std::string final_path, std::int64_t num_bytes);
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  ~TemporaryFile();

  const std::string& final_path() const { return final_path_; }
  std::int64_t num_bytes() const { return num_bytes_; }

  void append(std::span<const std::byte> bytes);
  /// Replace bytes written earlier.
  void overwrite(std::int64_t offset, std::span<const std::byte> bytes);
  /// Read back bytes written earlier.
  void read(std::int64_t offset, std::span<std::byte> out);
  /// Everything on the disk; to be called before commit().
  void sync();
  /// Leave the file where it is when this object goes without commit().
  void keep() { fate_ = Fate::kKept; }
  /// Give the file its name.
  void commit();
  /// Remove the file now; it was needed only on the way.
  void discard();

 private:
  void flush();
  [[noreturn]] void fail(const char* what) const;

  std::string final_path_;
  std::string path_;
  enum class Fate { kRemoved, kKept } fate_ = Fate::kRemoved;
  int file_ = -1;
  std::int64_t num_bytes_ = 0;
  std::vector<std::byte> buffer_;
};

/// Make a rename in the folder of `path` outlast a crash of the machine.
void sync_folder_of(const std::string& path);

}  // namespace primus::data
