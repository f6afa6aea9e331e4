#pragma once
// A whole run from a resolved experiment: trainer, records, summary.
#include <string>

#include "ops/device.hpp"
#include "train/trainer.hpp"

namespace primus::train {

/// Read the experiment, train, and print the summary with what counting models reach on the same held-out text.
RunSummary run_experiment(const std::string& experiment_path, ops::DeviceChoice device);

}  // namespace primus::train
