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

ProgressBar::ProgressBar(std::string label, Unit unit)
    : label_(std::move(label)), unit_(unit), is_terminal_(isatty(STDERR_FILENO) == 1) {}

ProgressBar::~ProgressBar() {
  if (is_shown_) fmt::print(stderr, "\n");
}

std::string ProgressBar::amount(std::int64_t number) const {
  return unit_ == Unit::kBytes ? format_bytes(number) : format_count(number);
}

void ProgressBar::show(std::int64_t num_done, std::int64_t num_all) {
  if (!is_terminal_) return;
  const bool is_last = num_done >= num_all;
  const std::int64_t now = now_ns();
  if (!is_shown_) {
    begun_ns_ = now;
    num_at_beginning_ = num_done;
  }
  if (!(is_last && num_all > 0) && is_shown_ && now - last_drawn_ns_ < kRedrawNs) return;
  last_drawn_ns_ = now;
  is_shown_ = true;
  const double seconds = static_cast<double>(now - begun_ns_) * 1e-9;
  const double rate = seconds > 0.0 ? static_cast<double>(num_done - num_at_beginning_) / seconds : 0.0;
  const std::string speed = rate > 0.0 ? fmt::format(", {}/s", amount(static_cast<std::int64_t>(rate))) : "";
  if (num_all == 0) {
    fmt::print(stderr, "\r{}  {}{}\x1b[K", label_, amount(num_done), speed);
  } else {
    const double part = std::min(1.0, static_cast<double>(num_done) / static_cast<double>(num_all));
    const int filled = static_cast<int>(part * kBarWidth);
    const std::string left =
        rate > 0.0 && !is_last
            ? fmt::format(", {} left", format_duration(static_cast<double>(num_all - num_done) / rate))
            : "";
    fmt::print(stderr, "\r{} [{}{}] {:3.0f} %  {} of {}{}{}\x1b[K", label_,
               std::string(static_cast<std::size_t>(filled), '#'),
               std::string(static_cast<std::size_t>(kBarWidth - filled), '.'), part * 100.0, amount(num_done),
               amount(num_all), speed, left);
  }
  std::fflush(stderr);
}

}  // namespace primus::cli
