#include "cli/terminal.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <utility>

#include "base/text.hpp"

namespace primus::cli {
namespace {

constexpr int kBarWidth = 30;
constexpr std::int64_t kRedrawNs = 100'000'000;

std::string_view code_of(Colour colour) {
  switch (colour) {
    case Colour::kRed:
      return "\x1b[31;1m";
    case Colour::kGreen:
      return "\x1b[32m";
    case Colour::kYellow:
      return "\x1b[33m";
    case Colour::kBold:
      return "\x1b[1m";
    case Colour::kDim:
      return "\x1b[2m";
  }
  return "";
}

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

std::string coloured(std::string_view text, Colour colour, std::FILE* stream) {
  const char* wish = std::getenv("NO_COLOR");
  if ((wish && *wish) || !isatty(fileno(stream))) return std::string(text);
  return fmt::format("{}{}\x1b[0m", code_of(colour), text);
}

ProgressBar::ProgressBar(std::string label) : label_(std::move(label)), is_terminal_(isatty(STDERR_FILENO) == 1) {}

ProgressBar::~ProgressBar() {
  if (is_shown_) fmt::print(stderr, "\n");
}

void ProgressBar::show(std::int64_t num_bytes_done, std::int64_t num_bytes) {
  if (!is_terminal_) return;
  const bool is_last = num_bytes_done >= num_bytes;
  const std::int64_t now = now_ns();
  if (!is_last && is_shown_ && now - last_drawn_ns_ < kRedrawNs) return;
  last_drawn_ns_ = now;
  is_shown_ = true;
  const double part =
      num_bytes > 0 ? std::min(1.0, static_cast<double>(num_bytes_done) / static_cast<double>(num_bytes)) : 1.0;
  const int filled = static_cast<int>(part * kBarWidth);
  fmt::print(stderr, "\r{} [{}{}] {:3.0f} %  {} of {} ", label_, std::string(static_cast<std::size_t>(filled), '#'),
             std::string(static_cast<std::size_t>(kBarWidth - filled), '.'), part * 100.0, format_bytes(num_bytes_done),
             format_bytes(num_bytes));
  std::fflush(stderr);
}

}  // namespace primus::cli
