#include "view/axis.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/text.hpp"

namespace primus::view {
namespace {

/// The smallest of 1, 2, 5 times a power of ten that is at least `rough`.
double round_step(double rough) {
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= rough * (1.0 - 1e-9)) return factor * power;
  }
  return 10.0 * power;
}

}  // namespace

Axis::Axis(double low, double high, double from, double to, int num_ticks, TickKind kind)
    : low_(low), high_(high), from_(from), to_(to) {
  // Values closer than doubles can tell apart at that size count as equal.
  if (high_ - low_ <= 1e-12 * std::max(std::abs(low_), std::abs(high_))) {
    const double margin = std::max(0.5, 0.05 * std::abs(low_));
    low_ -= margin;
    high_ += margin;
  }
  step_ = round_step((high_ - low_) / num_ticks);
  if (kind == TickKind::kWhole) step_ = std::max(step_, 1.0);
  const double tolerance = 1e-9 * step_;
  for (double i = std::ceil((low_ - tolerance) / step_); i * step_ <= high_ + tolerance; i += 1.0) {
    ticks_.push_back(i * step_);
  }
}

std::string Axis::label(double tick) const {
  const double largest = std::max(std::abs(low_), std::abs(high_));
  if (tick == 0.0) return "0";
  if (largest >= 1e9 || step_ < 1e-5) {
    // Enough digits that neighbouring ticks differ.
    const int digits = std::clamp(static_cast<int>(std::ceil(std::log10(largest / step_))), 0, 15);
    return fmt::format("{:.{}e}", tick, digits);
  }
  const int decimals = std::max(0, static_cast<int>(-std::floor(std::log10(step_) + 1e-9)));
  if (decimals == 0) return format_count(std::llround(tick));
  return fmt::format("{:.{}f}", tick, decimals);
}

}  // namespace primus::view
