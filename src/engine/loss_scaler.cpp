#include "engine/loss_scaler.hpp"

#include <algorithm>

namespace primus::engine {

LossScaler::LossScaler(const LossScaleSettings& settings)
    : settings_(settings), scale_(settings.initial), hysteresis_left_(settings.hysteresis) {}

void LossScaler::update(Step step) {
  if (settings_.kind == LossScaleSettings::Kind::kConstant) return;
  if (step == Step::kOverflow) {
    num_good_ = 0;
    if (--hysteresis_left_ <= 0) scale_ = std::max(settings_.smallest, scale_ * 0.5);
    return;
  }
  if (++num_good_ < settings_.window) return;
  num_good_ = 0;
  hysteresis_left_ = settings_.hysteresis;
  scale_ *= 2.0;
}

void LossScaler::restore(const State& state) {
  if (settings_.kind == LossScaleSettings::Kind::kConstant) return;
  scale_ = state.scale;
  num_good_ = state.num_good;
  hysteresis_left_ = state.hysteresis_left;
}

}  // namespace primus::engine
