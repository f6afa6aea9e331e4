#pragma once
// A look at a run's data before anything is started.
#include "config/experiment.hpp"

namespace primus::cli {

/// Read every data list of the experiment, open every file that it names, and see that the training split holds at
/// least one sample and ids of this vocabulary. Of large files only the beginning is looked at: the worker checks each
/// token as it reads it. Throws ConfigError with all faults.
void check_data(const config::Experiment& experiment);

}  // namespace primus::cli
