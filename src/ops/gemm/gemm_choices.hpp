#pragma once
// Which of a library's kernels was fastest for a product, in a file that later runs and other ranks read: a choice made
// once is made for all of them, and a run can be repeated with the kernels of another. No torch and no CUDA headers.
#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace primus::ops {

/// An algorithm of cuBLASLt as it stores it: plain bytes that mean something to one release of the library.
using AlgorithmWords = std::array<std::uint64_t, 8>;

/// A text file, a line a choice: device and library, the product in numbers, the algorithm in hexadecimal words. Lines
/// of other devices and releases stay, and are not used.
class GemmChoices {
 public:
  /// Reads the file if it is there. `owner`: device and release. Throws UserError where the file cannot be read, or
  /// cannot be written although there is none yet.
  GemmChoices(std::filesystem::path file, std::string owner);

  /// The choice for a product; of several the last.
  std::optional<AlgorithmWords> find(const std::vector<std::int64_t>& product) const;

  /// Adds a line, in one write: processes may share a file. What cannot be written is told on stderr, once.
  void add(const std::vector<std::int64_t>& product, const AlgorithmWords& algorithm);

  /// Lines that are no choice: a write that was cut off, or another program's. They are left as they are.
  int num_unread() const { return num_unread_; }

 private:
  void read_line(const std::string& line);

  std::filesystem::path file_;
  std::string owner_;
  std::map<std::vector<std::int64_t>, AlgorithmWords> choices_;
  int num_unread_ = 0;
  bool has_failed_ = false;
};

}  // namespace primus::ops
