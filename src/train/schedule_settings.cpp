#include "train/schedule_settings.hpp"

#include <fmt/format.h>

#include <array>
#include <charconv>

#include "base/error.hpp"

namespace primus::train {
namespace {

constexpr std::array<std::string_view, 5> kDecayStyles = {"constant", "linear", "cosine", "inverse-square-root", "WSD"};
constexpr std::array<std::string_view, 4> kWsdStyles = {"linear", "cosine", "exponential", "minus_sqrt"};
constexpr std::array<std::string_view, 3> kIncreases = {"constant", "linear", "cosine"};

const std::string& text_at(const ScheduleSettings& settings, const std::string& key) {
  const auto found = settings.find(key);
  if (found == settings.end()) throw UserError(fmt::format("the checkpoint's schedule has no {}", key));
  return found->second;
}

template <typename T>
T number_at(const ScheduleSettings& settings, const std::string& key) {
  const std::string& text = text_at(settings, key);
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size())
    throw UserError(fmt::format("the checkpoint's schedule: {} is no number: {}", key, text));
  return value;
}

template <typename Enum, std::size_t N>
Enum name_at(const ScheduleSettings& settings, const std::string& key, const std::array<std::string_view, N>& names) {
  const std::string& text = text_at(settings, key);
  for (std::size_t i = 0; i < N; ++i) {
    if (names[i] == text) return static_cast<Enum>(i);
  }
  throw UserError(fmt::format("the checkpoint's schedule: {} is of no known kind: {}", key, text));
}

template <typename Enum, std::size_t N>
std::string name_of(Enum value, const std::array<std::string_view, N>& names) {
  return std::string(names.at(static_cast<std::size_t>(value)));
}

void add_rate(const std::string& prefix, const LearningRateSchedule& rate, ScheduleSettings& settings) {
  settings[prefix + "lr"] = fmt::format("{}", rate.max_rate);
  settings[prefix + "min_lr"] = fmt::format("{}", rate.min_rate);
  settings[prefix + "lr_warmup_init"] = fmt::format("{}", rate.warmup_init);
  settings[prefix + "lr_decay_style"] = name_of(rate.style, kDecayStyles);
  settings[prefix + "lr_wsd_decay_style"] = name_of(rate.wsd_style, kWsdStyles);
  settings[prefix + "lr_warmup_samples"] = std::to_string(rate.warmup_samples);
  settings[prefix + "lr_decay_samples"] = std::to_string(rate.decay_samples);
  settings[prefix + "lr_wsd_decay_samples"] = std::to_string(rate.wsd_decay_samples);
}

LearningRateSchedule rate_from(const std::string& prefix, const ScheduleSettings& settings) {
  return {.max_rate = number_at<double>(settings, prefix + "lr"),
          .min_rate = number_at<double>(settings, prefix + "min_lr"),
          .warmup_init = number_at<double>(settings, prefix + "lr_warmup_init"),
          .style = name_at<DecayStyle>(settings, prefix + "lr_decay_style", kDecayStyles),
          .wsd_style = name_at<WsdStyle>(settings, prefix + "lr_wsd_decay_style", kWsdStyles),
          .warmup_samples = number_at<std::int64_t>(settings, prefix + "lr_warmup_samples"),
          .decay_samples = number_at<std::int64_t>(settings, prefix + "lr_decay_samples"),
          .wsd_decay_samples = number_at<std::int64_t>(settings, prefix + "lr_wsd_decay_samples")};
}

constexpr const char* kDecoupled = "decoupled_";

}  // namespace

ScheduleSettings to_settings(const Schedules& schedules) {
  ScheduleSettings settings;
  add_rate("", schedules.learning_rate, settings);
  if (schedules.end_learning_rate) add_rate(kDecoupled, *schedules.end_learning_rate, settings);
  const WeightDecaySchedule& decay = schedules.weight_decay;
  settings["start_weight_decay"] = fmt::format("{}", decay.start);
  settings["end_weight_decay"] = fmt::format("{}", decay.end);
  settings["weight_decay_incr_style"] = name_of(decay.style, kIncreases);
  settings["weight_decay_samples"] = std::to_string(decay.num_samples);
  return settings;
}

Schedules schedules_from(const ScheduleSettings& settings) {
  Schedules schedules;
  schedules.learning_rate = rate_from("", settings);
  if (settings.contains(std::string(kDecoupled) + "lr")) schedules.end_learning_rate = rate_from(kDecoupled, settings);
  schedules.weight_decay = {
      .style = name_at<WeightDecaySchedule::Style>(settings, "weight_decay_incr_style", kIncreases),
      .start = number_at<double>(settings, "start_weight_decay"),
      .end = number_at<double>(settings, "end_weight_decay"),
      .num_samples = number_at<std::int64_t>(settings, "weight_decay_samples")};
  return schedules;
}

}  // namespace primus::train
