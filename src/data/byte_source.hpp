#pragma once
// Bytes of a file, of a compressed one, or of standard input, in order.
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace primus::data {

/// The path that stands for standard input.
inline constexpr const char* kStandardInput = "-";

/// Reads forward. Throws UserError with path and reason; a damaged compressed file is named.
class ByteSource {
 public:
  ByteSource() = default;
  ByteSource(const ByteSource&) = delete;
  ByteSource& operator=(const ByteSource&) = delete;
  virtual ~ByteSource() = default;

  /// Fill the beginning of `out`; 0 only at the end.
  virtual std::size_t read(std::span<char> out) = 0;
  /// Bytes taken from the disk so far, compressed ones for a compressed file.
  virtual std::int64_t num_bytes_taken() const = 0;
};

/// The content of `path`: decompressed if it ends in .gz or .zst, standard input for "-".
std::unique_ptr<ByteSource> open_source(const std::string& path);

/// `path` without .gz or .zst.
std::string without_compression(const std::string& path);

}  // namespace primus::data
