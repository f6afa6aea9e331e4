#pragma once
// What a training checkpoint holds beside its tensors: the numbers that a run goes on from.
#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

namespace primus::checkpoint {

/// Kinds of tensors. Optimizer state has its parameter's name; scales have one element a block of it.
inline constexpr const char* kWeight = "weight";
inline constexpr const char* kMaster = "master";
inline constexpr const char* kFirstMoment = "first_moment";
inline constexpr const char* kSecondMoment = "second_moment";
inline constexpr const char* kRowAverage = "row_average";  // SOAP's, and their eigenvectors
inline constexpr const char* kColumnAverage = "column_average";
inline constexpr const char* kRowBasis = "row_basis";
inline constexpr const char* kColumnBasis = "column_basis";
inline constexpr const char* kScaleEnding = "_scale";

struct TrainingState {
  /// Where the loss scaler stands.
  struct LossScale {
    double scale = 1.0;
    std::int64_t num_good = 0;
    std::int64_t hysteresis_left = 0;
  };
  /// Sums since the last log line, so that the line after a restart is that of the undisturbed run.
  struct LogInterval {
    double seconds = 0.0;
    double loss_sum = 0.0;
    std::vector<double> mtp_sums;
    std::int64_t num_steps = 0;
    std::int64_t num_samples = 0;
    std::int64_t num_skipped = 0;
    std::int64_t num_nan = 0;
  };

  std::int64_t schedule_samples = 0;            // those of steps that were not skipped: what the rates depend on
  std::optional<std::int64_t> optimizer_steps;  // updates done; absent: saved without the optimizer
  LossScale loss_scale;
  std::optional<std::uint64_t> generator_seed;  // keys every random number; absent: saved without generators
  std::map<std::string, std::string> schedule;  // settings of learning rate and weight decay, by key
  LogInterval log_interval;
};

nlohmann::ordered_json to_json(const TrainingState& state);

/// Throws nlohmann's exceptions for missing or wrongly typed fields.
TrainingState training_state_from_json(const nlohmann::ordered_json& json);

}  // namespace primus::checkpoint
