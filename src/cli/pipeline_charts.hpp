#pragma once
// From the words of `view pipeline` to what it draws: a simulated experiment, plain sizes, or files of a run.
#include <string>
#include <vector>

#include "cli/commands.hpp"
#include "cli/config_common.hpp"
#include "schedule/schedule.hpp"
#include "view/pipeline_chart.hpp"

namespace primus::cli {

struct PipelineOptions {
  ReadOptions read;               // with --config
  std::vector<std::string> data;  // folders
  std::string iteration;          // of the folders' files; "": the last
  int num_ranks = 0;              // without a model: all stages alike
  int num_micro_batches = 0;
  std::vector<std::string> schedules;  // names; empty: the experiment's, or 1f1b
  int num_chunks = 0;                  // of interleaved schedules; 0: the experiment's, or 2
  std::vector<double> times;           // F, B, W of a rank; empty: FLOPs, or 1 each
  double message = 0.0;
  double exchange = 0.0;
  bool better = false;
};

struct DrawnPipeline {
  view::PipelinePicture picture;
  std::vector<schedule::Schedule> tables;  // of simulated charts, in their order
  std::string planned = "";                // keys that a real train refuses
};

/// Throws ConfigError.
DrawnPipeline draw_pipeline(const PipelineOptions& options, const LaunchOptions& launch);

}  // namespace primus::cli
