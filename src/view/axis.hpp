#pragma once
// Axes with round tick values.
#include <string>
#include <vector>

namespace primus::view {

/// Whether ticks may lie between whole numbers.
enum class TickKind { kReal, kWhole };

/// Maps [low, high] to pixels and knows its ticks.
class Axis {
 public:
  /// An axis over `low` .. `high` (finite; equal ones are widened), from pixel `from` to pixel `to`, with about
  /// `num_ticks` ticks.
  Axis(double low, double high, double from, double to, int num_ticks, TickKind kind);

  double pixel(double value) const { return from_ + (value - low_) / (high_ - low_) * (to_ - from_); }
  const std::vector<double>& ticks() const { return ticks_; }
  /// Text of a tick: as many decimals as the steps need, thousands apart, powers of ten for extreme sizes.
  std::string label(double tick) const;

 private:
  double low_;
  double high_;
  double from_;
  double to_;
  double step_ = 1.0;
  std::vector<double> ticks_;
};

}  // namespace primus::view
