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

/// What a progress bar counts.
enum class Unit { kBytes, kThings };

/// A bar on a terminal's stderr with rate and time left, redrawn ten times a second; silent elsewhere.
class ProgressBar {
 public:
  explicit ProgressBar(std::string label, Unit unit = Unit::kBytes);
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  /// `num_all` is 0 where nobody knows it: standard input.
  void show(std::int64_t num_done, std::int64_t num_all);

 private:
  std::string amount(std::int64_t number) const;

  std::string label_;
  Unit unit_;
  bool is_shown_ = false;
  bool is_terminal_ = false;
  std::int64_t last_drawn_ns_ = 0;
  std::int64_t begun_ns_ = 0;
  std::int64_t num_at_beginning_ = 0;
};

}  // namespace primus::cli
