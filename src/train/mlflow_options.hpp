#pragma once
// What an experiment asks of MLflow's files.
#include <optional>
#include <string>

#include "config/experiment.hpp"
#include "train/mlflow_run.hpp"

namespace primus::train {

struct MlflowOptions {
  enum class Copies { kNo, kYes };

  MlflowNames names;
  Copies speeds = Copies::kNo;
  Copies logs = Copies::kNo;
  std::string traces;  // the folder of traces; empty: they stay where they are
};

/// Nothing where disable_mlflow says so. Throws ConfigError for the address of a server in MLFLOW_TRACKING_URI.
std::optional<MlflowOptions> mlflow_options(const config::Experiment& experiment);

}  // namespace primus::train
