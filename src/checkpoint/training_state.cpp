#include "checkpoint/training_state.hpp"

#include <nlohmann/json.hpp>

namespace primus::checkpoint {
namespace {

using Json = nlohmann::ordered_json;

template <typename T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

template <typename T>
std::optional<T> optional_at(const Json& json, const char* key) {
  const Json& value = json.at(key);
  return value.is_null() ? std::nullopt : std::optional(value.get<T>());
}

}  // namespace

Json to_json(const TrainingState& state) {
  Json json;
  json["schedule_samples"] = state.schedule_samples;
  json["optimizer_steps"] = or_null(state.optimizer_steps);
  json["loss_scale"] = {{"scale", state.loss_scale.scale},
                        {"num_good", state.loss_scale.num_good},
                        {"hysteresis_left", state.loss_scale.hysteresis_left}};
  json["generator_seed"] = or_null(state.generator_seed);
  json["schedule"] = state.schedule;
  const TrainingState::LogInterval& interval = state.log_interval;
  json["log_interval"] = {{"seconds", interval.seconds},         {"loss_sum", interval.loss_sum},
                          {"mtp_sums", interval.mtp_sums},       {"num_steps", interval.num_steps},
                          {"num_samples", interval.num_samples}, {"num_skipped", interval.num_skipped},
                          {"num_nan", interval.num_nan}};
  return json;
}

TrainingState training_state_from_json(const Json& json) {
  TrainingState state;
  state.schedule_samples = json.at("schedule_samples").get<std::int64_t>();
  state.optimizer_steps = optional_at<std::int64_t>(json, "optimizer_steps");
  const Json& scale = json.at("loss_scale");
  state.loss_scale = {scale.at("scale").get<double>(), scale.at("num_good").get<std::int64_t>(),
                      scale.at("hysteresis_left").get<std::int64_t>()};
  state.generator_seed = optional_at<std::uint64_t>(json, "generator_seed");
  state.schedule = json.at("schedule").get<std::map<std::string, std::string>>();
  const Json& interval = json.at("log_interval");
  state.log_interval = {interval.at("seconds").get<double>(),
                        interval.at("loss_sum").get<double>(),
                        interval.at("mtp_sums").get<std::vector<double>>(),
                        interval.at("num_steps").get<std::int64_t>(),
                        interval.at("num_samples").get<std::int64_t>(),
                        interval.at("num_skipped").get<std::int64_t>(),
                        interval.at("num_nan").get<std::int64_t>()};
  return state;
}

}  // namespace primus::checkpoint
