#include "train/mlflow_options.hpp"

#include <cstdlib>
#include <filesystem>

#include "train/tensorboard.hpp"

namespace primus::train {

std::optional<MlflowOptions> mlflow_options(const config::Experiment& experiment) {
  if (experiment.get_bool("disable_mlflow")) return std::nullopt;
  using enum MlflowOptions::Copies;
  const char* uri = std::getenv("MLFLOW_TRACKING_URI");
  const auto is_on = [&](const char* key) { return experiment.get_bool(key) ? kYes : kNo; };
  const auto named = [&](const char* key) { return experiment.get_optional_string(key).value_or(experiment.exp_name); };
  MlflowOptions options;
  options.names = {mlflow_store(uri != nullptr ? uri : "", std::filesystem::path(experiment.workspace) / "mlruns"),
                   named("mlflow_experiment_name"), named("mlflow_run_name"), experiment.user_name};
  options.speeds = is_on("mlflow_upload_performance_metrics");
  options.logs = is_on("mlflow_upload_logs");
  if (is_on("mlflow_upload_traces") == kYes) options.traces = tensorboard_options(experiment).folder;
  return options;
}

}  // namespace primus::train
