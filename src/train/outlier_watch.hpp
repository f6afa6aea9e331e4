#pragma once
// Values that jump: a loss or a gradient norm far above all that the first steps showed.
#include <cstdint>
#include <optional>
#include <string>

namespace primus::train {

/// Megatron's rule: the largest of the first 100 finite values is remembered; a later one of at least ten times that is
/// told. It watches and stops nothing.
class OutlierWatch {
 public:
  /// `what`: "loss", as messages say it.
  explicit OutlierWatch(std::string what) : what_(std::move(what)) {}

  /// What there is to tell about this value, if anything.
  std::optional<std::string> look(double value);

  static constexpr std::int64_t kNumSamples = 100;
  static constexpr double kFactor = 10.0;

 private:
  std::string what_;
  std::int64_t num_seen_ = 0;
  double largest_ = 0.0;
};

}  // namespace primus::train
