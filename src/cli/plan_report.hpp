#pragma once
// What a run will do, in text: the dry-run's report and the notes before a start.
#include <string>

#include "config/resolve.hpp"
#include "launch/run_folder.hpp"

namespace primus::cli {

/// The resolved plan: model, batch, what each override did, notes, planned and meaningless keys, worker command.
std::string plan_report(const config::Resolution& resolution, const std::string& experiment_file,
                        const launch::WorkerCommand& command);

/// Notes and keys without effect, for a run that starts; empty if there are none.
std::string start_notes(const config::Resolution& resolution);

}  // namespace primus::cli
