#pragma once
// A file mapped into memory for reading.
#include <cstddef>
#include <span>
#include <string>

namespace primus::data {

/// Read-only view of a whole file; pages come in as they are touched. Throws UserError with path and reason.
class MappedFile {
 public:
  explicit MappedFile(const std::string& path);
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return {data_, size_}; }

 private:
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace primus::data
