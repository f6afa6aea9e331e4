#pragma once
// What --dry-run prints: the resolved experiment in a page, what every override did and what is planned.
#include <string>
#include <vector>

#include "cli/commands.hpp"
#include "cli/outer_modes.hpp"
#include "config/resolve.hpp"
#include "launch/environment.hpp"
#include "launch/hooks.hpp"
#include "launch/worker_process.hpp"

namespace primus::cli {

/// All that a plan is told from.
struct PlanInputs {
  const config::Resolution& resolution;
  const LaunchOptions& launch;
  std::string experiment_file;
  std::vector<launch::Script> scripts;  // hooks and patches that would run, in their order
  launch::WorkerCommand command;        // how its worker would be started
  std::vector<OuterText> outer;         // what slurm and container would run
  std::string export_config;            // "": nothing is exported
};

/// Parameters, batch, overrides, notes, environment, planned keys.
std::string plan_report(const PlanInputs& inputs);

/// The same for programs.
Json plan_json(const PlanInputs& inputs);

/// Notes and "no effect" lines of a real train, which come before the worker's own output.
std::string start_notes(const config::Resolution& resolution);

}  // namespace primus::cli
