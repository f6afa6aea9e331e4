#pragma once
// The files that `dump_pp_data` leaves: config.json and a pp_rank_N.json for each pipeline rank, each with a record an
// iteration. The original's runs leave out which micro-batch and chunk a box is; ours say it.
#include <filesystem>
#include <string>
#include <vector>

#include "view/pipeline_chart.hpp"

namespace primus::view {

/// What the files' numbers are measured in. The original's do not say: milliseconds and GB.
struct PpUnits {
  std::string time = "ms";
  std::string memory = "GB";
};

struct PpData {
  PipelineChart chart;
  std::string iteration;
  PpUnits units;
  std::vector<std::string> iterations;  // all that the files hold, in their order
};

/// Read a folder's files; `iteration` "" stands for the last one. Where micro-batch and chunk are missing in all of
/// them, they are those of Megatron's own order for the folder's shape. Throws ConfigError with the file and what is
/// wrong in it: numbers that only some boxes have, numbers beyond config.json's, a pass that stands twice, two passes
/// of one kind at a time. A pass that is missing is told in the chart's note.
PpData read_pp_data(const std::filesystem::path& folder, const std::string& iteration);

/// Write a chart as such files, with explicit micro-batches, chunks and units, as iteration `iteration`.
void write_pp_data(const PipelineChart& chart, const std::string& iteration, const PpUnits& units,
                   const std::filesystem::path& folder);

}  // namespace primus::view
