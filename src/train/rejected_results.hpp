#pragma once
// result_rejected_tracker_filename: a file that lists the steps whose result was rejected, in Megatron's form, one line
// each; the next run passes over the data of those that were rejected again.
#include <cstdint>
#include <ctime>
#include <filesystem>
#include <string>
#include <vector>

namespace primus::train {

/// How a result came to be rejected: without computing it again, or after that, with the same bits or others.
enum class Rejection { kNotRepeated, kSameAgain, kDifferentAgain };

struct RejectedResult {
  std::int64_t step = 0;  // counted from 0
  int rank = 0;
  std::string device;
  Rejection rejection = Rejection::kNotRepeated;
  double result = 0.0;
  std::string message;
};

class RejectedResults {
 public:
  /// Throws UserError if the file cannot be written.
  explicit RejectedResults(std::filesystem::path path);

  void add(const RejectedResult& rejected, std::time_t now) const;

 private:
  std::filesystem::path path_;
};

/// Steps that the file's lines say to pass over, ascending: rejected twice on a rank, not computed again or with the
/// same bits, or once as what a second rerun on other devices found again. No file: none. Lines of another form are not
/// read.
std::vector<std::int64_t> rejected_again(const std::filesystem::path& path);

}  // namespace primus::train
