#pragma once
// The factor on the loss that keeps half-precision gradients above their smallest numbers.
#include <cstdint>

namespace primus::engine {

struct LossScaleSettings {
  double initial = 1.0;
  double smallest = 1.0;
  std::int64_t window = 1000;   // good steps after which the scale doubles
  std::int64_t hysteresis = 2;  // bad steps, since it last doubled, that it bears before it halves
  enum class Kind { kConstant, kDynamic } kind = Kind::kConstant;
};

/// Megatron's rule: a step whose gradients overflow is left out; from the hysteresis-th such step on, each halves the
/// scale (never below the smallest); `window` good steps in a row double it and give the hysteresis back.
class LossScaler {
 public:
  explicit LossScaler(const LossScaleSettings& settings);

  double scale() const { return scale_; }

  enum class Step { kGood, kOverflow };
  void update(Step step);

  /// Where it stands, for saving and loading.
  struct State {
    double scale = 1.0;
    std::int64_t num_good = 0;
    std::int64_t hysteresis_left = 0;
  };
  State state() const { return {scale_, num_good_, hysteresis_left_}; }
  /// A constant scale stays what the settings say.
  void restore(const State& state);

 private:
  LossScaleSettings settings_;
  double scale_;
  std::int64_t num_good_ = 0;
  std::int64_t hysteresis_left_;
};

}  // namespace primus::engine
