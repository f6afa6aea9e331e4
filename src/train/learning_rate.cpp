#include "train/learning_rate.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/error.hpp"

namespace primus::train {
namespace {

double wsd_coefficient(WsdStyle style, double progress) {
  switch (style) {
    case WsdStyle::kLinear:
      return 1.0 - progress;
    case WsdStyle::kCosine:
      return 0.5 * (std::cos(std::numbers::pi * progress) + 1.0);
    case WsdStyle::kExponential:
      return 2.0 * std::pow(0.5, progress) - 1.0;
    case WsdStyle::kMinusSqrt:
      return 1.0 - std::sqrt(progress);
  }
  return 0.0;
}

DecayStyle decay_style(const std::string& name) {
  if (name == "constant") return DecayStyle::kConstant;
  if (name == "linear") return DecayStyle::kLinear;
  if (name == "cosine") return DecayStyle::kCosine;
  if (name == "inverse-square-root") return DecayStyle::kInverseSquareRoot;
  PRIMUS_CHECK(name == "WSD", "lr_decay_style '{}' passed validation", name);
  return DecayStyle::kWsd;
}

WsdStyle wsd_style(const std::string& name) {
  if (name == "linear") return WsdStyle::kLinear;
  if (name == "cosine") return WsdStyle::kCosine;
  if (name == "minus_sqrt") return WsdStyle::kMinusSqrt;
  PRIMUS_CHECK(name == "exponential", "lr_wsd_decay_style '{}' passed validation", name);
  return WsdStyle::kExponential;
}

/// A length given in samples, else in iterations, else `fallback`.
std::int64_t samples_or_iters(const config::Experiment& experiment, const std::string& stem, std::int64_t fallback) {
  if (const auto samples = experiment.get_optional_int(stem + "_samples"); samples && *samples > 0) return *samples;
  if (const auto iters = experiment.get_optional_int(stem + "_iters"); iters && *iters > 0) {
    return *iters * experiment.get_int("global_batch_size");
  }
  return fallback;
}

}  // namespace

double LearningRateSchedule::at(std::int64_t num_samples) const {
  const auto count = static_cast<double>(num_samples);
  const auto warmup = static_cast<double>(warmup_samples);
  const auto end = static_cast<double>(decay_samples);
  if (warmup_samples > 0 && num_samples <= warmup_samples) {
    return warmup_init + (max_rate - warmup_init) * count / warmup;
  }
  if (style == DecayStyle::kConstant) return max_rate;
  if (num_samples > decay_samples) return min_rate;
  if (style == DecayStyle::kInverseSquareRoot) {
    return std::max(min_rate, max_rate * std::sqrt(std::max(warmup, 1.0)) / std::sqrt(std::max(count, 1.0)));
  }
  const double progress = end > warmup ? (count - warmup) / (end - warmup) : 1.0;
  double coefficient = 1.0;
  if (style == DecayStyle::kLinear) {
    coefficient = 1.0 - progress;
  } else if (style == DecayStyle::kCosine) {
    coefficient = 0.5 * (std::cos(std::numbers::pi * progress) + 1.0);
  } else if (const double start = end - static_cast<double>(wsd_decay_samples); count > start) {
    coefficient = wsd_coefficient(wsd_style, (count - start) / static_cast<double>(wsd_decay_samples));
  }
  return min_rate + coefficient * (max_rate - min_rate);
}

LearningRateSchedule learning_rate_schedule(const config::Experiment& experiment, std::int64_t train_samples) {
  LearningRateSchedule schedule;
  schedule.max_rate = experiment.get_double("lr");
  schedule.min_rate = experiment.get_optional_double("min_lr").value_or(0.0);
  schedule.warmup_init = experiment.get_double("lr_warmup_init");
  schedule.style = decay_style(experiment.get_string("lr_decay_style"));
  schedule.wsd_style = wsd_style(experiment.get_string("lr_wsd_decay_style"));
  schedule.decay_samples = samples_or_iters(experiment, "lr_decay", train_samples);
  if (const auto fraction = experiment.get_optional_double("lr_warmup_fraction")) {
    schedule.warmup_samples = std::llround(*fraction * static_cast<double>(schedule.decay_samples));
  } else {
    schedule.warmup_samples = samples_or_iters(experiment, "lr_warmup", 0);
  }
  schedule.wsd_decay_samples = samples_or_iters(experiment, "lr_wsd_decay", 0);
  return schedule;
}

std::optional<LearningRateSchedule> end_learning_rate_schedule(const config::Experiment& experiment,
                                                               std::int64_t train_samples) {
  const auto rate = experiment.get_optional_double("decoupled_lr");
  if (!rate) return std::nullopt;
  LearningRateSchedule schedule = learning_rate_schedule(experiment, train_samples);
  schedule.max_rate = *rate;
  schedule.min_rate = experiment.get_optional_double("decoupled_min_lr").value_or(0.0);
  return schedule;
}

double WeightDecaySchedule::at(std::int64_t samples) const {
  if (style == Style::kConstant || samples >= num_samples) return end;
  const double progress = static_cast<double>(samples) / static_cast<double>(num_samples);
  const double coefficient =
      style == Style::kLinear ? progress : 0.5 * (std::cos(std::numbers::pi * (1.0 - progress)) + 1.0);
  return start + coefficient * (end - start);
}

WeightDecaySchedule weight_decay_schedule(const config::Experiment& experiment, std::int64_t train_samples) {
  const std::string style = experiment.get_string("weight_decay_incr_style");
  const double decay = experiment.get_double("weight_decay");
  if (style == "constant") {
    return {.style = WeightDecaySchedule::Style::kConstant, .start = decay, .end = decay, .num_samples = train_samples};
  }
  return {.style = style == "linear" ? WeightDecaySchedule::Style::kLinear : WeightDecaySchedule::Style::kCosine,
          .start = experiment.get_double("start_weight_decay"),
          .end = experiment.get_double("end_weight_decay"),
          .num_samples = train_samples};
}

}  // namespace primus::train
