#include "train/outlier_watch.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace primus::train {

std::optional<std::string> OutlierWatch::look(double value) {
  value = std::abs(value);
  if (!std::isfinite(value)) return std::nullopt;
  if (num_seen_ < kNumSamples) {
    ++num_seen_;
    largest_ = std::max(largest_, value);
    return std::nullopt;
  }
  if (value < kFactor * largest_) return std::nullopt;
  return fmt::format("the {} jumps: {:.6g} is more than {:g} times the largest of the first {} steps, {:.6g}", what_,
                     value, kFactor, kNumSamples, largest_);
}

}  // namespace primus::train
