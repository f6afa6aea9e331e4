#pragma once
// A look at a run's data before anything is started.
#include <cstdint>
#include <string>
#include <vector>

#include "config/experiment.hpp"

namespace primus::cli {

/// Read every data list of the experiment, open every file that it names, and see that the training split holds at
/// least one sample and ids of this vocabulary. Of large files only the beginning is looked at: the worker checks each
/// token as it reads it. Throws ConfigError with all faults.
void check_data(const config::Experiment& experiment);

/// One file of an experiment's data lists, as a plan sees it.
struct DataUse {
  std::string key;
  std::string prefix;
  std::string fault;  // why the index could not be read; empty: it was
  std::int64_t num_sequences = 0;
  std::int64_t num_tokens = 0;
};

/// The files of every data list, with what their indexes hold; nothing for made-up data. Faults are told, not thrown.
std::vector<DataUse> look_at_data(const config::Experiment& experiment);

}  // namespace primus::cli
