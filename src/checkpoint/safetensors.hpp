#pragma once
// One safetensors file: read by offset, written tensor by tensor.
#include <cstddef>
#include <memory>
#include <span>
#include <unordered_map>

#include "checkpoint/safetensors_header.hpp"
#include "data/temporary_file.hpp"

namespace primus::checkpoint {

/// An open file whose header has been checked in full. Data is read by pread, not mapped: a file that shrinks or a disk
/// that fails is an error with the file's name and not a signal, and what was read does not stay resident.
class SafetensorsFile {
 public:
  /// Throws ConfigError if it is no such file, UserError if it cannot be read.
  explicit SafetensorsFile(std::string path);
  SafetensorsFile(const SafetensorsFile&) = delete;
  SafetensorsFile& operator=(const SafetensorsFile&) = delete;
  ~SafetensorsFile();

  const std::string& path() const { return path_; }
  const std::vector<StoredTensor>& tensors() const { return header_.tensors; }
  const std::map<std::string, std::string>& metadata() const { return header_.metadata; }
  /// nullptr if there is none of this name.
  const StoredTensor* find(std::string_view name) const;

  /// Bytes of a tensor from its byte `offset` on. Throws UserError with path and tensor.
  void read(const StoredTensor& tensor, std::int64_t offset, std::span<std::byte> out) const;

 private:
  std::string path_;
  int file_ = -1;
  std::int64_t data_begin_ = 0;
  SafetensorsHeader header_;
  std::unordered_map<std::string_view, std::size_t> by_name_;
};

/// Writes a file whose tensors are known beforehand: header first, then the tensors' bytes in that order, in pieces of
/// any size. The file appears under its name in finish(), whole and on the disk, or not at all.
class SafetensorsWriter {
 public:
  /// `begin` and `num_bytes` of the tensors are set here.
  SafetensorsWriter(const std::string& path, std::vector<StoredTensor> tensors,
                    const std::map<std::string, std::string>& metadata = {{"format", "pt"}});

  /// The next bytes of the tensor that is being written, which must be this one.
  void append(std::string_view tensor, std::span<const std::byte> bytes);
  void finish();

 private:
  void skip_whole_tensors();

  std::vector<StoredTensor> tensors_;
  std::size_t current_ = 0;
  std::int64_t written_ = 0;  // of the current tensor
  data::TemporaryFile file_;
};

}  // namespace primus::checkpoint
