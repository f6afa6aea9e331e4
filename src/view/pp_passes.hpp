#pragma once
// Whether the passes that a run's files tell can have run: none twice, none at the same time as one of its kind.
#include <string>

#include "view/pipeline_chart.hpp"

namespace primus::view {

/// Where boxes say which micro-batch and chunk they are.
enum class Numbers { kWritten, kMissing };

/// What is wrong with a rank's boxes (ascending starts); "": nothing.
std::string fault_of_passes(const ChartRank& rank, Numbers numbers);

/// What is not there: forwards without a backward and the reverse, on the first rank that has such; "": nothing.
std::string missing_passes(const PipelineChart& chart, Numbers numbers);

/// A forward and a backward that overlap in time take a half of their rank's row each.
void share_rows(ChartRank& rank);

}  // namespace primus::view
