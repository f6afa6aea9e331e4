#pragma once
// What depends on whether a person is looking: colours and progress bars.
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

namespace primus::cli {

enum class Colour { kRed, kGreen, kYellow, kBold, kDim };

/// The text in a colour, if the stream is a terminal and NO_COLOR is not set.
std::string coloured(std::string_view text, Colour colour, std::FILE* stream);

/// A bar on a terminal's stderr, redrawn ten times a second; silent elsewhere.
class ProgressBar {
 public:
  explicit ProgressBar(std::string label);
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  void show(std::int64_t num_bytes_done, std::int64_t num_bytes);

 private:
  std::string label_;
  bool is_shown_ = false;
  bool is_terminal_ = false;
  std::int64_t last_drawn_ns_ = 0;
};

}  // namespace primus::cli
